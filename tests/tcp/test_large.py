"""Files between peers: several receivers, a lost connection, receivers and parts that are not what they should be."""

from __future__ import annotations

import os
import time
from pathlib import Path

import gevent
import msgspec
import pytest
from support import PATIENCE, eventually

from sbuslib.clients.fds.transfers import ReceivedFile, Sent, Transfer
from sbuslib.errors import PeerError, UsageError
from sbuslib.tcp import Peer, Publish, large
from sbuslib.tcp.large import PeerFiles, receive_large, send_large

from .conftest import Make

DATA = os.urandom(6_000_000)


def received(files: PeerFiles) -> gevent.Greenlet[..., ReceivedFile]:
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


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_file_goes_on_once_a_lost_connection_is_there_again(
    comes_back: bool, make_peer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "AGAIN", 0.1)
    sender, receiver = make_peer("127.0.0.1:0"), make_peer()
    receiver.connect(sender.address, keep=comes_back)
    with receive_large(receiver, "//docs", folder=tmp_path) as files:
        waiting = received(files)
        sending = gevent.spawn(send_large, sender, "//docs", DATA, timeout=PATIENCE)
        eventually(lambda: receiver.statistics().received >= 10)
        for link in sender.links:
            sender.end_link(link, "for the test", violation=False)
        if comes_back:
            assert waiting.get().file.read_bytes() == DATA
            assert sending.get().receivers == 1
            return
        monkeypatch.setattr(large, "TIMEOUT", 0.0)
        monkeypatch.setattr(large, "monotonic", lambda: time.monotonic() + 2 * PATIENCE)
        with pytest.raises(PeerError, match="nothing came for"):
            waiting.get()
        with pytest.raises(PeerError, match="did not go on for"):
            sending.get()
    assert list(tmp_path.iterdir()) == []


def test_parts_that_are_out_of_place_are_left_out(
    make_peer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "AGAIN", 0.05)
    sender, identity = make_peer("127.0.0.1:0"), "0" * 32
    with (
        receive_large(connected(make_peer, sender), "//docs", folder=tmp_path) as files,
        sender.subscribe(f"//docs/{identity}/receivers") as words,
    ):
        waiting = received(files)
        sender.wait_for_subscriber("//docs", timeout=PATIENCE)
        sender.publish("//docs", b'{"large": "%b", "size": 3}' % identity.encode())
        word = msgspec.json.decode(words.receive(timeout=PATIENCE).data)
        for at, data in ((1, b"bc"), (0, b""), (0, b"abcd"), (0, b"ab"), (0, b"ab"), (3, b""), (2, b"c")):
            sender.publish(f"//docs/{identity}/{word['who']}", at.to_bytes(8, "little") + data)
        assert waiting.get().file.read_bytes() == b"abc"
        while not word.get("is_whole"):
            word = msgspec.json.decode(words.receive(timeout=PATIENCE).data)


def test_a_file_that_changes_while_it_is_sent_is_an_error(
    make_peer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "AGAIN", 0.05)
    sender = make_peer("127.0.0.1:0")
    (tmp_path / "a.bin").write_bytes(DATA)

    def shorten(*arguments: int) -> bytes:
        os.truncate(tmp_path / "a.bin", 10)
        return pread(*arguments)

    pread = os.pread
    monkeypatch.setattr(os, "pread", shorten)
    with receive_large(connected(make_peer, sender), "//docs") as files:
        waiting = received(files)
        with pytest.raises(UsageError, match="changed while it was sent"):
            send_large(sender, "//docs", tmp_path / "a.bin", timeout=PATIENCE)
        monkeypatch.setattr(large, "TIMEOUT", 0.0)
        with pytest.raises(PeerError, match="nothing came for"):
            waiting.get()


class Words:
    """What receivers say, in place of an inbox."""

    def __init__(self, *words: bytes) -> None:
        self._words = words

    def receive_many(self, **_: object) -> list[Publish]:
        return [Publish("", word) for word in self._words]


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b'{"who": "01234567"}', "a receiver did not go on for 10 s"),
        (b'{"who": "01234567", "at": 9007199254740992}', "a receiver did not go on for 10 s"),
        (b'{"who": "../../.."}', "0 of 1 receivers took"),
        (b'{"who": "01234567", "at": -1}', "0 of 1 receivers took"),
        (b"[" * 10_000, "0 of 1 receivers took"),
    ],
)
def test_who_asks_for_a_file_and_takes_nothing_is_given_up(
    says: bytes, why: str, make_peer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(large, "monotonic", lambda: now)
    transfer = Transfer(1, 10.0, now)
    with open(__file__, "rb") as file:
        sending = large._Sending(make_peer(), "//docs/1", file.fileno(), transfer)
        for now in range(11):  # the clock reads it
            sending.hear(Words(says))  # type: ignore[arg-type]
            assert not transfer.is_over(now)
        with pytest.raises((TimeoutError, PeerError), match=why):
            assert not transfer.is_over(10.5) or transfer.result("a")


def test_a_sender_heeds_so_many_receivers(make_peer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "MOST_RECEIVERS", 2)
    transfer = Transfer(1, 10.0, 0.0)
    with open(__file__, "rb") as file:
        sending = large._Sending(make_peer(), "//docs/1", file.fileno(), transfer)
        sending.hear(Words(*(b'{"who": "0000000%d", "is_whole": true}' % number for number in range(5))))  # type: ignore[arg-type]
    assert transfer.result("a") == Sent(2)


def test_what_nobody_takes_is_an_error(make_peer: Make) -> None:
    sender = make_peer("127.0.0.1:0")
    with pytest.raises(TimeoutError):
        send_large(sender, "//docs", b"x", timeout=0.01)
    with receive_large(connected(make_peer, sender), "//docs", most=1) as files:
        waiting = received(files)
        with pytest.raises(PeerError, match="2 bytes are more than 1"):
            send_large(sender, "//docs", b"xx", timeout=PATIENCE)
        waiting.kill()
