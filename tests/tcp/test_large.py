"""Files between peers: several receivers, a lost connection, words and parts of strangers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import gevent
import pytest
from support import PATIENCE

from sbuslib.clients.endpoint import Files
from sbuslib.errors import PeerError
from sbuslib.recipes.large import Received
from sbuslib.tcp import Peer
from sbuslib.tcp.large import receive_large, send_large

Make = Callable[..., Peer]
DATA = os.urandom(6_000_000)


def received(files: Files) -> gevent.Greenlet[..., Received]:
    return gevent.spawn(files.receive, timeout=PATIENCE)


def test_a_file_goes_to_several_peers(make_peer: Make, tmp_path: Path) -> None:
    sender = make_peer("127.0.0.1:0")
    (tmp_path / "a.bin").write_bytes(DATA)
    with (
        receive_large(connected(make_peer, sender), "//docs", folder=tmp_path) as one,
        receive_large(connected(make_peer, sender), "//docs/1", "//other") as other,
    ):
        waiting = [received(one), received(other)]
        assert send_large(sender, "//docs/1", tmp_path / "a.bin", receivers=2, timeout=PATIENCE).receivers == 2
        first, second = (greenlet.get() for greenlet in waiting)
        assert (first.key, first.name, first.file.name) == (b"//docs/1", "a.bin", "a-1.bin")
        assert first.file.read_bytes() == DATA
        with second.file as file:
            assert file.read() == DATA
        sender.publish("//docs/1", b"no offer")
        with pytest.raises(TimeoutError):
            one.receive(timeout=0.01)


def connected(make_peer: Make, to: Peer) -> Peer:
    peer = make_peer()
    peer.connect(to.address)
    return peer


def test_a_file_comes_over_a_connection_that_is_lost(make_peer: Make) -> None:
    sender = make_peer("127.0.0.1:0")
    receiver = connected(make_peer, sender)
    with receive_large(receiver, "//docs") as files:
        waiting = received(files)
        sending = gevent.spawn(send_large, sender, "//docs", DATA, timeout=PATIENCE)
        while receiver.statistics().received < 10:
            gevent.sleep(0)
        for link in sender.links:
            sender.end_link(link, "for the test", violation=False)
        with waiting.get().file as file:
            assert file.read() == DATA
        assert sending.get().receivers == 1


def test_what_nobody_takes_is_an_error(make_peer: Make) -> None:
    sender = make_peer("127.0.0.1:0")
    with pytest.raises(TimeoutError):
        send_large(sender, "//docs", b"x", timeout=0.01)
    with receive_large(connected(make_peer, sender), "//docs", most=1) as files:
        waiting = received(files)
        with pytest.raises(PeerError, match="2 bytes are more than 1"):
            send_large(sender, "//docs", b"xx", timeout=PATIENCE)
        waiting.kill()
