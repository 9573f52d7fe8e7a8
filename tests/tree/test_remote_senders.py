"""Senders behind a link between two hubs."""

from __future__ import annotations

import pytest
from support import PATIENCE, choose
from worlds import World, key_of, key_of_link, settle

from sbuslib.secrets import Credentials, Namespace
from sbuslib.tree import link
from sbuslib.tree.remote_senders import RemoteSender
from sbuslib.wire import control

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
