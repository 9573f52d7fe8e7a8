"""Many clients of one user that want the same messages, and the queue before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support import Peer

from sbuslib import Hub
from sbuslib.core.fan_out_queue import FanOutQueue
from sbuslib.statistics import UserStatistics
from sbuslib.wire.batches import BATCH, Batch

ConnectAs = Callable[..., Peer]
PUBLISHER, READER = 1001, 1002
FANOUT = 4


def readers_of(connect_as: ConnectAs, *patterns: bytes, count: int = FANOUT, uid: int = READER) -> list[Peer]:
    readers = [connect_as(uid) for _ in range(count)]
    for reader in readers:
        reader.subscribe(*patterns)
    return readers


def account(hub: Hub, uid: int = READER) -> UserStatistics:
    return next(user for user in hub.statistics().per_user if user.uid == uid)


@contextmanager
def stopped(hub: Hub) -> Iterator[None]:
    """Lines do not get on meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FanOutQueue, "_take_turn", lambda queue: None)
        yield
    for line in hub._fan_outs.waiting:
        line._postpone()


def message(key: bytes, number: int) -> bytes:
    return b"MSG %b\0%d" % (key, number)


def opened(packet: bytes) -> list[bytes]:
    return Batch.parse(packet).plain if packet.startswith(BATCH) else [packet]
