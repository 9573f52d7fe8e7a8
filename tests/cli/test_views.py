"""Which rows ``sbus top`` shows, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from sbuslib.cli.tables import KINDS, TABLES, View
from sbuslib.rates import Look, Row


def row(**told: Any) -> Row:
    counts = dict.fromkeys(("published_rate", "delivered_rate", "waiting", "lost_rate", "lost", "patterns"), 0)
    return {**counts, "user": "", "program": "", "modes": "", **told}


LOOK = Look(
    address="/bus",
    hub={},
    users=[
        row(user="root", connections=1, waiting_bytes=0),
        row(user="2147483648", connections=2, waiting_bytes=1_000),
    ],
    clients=[
        row(who="b", published_rate=1, delivered_rate=9, program="nginx"),
        row(who="A", published_rate=5),
        row(who="c", published_rate=5),
    ],
    links=[row(name="above", direction="up", state="joined"), row(name="below", direction="down", state="joined")],
)


def names(rows: Iterable[Row] | None) -> list[str]:
    assert rows is not None
    return [one["who"] for one in rows]


def test_the_largest_numbers_come_first_and_equal_ones_by_name() -> None:
    assert names(View().rows(LOOK)) == ["A", "c", "b"]
    assert names(View(sort="delivered_rate").rows(LOOK)) == ["b", "A", "c"]
    assert names(View(reverse=True).rows(LOOK)) == ["b", "A", "c"]


def test_texts_are_sorted_from_a_to_z() -> None:
    assert names(View(sort="who").rows(LOOK)) == ["A", "b", "c"]
    assert names(View(sort="who", reverse=True).rows(LOOK)) == ["c", "b", "A"]


def test_rows_are_filtered_by_names_in_any_case() -> None:
    assert names(View(wanted="a").rows(LOOK)) == ["A"]
    assert names(View(wanted="NGIN").rows(LOOK)) == ["b"]
    assert View(wanted="nobody").rows(LOOK) == []


def test_clients_that_were_not_asked_for_are_not_shown_as_none() -> None:
    assert View().rows(Look("/bus", {}, [], None, [])) is None


def test_another_kind_is_sorted_as_before_if_it_has_the_column() -> None:
    view = View(sort="patterns")
    view.change("users")
    assert (view.kind, view.sort) == ("users", "patterns")
    view.change("links")
    assert (view.kind, view.sort) == ("links", "up_rate")


@pytest.mark.parametrize("kind", KINDS)
def test_sorting_by_the_next_column_goes_round(kind: str) -> None:
    view = View(kind)
    columns = TABLES[f"top {kind}"].split()
    seen = []
    for _ in columns:
        seen.append(view.sort)
        view.sort_by_next(1)
    assert sorted(seen) == sorted(columns)
    assert view.sort == seen[0]
    view.sort_by_next(-1)
    assert view.sort == columns[columns.index(seen[0]) - 1]


def test_an_unknown_column_is_not_sorted_by() -> None:
    assert View("links", sort="patterns").sort == "up_rate"


def test_cells_are_in_the_order_of_the_columns() -> None:
    cells = View().cells(row(who="me", user="u", program="p", waiting=1_234, patterns=2, modes="drop"))
    assert cells == ["me", "u", "p", "0", "0", "1,234", "0", "0", "2", "drop"]
