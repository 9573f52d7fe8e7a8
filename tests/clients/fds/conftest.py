"""Fixtures for descriptor stores: one that is open, and somebody who asks."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator

import pytest

from sbuslib.clients.fds.descriptor_client import DescriptorClient
from sbuslib.clients.fds.descriptor_store import DescriptorStore
from sbuslib.limits import ClientLimits


async def wait_readable(fd: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1_000 * timeout))


async def sleep(seconds: float) -> None:
    time.sleep(seconds)


MakeStore = Callable[..., DescriptorStore]


@pytest.fixture
def make_store() -> Iterator[MakeStore]:
    stores: list[DescriptorStore] = []

    def make(folder: str | None = None, **limits: float) -> DescriptorStore:
        stores.append(DescriptorStore(folder, ClientLimits(**limits)))  # type: ignore[arg-type]
        with stores[-1]._lock:
            stores[-1]._open()
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def store(make_store: MakeStore) -> DescriptorStore:
    return make_store()


@pytest.fixture
def client() -> Iterator[DescriptorClient]:
    client = DescriptorClient(wait_readable, sleep, None)
    yield client
    client.close()
