"""A recorder that is killed at any moment loses no durable row, and the next recorder goes on."""

from __future__ import annotations

import random
from pathlib import Path

from journal.format.journals import records_of
from support import TESTS, python

from sbuslib import Hub
from sbuslib.journal.format.layout import Record
from sbuslib.journal.recorder import Recorder

KILLS = 20


def gaps_at(records: list[Record]) -> int:
    """How many gap rows a kill and the restart left: one where the kill came just when a segment had ended."""
    causes = [record.cause for record in records[:2]]
    assert causes in (["cut", "outage"], ["outage", None])
    return 2 if causes[0] == "cut" else 1


def test_a_killed_recorder_loses_no_durable_row(folder: str) -> None:
    moments = random.Random()
    seconds = [f"{moments.random() * 0.03:.6f}" for _ in range(KILLS)]
    lines = python(str(Path(__file__).parent / "killed.py"), folder, *seconds, PYTHONPATH=str(TESTS)).splitlines()
    told = [tuple(map(int, line.split())) for line in lines]
    assert [run for run, _, _ in told] == list(range(KILLS))
    with Hub(folder + "/bus") as hub, Recorder(hub, folder):
        hub.publish(b"end", b"")
    records = records_of(folder)  # every block whole, every number once, every segment closed
    assert [record.sequence for record in records] == list(range(1, len(records) + 1))
    assert records[-1].key == b"end"
    end = 0
    for run, durable, published in told:
        mine = [record for record in records if record.key == b"run/%d" % run]
        # From the first that it published on, in order and each once.
        for count, record in enumerate(mine, 1):
            assert record.payload == b"%d " % count + b"x" * (count % 200)
        assert len(mine) <= published + 20
        if run:
            end += gaps_at(records[end:])
        assert records[end : end + len(mine)] == mine
        end += len(mine)
        assert end >= durable
    assert end + gaps_at(records[end:]) == len(records) - 1
