"""A socket that takes no more is tried again when it is writable, or a little later."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest
from support import Peer

from sbuslib import Hub
from sbuslib.core import send_watcher
from sbuslib.kernel.packet_writer import PacketWriter

Connect = Callable[..., Peer]
MakeHub = Callable[..., Hub]


@pytest.mark.parametrize("code", [errno.ENOBUFS, errno.ENOMEM])
def test_a_kernel_without_memory_loses_nothing(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(send_watcher, "SEND_RETRY", 0.001)
    hub = make_hub()
    receiver, publisher = connect(), connect()
    receiver.subscribe(b"k")
    rng = random.Random(7)
    failures = [0]

    def failing(original: Callable[..., int]) -> Callable[..., int]:
        def send(*arguments: object) -> int:
            if rng.random() < 0.5:
                failures[0] += 1
                raise OSError(code, "no memory")
            return original(*arguments)

        return send

    with monkeypatch.context() as patched:
        patched.setattr(type(hub.context.area), "send", failing(type(hub.context.area).send))
        patched.setattr(PacketWriter, "send", failing(PacketWriter.send))
        for number in range(300):
            publisher.publish(b"k", b"%d" % number)
        publisher.barrier()
        got = receiver.pending()
    assert got == [b"MSG k\0%d" % number for number in range(300)]
    assert failures[0] > 10
