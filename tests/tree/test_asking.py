"""What is asked of the hub above, and whose answer an answer is."""

from __future__ import annotations

import gevent
from support import PATIENCE, WHOAMI, FakeHub, eventually
from worlds import World

from sbuslib.tree.asking import Asking
from sbuslib.wire.packets import encode_control

OWN = WHOAMI + b"\0!/cred/1/2/3"


class Wire:
    """What sends to the hub above, with so many acknowledgements that were asked for."""

    def __init__(self) -> None:
        self.open_questions = 0
        self.said: list[bytes] = []

    def say(self, *packets: bytes) -> None:
        self.said += packets


def test_answers_with_tokens_come_in_any_order() -> None:
    wire = Wire()
    asking = Asking(wire, 10)
    assert asking.ask(b"1")
    assert asking.ask(b"2")
    asking.send(True)
    assert wire.said == [encode_control(b"hub/sync", b"r%d\0tree" % n) for n in (1, 2)]
    assert asking.take(b"r2") == b"2"
    assert asking.take(b"r2") is asking.take(b"a1") is None
    assert asking.unanswered() == [b"1"]


def test_answers_without_tokens_belong_to_the_oldest_question() -> None:
    wire = Wire()
    asking = Asking(wire, 10)
    assert asking.take_whoami() is None
    wire.open_questions = 2
    for token in (b"1", b"2"):
        asking.ask(token)
    asking.send(False)
    assert wire.said == [WHOAMI + b"\0"] * 2
    wire.open_questions = 3  # another acknowledgement is asked for after them
    assert [asking.take_whoami() for _ in range(5)] == [None, None, b"1", b"2", None]
    assert asking.unanswered() == []


def test_questions_are_bounded() -> None:
    for has_features in (True, False):
        asking = Asking(Wire(), 3)
        for n in range(10):
            assert asking.ask(b"%d" % n) is (has_features or n < 6)
            asking.send(has_features)
        assert len(asking.unanswered()) == (3 if has_features else 6)


def test_below_a_plain_daemon_a_sync_waits_until_the_daemon_has_acted(world: World) -> None:
    with FakeHub(world.address("top")) as daemon:
        world.hub("left")
        relay = world.relay("left", "top", wait=False)
        link = daemon.accept_relay()
        relay.wait(PATIENCE)
        client = world.client("left")
        client.publish(b"k", b"1")
        assert link.receive() == b"MSG k\x001"
        assert link.receive() == WHOAMI + b"\0"
        client.subscribe(b"k")
        asked = gevent.spawn(client.sync, "tree")
        assert link.receive() == b"SUB k"
        assert link.receive() == WHOAMI + b"\0"
        link.send(OWN)
        eventually(lambda: relay.up is not None and relay.up.acknowledged == 1)
        assert not asked.ready(), "that was the acknowledgement"
        link.send(OWN)
        assert asked.get(timeout=PATIENCE) == "tree"
