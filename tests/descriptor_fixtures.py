"""Fixtures: which thread closes what peers have sent, and a kernel that cannot refuse it.

A module that wants them says ``pytest_plugins = ["descriptor_fixtures"]``.
"""

from __future__ import annotations

import pytest
from descriptors import Closers

from sbuslib.kernel import descriptors


@pytest.fixture
def closers(monkeypatch: pytest.MonkeyPatch) -> Closers:
    """Watch which thread closes what peers have sent."""
    closers = Closers()
    original = descriptors._close

    def close(descriptor: int) -> None:
        original(descriptor)
        closers.note(descriptor)

    monkeypatch.setattr(descriptors, "_close", close)
    return closers


@pytest.fixture
def old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets that are made from now on cannot refuse descriptors."""
    monkeypatch.setattr(descriptors, "_SO_PASSRIGHTS", 0x7FFF)
