"""Files between peers: several receivers, a lost connection, receivers and parts that are not what they should be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import gevent
import msgspec
import pytest
from support import PATIENCE, eventually

from sbuslib.doors.transfers import Received
from sbuslib.errors import PeerError
from sbuslib.tcp import Peer, large
from sbuslib.tcp.large import PeerFiles, receive_large, send_large

Make = Callable[..., Peer]
DATA = os.urandom(6_000_000)


def received(files: PeerFiles) -> gevent.Greenlet[..., Received]:
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


def test_a_file_whose_connection_is_lost_is_an_error_at_both_ends(
    make_peer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "TIMEOUT", 1.0)
    sender = make_peer("127.0.0.1:0")
    receiver = make_peer()
    receiver.connect(sender.address, keep=False)
    with receive_large(receiver, "//docs", folder=tmp_path) as files:
        waiting = received(files)
        sending = gevent.spawn(send_large, sender, "//docs", DATA, timeout=2.0)
        eventually(lambda: receiver.statistics().received >= 10)
        for link in sender.links:
            sender.end_link(link, "for the test", violation=False)
        with pytest.raises(PeerError, match="nothing came for"):
            waiting.get()
        with pytest.raises(PeerError, match="made no progress for"):
            sending.get()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([(1, b"abc")], "a part is missing"),
        ([(0, b"ab")], "a part is missing"),
        ([(0, b"abc"), (1, bytes(32))], "what came is not what was sent"),
    ],
)
def test_parts_that_nobody_sent_make_no_file(
    parts: list[tuple[int, bytes]], error: str, make_peer: Make, tmp_path: Path
) -> None:
    sender = make_peer("127.0.0.1:0")
    with receive_large(connected(make_peer, sender), "//docs", folder=tmp_path) as files:
        waiting = received(files)
        identity = "0" * 32
        sender.wait_for_subscriber("//docs", timeout=PATIENCE)
        with sender.subscribe(f"//docs/{identity}/to") as words:
            sender.publish("//docs", b'{"large": "%b", "size": 3}' % identity.encode())
            words.receive(timeout=PATIENCE)
        for number, data in parts:
            sender.publish(f"//docs/{identity}", number.to_bytes(8, "little") + data)
        with pytest.raises(PeerError, match=error):
            waiting.get()
    assert list(tmp_path.iterdir()) == []


def test_who_says_that_it_receives_and_does_not_is_given_up(make_peer: Make) -> None:
    sender = make_peer("127.0.0.1:0")
    stranger, receiver = connected(make_peer, sender), connected(make_peer, sender)

    def pretend() -> None:
        with stranger.subscribe("//docs") as offers:
            offer = msgspec.json.decode(offers.receive(timeout=PATIENCE).data)
            for _ in range(300):
                stranger.publish(f"//docs/{offer['large']}/to", b'{"who": "x"}')
                gevent.sleep(0.01)

    with receive_large(receiver, "//docs") as files:
        pretending, waiting = gevent.spawn(pretend), received(files)
        sent = send_large(sender, "//docs", DATA, receivers=2, timeout=2.0)
        assert sent.receivers == 1
        assert sent.failed == ("a receiver made no progress for 2 s",)
        waiting.get().file.close()
        pretending.kill()


def test_what_nobody_takes_is_an_error(make_peer: Make) -> None:
    sender = make_peer("127.0.0.1:0")
    with pytest.raises(TimeoutError):
        send_large(sender, "//docs", b"x", timeout=0.01)
    with receive_large(connected(make_peer, sender), "//docs", most=1) as files:
        waiting = received(files)
        with pytest.raises(PeerError, match="2 bytes are more than 1"):
            send_large(sender, "//docs", b"xx", timeout=PATIENCE)
        waiting.kill()
