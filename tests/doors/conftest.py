"""Fixtures for doors: one that is open, and somebody who asks."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator

import pytest

from sbuslib.doors.asking import Asker
from sbuslib.doors.door import Door
from sbuslib.limits import ClientLimits


async def wait_readable(fd: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1_000 * timeout))


async def sleep(seconds: float) -> None:
    time.sleep(seconds)


MakeDoor = Callable[..., Door]


@pytest.fixture
def make_door() -> Iterator[MakeDoor]:
    doors: list[Door] = []

    def make(folder: str | None = None, **limits: float) -> Door:
        doors.append(Door(folder, ClientLimits(**limits)))  # type: ignore[arg-type]
        with doors[-1]._lock:
            doors[-1]._open()
        return doors[-1]

    yield make
    for door in doors:
        door.close()


@pytest.fixture
def door(make_door: MakeDoor) -> Door:
    return make_door()


@pytest.fixture
def asker() -> Iterator[Asker]:
    asker = Asker(wait_readable, sleep, None)
    yield asker
    asker.close()
