"""Which of the messages that were sent up are acknowledged, and which are uncertain."""

from __future__ import annotations

import pytest
from support import PATIENCE, WHOAMI, FakeHub, eventually
from worlds import World, settle

from sbuslib.core import context
from sbuslib.tree import uplink
from sbuslib.tree.acknowledgements import Acknowledgements
from sbuslib.wire import control
from sbuslib.wire.packets import Control, parse


def token_of(question: bytes) -> bytes:
    packet = parse(question)
    assert isinstance(packet, Control)
    assert packet.key == control.SYNC
    token, _, what = (packet.payload or b"").partition(b"\0")
    assert what == b"passed"
    return token


def test_an_answer_acknowledges_all_that_was_sent_before_its_question() -> None:
    open_ = Acknowledgements()
    first, second, third = (token_of(open_.ask(sent, True)) for sent in (5, 8, 12))
    assert (len(open_), open_.asked, open_.acknowledged) == (3, 12, 0)
    open_.answered(second)
    assert (len(open_), open_.acknowledged) == (1, 8)
    for unknown in (first, second, b"", b"nonsense"):
        open_.answered(unknown)
    assert (len(open_), open_.acknowledged) == (1, 8)
    open_.answered(third)
    assert (len(open_), open_.acknowledged, open_.lag) == (0, 12, 0)


def test_a_daemon_without_features_is_asked_whoami() -> None:
    open_ = Acknowledgements()
    assert [open_.ask(sent, False) for sent in (1, 2)] == [WHOAMI + b"\0"] * 2
    open_.answered(control.WHOAMI)
    assert (len(open_), open_.acknowledged) == (1, 1), "its answers come in order"


def test_what_was_not_acknowledged_when_the_link_ends_is_uncertain_once() -> None:
    open_ = Acknowledgements()
    open_.answered(token_of(open_.ask(3, True)))
    late = token_of(open_.ask(7, True))
    assert open_.end(10) == 7
    assert (len(open_), open_.asked, open_.acknowledged) == (0, 10, 10)
    open_.answered(late)
    assert open_.end(10) == 0


def test_messages_without_acknowledgement_are_uncertain_and_not_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink, "ACK_MESSAGES", 10)
    monkeypatch.setattr(uplink, "ACK_PAUSE", 60.0)
    with FakeHub(world.address("c")) as daemon:
        world.hub("left")
        relay = world.relay("left", "c", wait=False)
        link = daemon.accept_relay()
        relay.wait(PATIENCE)
        publisher = world.client("left")
        for n in range(25):
            publisher.publish(b"k", b"%d" % n)
            publisher.sync()
        messages = asked = acknowledged = 0
        while messages < 25:
            packet = link.receive()
            messages += packet.startswith(b"MSG k\0")
            if packet.startswith(WHOAMI) and messages:
                asked += 1
                if asked == 1:
                    acknowledged = messages
                    link.send(WHOAMI + b"\0!/cred/1/2/3")
        world.client("left").sync()
        eventually(lambda: relay.up is not None and relay.up.acknowledged == acknowledged)
        link.close()
        eventually(lambda: relay.state != "joined")
        assert relay.statistics().uncertain == 25 - acknowledged
        again = daemon.accept_relay()
        world.client("left").publish(b"k", b"new")
        while not (packet := again.receive()).startswith(b"MSG"):
            pass
        assert packet == b"MSG k\0new"


def test_messages_that_a_killed_hub_had_not_passed_on_are_uncertain(world: World) -> None:
    world.chain("top", "left")
    slow, publisher = world.peer("top"), world.client("left")
    slow.subscribe(b"k")
    settle(publisher)
    relay = world.relays["left"]
    count = 5_000  # more than the kernel takes for one that does not read
    publisher.publish_many([(b"k", b"%d" % n) for n in range(count)])
    settle(publisher)
    assert world.hubs["top"].statistics().received == count, "the master has taken them all"
    kept = world.hubs["top"].statistics().queued
    assert kept
    world.hubs["top"].stop(0)
    eventually(lambda: relay.state == "outage")
    assert kept <= relay.statistics().uncertain <= count
    assert len(list(iter(slow.receive, b""))) == count - kept


def test_messages_that_were_passed_on_are_not_uncertain(world: World) -> None:
    world.chain("top", "left")
    slow, publisher = world.peer("top"), world.client("left")
    slow.subscribe(b"k")
    settle(publisher)
    relay = world.relays["left"]
    publisher.publish_many([(b"k", b"%d" % n) for n in range(5_000)])
    settle(publisher)
    for n in range(5_000):
        assert slow.receive() == b"MSG k\0%d" % n
    eventually(lambda: relay.up is not None and relay.up.acknowledged == 5_000)
    world.hubs["top"].stop(0)
    eventually(lambda: relay.state == "outage")
    assert relay.statistics().uncertain == 0


def test_one_client_that_does_not_read_does_not_make_all_messages_uncertain(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "PASSED_WAIT", 0.01)
    world.hub("top")
    world.hub("left")
    relay = world.relay("left", "top")
    stopped, publisher = world.peer("top"), world.client("left")
    stopped.subscribe(b"k")
    settle(publisher)
    publisher.publish_many([(b"k", b"%d" % n) for n in range(5_000)])
    settle(publisher)
    assert world.hubs["top"].statistics().queued
    eventually(lambda: relay.up is not None and relay.up.acknowledged == 5_000)
