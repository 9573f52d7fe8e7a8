"""Fixtures: the service of a queue in a thread, and quick workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from cli.conftest import environment as environment
from cli.conftest import path as path
from cli.conftest import ready as ready
from cli.conftest import start as start
from support import HubThread, eventually

from sbuslib.clients.recipes import queue as patterns
from sbuslib.limits import Limits
from sbuslib.services import queue_rules
from sbuslib.services.queue_rules import Jobs
from sbuslib.services.queue_service import QueueService
from sbuslib.services.queue_store import Store

Serve = Callable[..., QueueService]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers announce themselves often, and are soon taken for gone."""
    monkeypatch.setattr(patterns, "ANNOUNCE_SECONDS", 0.02)
    monkeypatch.setattr(queue_rules, "GONE", 1.0)


@pytest.fixture
def server(address: str) -> Iterator[HubThread]:
    """A hub in a thread, which soon knows what nobody receives."""
    with HubThread(address, limits=Limits(settle=0.01)) as server:
        yield server


@pytest.fixture
def serve(folder: str, quick: None) -> Iterator[Serve]:
    """Start the queue ``mail`` for ``mail/`` in a thread; stopped after the test, when nothing may have failed."""
    with ExitStack() as stack:

        def serve(
            address: str = f"{folder}/bus",
            *,
            file: str | None = None,
            sync: float | None = None,
            jobs: int = 1_000,
            limit: float = 100.0,
            attempts: int = 3,
            ordered: bool = False,
            name: bytes = b"mail",
            patterns: Iterable[bytes] = (b"mail/",),
            **options: Any,
        ) -> QueueService:
            store = None if file is None else stack.enter_context(Store(f"{folder}/{file}", sync))
            rules = Jobs(jobs, 2**24, limit, attempts, ordered=ordered)
            service = QueueService(address, name, patterns, rules, store, **options)
            stack.callback(stop, service)
            service.thread = threading.Thread(target=service.run, daemon=True)  # type: ignore[attr-defined]
            service.thread.start()  # type: ignore[attr-defined]
            return service

        yield serve


def stop(service: Any) -> None:
    """Stop a service, and wait for its thread, while hubs of this thread go on."""
    service.stop()
    eventually(lambda: not service.thread.is_alive())
    assert not service.client.connected
