"""What a client may say to a hub, and what its control messages choose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from accounting import connection_of
from support import Peer

from sbuslib import Hub
from sbuslib.core.client_role import TOKEN_BYTES
from sbuslib.wire.modes import HARD, ORDER, SOFT

Connect = Callable[..., Peer]


@pytest.mark.parametrize(("name", "words"), [("soft", SOFT), ("hard", HARD), ("order", ORDER)])
def test_a_client_chooses_each_mode_by_its_name(hub: Hub, connect: Connect, name: str, words: tuple[str, ...]) -> None:
    peer = connect()
    outgoing = connection_of(hub, peer).outgoing
    before = {"soft": b"blocking/soft/", "hard": b"blocking/hard/", "order": b"order/"}[name]
    for word in words:
        peer.send(b"CMSG " + before + word.encode())
        peer.barrier()
        assert getattr(outgoing.outbox, name) == word
    assert hub.statistics().ignored == 0


@pytest.mark.parametrize("choice", ["takes_batches", "wants_notices", "_senders"])
def test_a_choice_is_taken_back(hub: Hub, connect: Connect, choice: str) -> None:
    peer = connect()
    outgoing = connection_of(hub, peer).outgoing
    word = {"takes_batches": b"batch", "wants_notices": b"notices", "_senders": b"senders"}[choice]
    for state in (b"on", b"on", b"off", b"off", b"on"):
        peer.send(b"CMSG %b/%b" % (word, state))
        peer.barrier()
        assert getattr(outgoing, choice) is (state == b"on")


def test_what_means_nothing_is_counted_and_ignored(hub: Hub, connect: Connect) -> None:
    peer = connect()
    peer.send(b"CMSG no/such/word", b"CMSG blocking/soft/never", b"UNSUB never/subscribed")
    peer.barrier()
    assert hub.statistics().ignored == 3


@pytest.mark.parametrize(("size", "stays"), [(TOKEN_BYTES, True), (TOKEN_BYTES + 1, False)])
def test_a_token_that_is_too_long_is_a_violation(hub: Hub, connect: Connect, size: int, stays: bool) -> None:
    peer = connect()
    peer.send(b"CMSG hub/sync\0" + b"t" * size)
    if stays:
        assert b"t" * size in peer.receive()
    else:
        assert peer.is_disconnected()
    assert hub.statistics().violations == ({} if stays else {"token too long": 1})
