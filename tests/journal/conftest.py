"""Fixtures: a place for a journal, and a disk that is slow."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from journal.disks import Disk


@pytest.fixture
def journal(folder: str) -> str:
    """Where a journal may be; nothing is there yet."""
    return os.path.join(folder, "journal")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    slow = Disk()
    monkeypatch.setattr(os, "fdatasync", slow.sync)
    yield slow
    slow.open.set()
