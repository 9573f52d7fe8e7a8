"""The tables that are made of the figures."""

from __future__ import annotations

from bench.figures import measured

from sbuslib.bench import tables


def test_the_table_of_the_hub_has_a_line_for_each_scenario() -> None:
    table = {row[0]: row[1:] for row in tables.rows(measured())}
    assert table["one to one"] == [
        "2,000 (1,500-2,500), 3 lost",
        "4.00",
        "speed 0.75 (0.62-0.88)",
    ]
    assert table["beside 1,000 new patterns a second"][2] == "cost 2.00 of one"
    assert table["round trip"] == ["40.00 µs", "20.00", "speed 0.25"]
    assert table["Python client to Python client"][0] == "300 k"


def test_every_case_is_in_the_table() -> None:
    heading, *body = tables.everything(measured())
    assert {len(row) for row in body} == {len(heading)}
    faster = {(row[0], row[1]): row[-1] for row in body}
    assert faster["one to one", "sbuslib"] == "-"
    assert faster["one to one", "redis"] == "4.00 (3.00-5.00)"
    assert faster["round trip", "C forwarder"] == "0.50"
    assert faster["Python client to Python client", "zeromq"] == "2.00"
    text = tables.terminal(measured())
    assert "One, 2 cores" in text
    assert "left out: NATS: nats-server is not installed" in text
