"""Fixtures for trees of hubs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from worlds import World

from sbuslib.core import acceptor
from sbuslib.tree import uplink


@pytest.fixture
def world(engine: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A :class:`World` that ends with the test."""
    made = World(folder)
    monkeypatch.setattr(uplink, "ACK_PAUSE", 0.001)
    monkeypatch.setattr(acceptor, "peer_credentials", made.credentials)
    yield made
    made.close()
