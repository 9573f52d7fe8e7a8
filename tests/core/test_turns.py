"""A greenlet that always has work does not keep others from theirs."""

from __future__ import annotations

import ast

import gevent
from gevent import socket
from support import ROOT

from sbuslib.core.turns import let_others_run


def test_a_socket_that_becomes_ready_is_seen_before_the_next_turn() -> None:
    one, other = socket.socketpair()
    turns = 0
    seen: list[int] = []

    def work() -> None:
        nonlocal turns
        while not seen:
            turns += 1
            if turns == 5:
                one.send(b"x")
            let_others_run()

    with one, other:
        worker = gevent.spawn(work)
        assert other.recv(1) == b"x"
        seen.append(turns)
        worker.get()
    assert seen == [5]


def test_nobody_yields_by_a_callback_of_the_event_loop() -> None:
    """Nothing in the package says ``gevent.sleep(0)``."""
    calls = (
        (path, node)
        for path in (ROOT / "sbuslib").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("gevent.sleep", "sleep")
    )
    found = [(path.name, node.lineno) for path, node in calls if ast.unparse(node) in ("gevent.sleep(0)", "sleep(0)")]
    assert not found
