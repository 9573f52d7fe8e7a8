"""Fixtures: a hub whose books are checked after the test, and connections of other users.

A module that wants them says ``pytest_plugins = ["accounting_fixtures"]``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from accounting import acting_as, balance
from support import Peer, eventually

from sbuslib.hub import Hub
from sbuslib.limits import Limits


@pytest.fixture
def bus(make_hub: Callable[..., Hub], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Hub]]:
    """Make a hub with these limits (``options`` are those of :class:`Hub`).

    Ask for it before ``connect``. When its clients have left, nothing may be charged to anybody.
    """
    made: list[Hub] = []
    # A turn takes as much from a client that said commands as from any: the tests count on one turn.
    monkeypatch.setattr("sbuslib.core.connection.COMMANDS_A_TURN", 64)

    def make(options: dict[str, Any] | None = None, **limits: Any) -> Hub:
        made.append(make_hub(limits=Limits(**{"turn_time": 1e6} | limits), **options or {}))
        return made[-1]

    yield make
    for hub in made:
        if hub.closed:
            continue
        balance(hub)
        eventually(lambda hub=hub: not hub.statistics().clients)  # type: ignore[misc]
        balance(hub)
        for inbox in list(hub._clients.inboxes):
            inbox.unsubscribe()
        eventually(hub.context.quotas.is_clear)
        assert hub.statistics().waiting == 0
        balance(hub)


@pytest.fixture
def connect_as(folder: str, connect: Callable[..., Peer]) -> Callable[..., Peer]:
    """Connect as the user with this id. The hub's ``mode`` has to let it in."""
    os.chmod(folder, 0o755)

    def make(uid: int, *arguments: Any) -> Peer:
        with acting_as(uid):
            return connect(*arguments)

    return make
