"""Fixtures for pytest, for a ``conftest.py`` that says ``pytest_plugins = ["sbuslib.pytest_plugin"]``.

It is no entry point of the package, as pytest would rewrite the assertions of all its modules then, in every run where
it is installed; and it imports nothing else.

``sbus_hub``
    a hub in a thread, a :class:`sbuslib.testing.HubThread`, for one test. ``SBUS_ADDRESS`` names it meanwhile.
``sbus_published``
    its messages, a :class:`sbuslib.testing.Recording`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .testing import HubThread, Recording

__all__ = ["sbus_hub", "sbus_published"]


@pytest.fixture
def sbus_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubThread]:
    """Run a hub in a thread, at a temporary address that ``SBUS_ADDRESS`` names. See ``sbuslib.testing.HubThread``."""
    from .testing import HubThread

    with HubThread() as server:
        monkeypatch.setenv("SBUS_ADDRESS", server.address)
        yield server


@pytest.fixture
def sbus_published(sbus_hub: HubThread) -> Recording:
    """Record the messages of ``sbus_hub``. See ``sbuslib.testing.Recording``."""
    return sbus_hub.record()
