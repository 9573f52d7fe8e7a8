"""The states of a client's connection: the table, and the page in its module, cell by cell."""

from __future__ import annotations

from itertools import pairwise

from sbuslib.clients import connection_states
from sbuslib.clients.connection_states import NEXT, Change, State


def test_the_table_is_as_it_is_drawn() -> None:
    lines = [line for line in (connection_states.__doc__ or "").splitlines() if line and not line.startswith("=")]
    drawn = lines[lines.index(next(line for line in lines if line.startswith("state "))) :][: len(State) + 1]
    starts = [0, 22, 34, 42, 49, 61, 99]
    rows = [[row[start:end].strip() for start, end in pairwise(starts)] for row in drawn]
    assert [name.replace(" ", "_").upper() for name in rows[0][1:]] == [change.name for change in Change]
    told = {State[name.upper()]: dict(zip(Change, row, strict=True)) for name, *row in rows[1:]}
    assert told == {
        state: {change: NEXT[state][change].name.lower() if change in NEXT[state] else "" for change in Change}
        for state in State
    }


def test_a_client_that_was_closed_stays_closed() -> None:
    assert set(NEXT[State.CLOSED].values()) == {State.CLOSED}
    assert {NEXT[state][Change.CLOSED] for state in State} == {State.CLOSED}
