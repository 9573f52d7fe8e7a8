"""Who sent what came over a link between two hubs: never the link itself."""

from __future__ import annotations

import contextlib

import gevent
import pytest
from support import PATIENCE, choose, eventually
from worlds import RELAY, STRANGER, World, key_of, key_of_link, received, settle

from sbuslib import Client
from sbuslib.limits import PACKET_BYTES
from sbuslib.secrets import OVERFLOW_ID, Credentials, Namespace, stranger
from sbuslib.tree import link
from sbuslib.tree.remote_senders import RemoteSender
from sbuslib.wire import control
from sbuslib.wire.batches import pack
from sbuslib.wire.packets import check_key

LINK = Credentials(gid=1, uid=2, pid=3)


def test_a_link_is_never_held_back(world: World) -> None:
    world.chain("top", "left")
    slow = world.client("top", soft="block")
    slow.subscribe(b"k")
    other = world.client("top")
    other.subscribe(b"other")
    settle(slow, other)
    publisher = world.client("left")
    publisher.publish_many([(b"k", bytes(10_000)) for _ in range(300)])
    publisher.publish(b"other", b"on time")
    assert other.receive(timeout=PATIENCE).payload == b"on time"


def test_the_key_of_a_sender_follows_the_key_of_its_link() -> None:
    namespace = Namespace()
    remote_sender = RemoteSender(LINK, b"/!/cred/4/5/6", namespace)
    for prefix in (b"", b"!/cred/7/8/9/", b""):
        namespace.prefix = prefix
        assert remote_sender.key == prefix + b"!/cred/1/2/3/!/cred/4/5/6"
        assert remote_sender.wrapper == control.wrapper_from(remote_sender.key)


@pytest.mark.parametrize("here", range(4))
def test_senders_are_told_over_hubs_whose_own_clients_do_not_ask_for_them(world: World, here: int) -> None:
    names = ["h0", "h1", "h2", "h3"]
    world.chain(*names)
    world.hub("beside")
    world.relay("beside", "h1")
    cursor = world.client(names[here])
    cursor.subscribe(b"k")
    choose(cursor, b"senders/on")
    publishers = {name: world.client(name) for name in [*names, "beside"]}
    settle(cursor)
    for publisher in publishers.values():
        publisher.publish(b"k")
        assert cursor.receive(timeout=PATIENCE).sender == key_of(publisher)
    choose(cursor, b"senders/off")
    cursor.sync()
    publishers["h3"].publish(b"k", b"plain")
    assert cursor.receive(timeout=PATIENCE).sender is None


def test_senders_that_are_remembered_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_SENDERS", 3)
    world.hub("top")
    raw = world.link("top")
    key = key_of_link(raw)
    (below,) = world.hubs["top"].tree.links.values()
    for names, known in ((b"aab", b"ab"), (b"c", b"abc"), (b"d", b"d"), (b"ad", b"da")):
        for name in names:
            raw.send(b"CMSG from\0%b/!/cred/1/2/%d\0MSG k\0" % (key, name))
        raw.barrier()
        assert [int(name.rpartition(b"/")[2]) for name in below.senders] == sorted(known, key=known.index)


def publish_on(publisher: Client) -> None:
    """Publish without end, for a greenlet."""
    while True:
        publisher.publish_many([(b"k", b"some")] * 3)
        publisher.publish(b"k", b"one")
        gevent.sleep(0)


@pytest.mark.parametrize("hops", [1, 2])
def test_the_first_messages_for_a_service_that_asks_for_senders_have_theirs(world: World, hops: int) -> None:
    names = ["top", "middle", "low"][: hops + 1]
    world.chain(*names)
    before = world.client("top")
    before.subscribe(b"k")
    publisher = world.client(names[-1])
    key = key_of(publisher)
    settle(before)
    publishing = gevent.spawn(publish_on, publisher)
    try:
        for _ in range(10):
            service = world.client("top", senders=True)
            service.subscribe(b"k")
            for _ in range(50):
                assert service.receive(timeout=PATIENCE).sender == key
            service.close()
            received(before)
    finally:
        publishing.kill()


@pytest.mark.promise(
    "protocol.md", "What came over a link between hubs is never shown under the credential of the link"
)
def test_what_was_kept_in_an_outage_has_its_sender(world: World) -> None:
    world.chain("top", "middle", "low")
    service = world.client("top", senders=True, reconnect=True)
    service.subscribe(b"k")
    publisher = world.client("low")
    settle(service, publisher)
    world.hubs["top"].stop(0)
    eventually(lambda: world.relays["middle"].state == "outage")
    publisher.publish_many([(b"k", b"%d" % n) for n in range(20)])
    for n in range(20, 30):
        publisher.publish(b"k", b"%d" % n)
    publisher.sync()
    up = world.relays["middle"].parent.up
    eventually(lambda: len(up.waiting) == 30)
    world.hub("top")
    for n in range(30):
        message = service.receive(timeout=PATIENCE)
        assert (message.payload, message.sender) == (b"%d" % n, key_of(publisher))


@pytest.mark.parametrize("user", [0, RELAY, STRANGER], ids=["announce", "prune", "plain"])
def test_a_hub_below_names_its_clients_however_it_is_served(world: World, user: int) -> None:
    world.hub("top", relays=[RELAY])
    world.hub("low")
    world.uids["top"] = user
    relay = world.relay("low", "top")
    world.uids.clear()
    service, publisher = world.client("top", senders=True), world.client("low", senders=True)
    service.subscribe(b"k")
    publisher.subscribe(b"k")
    settle(service, publisher)
    publisher.publish(b"k", b"up")
    publisher.publish_many([(b"k", b"%d" % n) for n in range(20)])
    for client in (service, publisher):
        assert {client.receive(timeout=PATIENCE).sender for _ in range(21)} == {key_of(publisher)}
    service.publish(b"k", b"down")
    for client in (service, publisher):
        message = client.receive(timeout=PATIENCE)
        assert (message.payload, message.sender) == (b"down", key_of(service)), "nothing came back to the child"
    assert key_of(publisher).count(b"!/cred/") == 2
    assert relay.epoch == 1


@pytest.mark.promise(
    "protocol.md", "What came over a link between hubs is never shown under the credential of the link"
)
@pytest.mark.parametrize("user", [None, RELAY, STRANGER], ids=["announce", "prune", "plain"])
def test_what_a_link_does_not_name_is_from_somebody_unknown_behind_it(world: World, user: int | None) -> None:
    world.hub("top", relays=[RELAY])
    service, inbox = world.client("top", senders=True), world.hubs["top"].subscribe(b"k")
    service.subscribe(b"k")
    settle(service)
    link = world.peer("top") if user is None else world.peer_of("top", user)
    link.publish(b"k", b"before it said that it is a link")
    link.send(b"CMSG interest/on", b"CMSG batch/on")
    key = key_of_link(link)
    link.publish(b"k", b"after it")
    link.send(*(packet for packet, _ in pack([(b"k", b"in a"), (b"k", b"batch")], check_key, PACKET_BYTES)))
    unknown = key + b"/!/cred/65534/65534/0"
    for receive in (service.receive, inbox.receive):
        assert [receive(timeout=PATIENCE).sender for _ in range(4)] == [key, unknown, unknown, unknown]
    assert stranger(unknown, key_of(service), b"/") == (OVERFLOW_ID if user is None else user)


def test_a_relay_that_is_served_as_a_client_is_disconnected_for_a_forged_sender(world: World) -> None:
    world.hub("top")
    service = world.client("top", senders=True)
    service.subscribe(b"k")
    for name in (b"!/cred/0/0/1", b"%b", b"%b/x", b"%b0/!/cred/1/2/3"):
        plain = world.peer_of("top", STRANGER)
        plain.send(b"CMSG interest/on")
        key = key_of_link(plain)
        plain.send(b"CMSG from\0%b\0MSG k\0forged" % name.replace(b"%b", key))
        assert plain.is_disconnected()
    assert received(service) == []


def test_a_sender_of_a_hub_whose_ids_the_kernel_cannot_tell_is_known_by_its_link(world: World) -> None:
    """Such as of one in a container, beyond which keys begin as at a root."""
    world.hub("top", trusted=[OVERFLOW_ID])
    world.hub("low")
    world.uids["top"] = OVERFLOW_ID
    relay = world.relay("low", "top")
    world.uids.clear()
    parent, below = world.client("top", senders=True), world.client("low", senders=True)
    parent.subscribe(b"k")
    below.subscribe(b"k")
    settle(parent, below)
    below.publish(b"k")
    (link,) = world.hubs["top"].tree.links
    assert parent.receive(timeout=PATIENCE).sender == link.key + b"/" + key_of(below)
    assert below.receive(timeout=PATIENCE).sender == key_of(below)
    parent.publish(b"k")
    assert below.receive(timeout=PATIENCE).sender == b"", "its key above would be that of another here"
    assert relay.epoch == 1


def test_a_link_may_name_senders_by_the_keys_that_it_had(world: World) -> None:
    top = world.hub("top")
    service = world.client("top", senders=True, on_notice=lambda notice: None)
    service.subscribe(b"k")
    link = world.link("top")
    keys = [key_of_link(link)]
    for prefix in (b"!/cred/1/1/1/", b"!/cred/2/2/2/"):
        top.tree.set_prefix(prefix)
        keys.append(key_of_link(link))
    assert len(set(keys)) == 3
    for key in keys:
        link.send(b"CMSG from\0%b/!/cred/4/5/6\0MSG k\0" % key)
        assert service.receive(timeout=PATIENCE).sender == keys[-1] + b"/!/cred/4/5/6"


def test_a_name_that_is_too_deep_for_the_hub_above_goes_no_further(world: World) -> None:
    world.chain("over", "top")
    service = world.client("over", senders=True)
    service.subscribe(b"k")
    settle(service)
    link = world.link("top")
    key = key_of_link(link)
    for deep in (60, 63):
        link.send(b"CMSG from\0%b%b\0MSG k\0%d" % (key, b"/!/cred/1/2/3" * deep, deep))
    link.publish(b"k", b"end")
    assert [service.receive(timeout=PATIENCE).payload for _ in range(2)] == [b"60", b"end"]
    assert world.relays["top"].epoch == 1


def test_a_link_may_send_no_longer_messages_than_a_client(world: World) -> None:
    world.chain("over", "top")
    service = world.client("over", senders=True)
    service.subscribe(b"k")
    settle(service)
    publisher, link = world.client("top"), world.link("top")
    longest = bytes(PACKET_BYTES - len(b"MSG k\0"))
    publisher.publish(b"k", longest)
    link.publish(b"k", longest)
    assert [service.receive(timeout=PATIENCE).payload for _ in range(2)] == [longest, longest]
    with contextlib.suppress(OSError):
        link.publish(b"k", longest + b"x")
    assert not [packet for packet in iter(link.receive, b"") if packet.startswith(b"MSG")]
    settle(service)
    assert received(service) == []
    assert world.relays["top"].epoch == 1
