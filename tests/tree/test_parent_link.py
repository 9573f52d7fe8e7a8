"""One link to the parent: what goes up and what comes down, and wrong packets."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from support import PATIENCE, FakeHub, choose, eventually
from worlds import FAST, World, join, key_of, received, settle

from sbuslib.clients.runtime import run
from sbuslib.secrets import Credentials
from sbuslib.tree import parent_link


def joined(world: World) -> set[str]:
    return {name for name, relay in world.relays.items() if relay.state == "joined"}


def test_a_path_that_changes_above_is_checked_again(world: World) -> None:
    for name in "abc":
        world.hub(name)
    world.relay("c", "b")
    world.relay("b", "a")
    eventually(lambda: len(world.hubs["c"].tree.path) == 3)
    relay = world.relay("a", "c", wait=False)
    eventually(lambda: relay.state == "loop")
    world.relays["b"].stop()
    eventually(lambda: relay.state == "joined")


def test_a_hub_that_stood_apart_is_in_an_outage_once_the_hub_above_has_gone(world: World) -> None:
    for name in "ab":
        world.hub(name, limits=msgspec.structs.replace(FAST, prefix_wait=0.01))
    world.relay("b", "a")
    relay = world.relay("a", "b", wait=False)
    eventually(lambda: relay.state == "loop")
    world.relays["b"].stop()
    world.hubs["b"].stop(0)
    # The try that meets the end of the parent does not tell yet that nobody is there. The next one does.
    client = world.client("a")
    eventually(lambda: client.sync("tree") == "partial")
    assert relay.state in ("connecting", "outage")


def keys_at(client: Any) -> list[bytes]:
    return [message.key for message in received(client)]


def test_a_secret_of_a_client_here_never_goes_up(world: World) -> None:
    world.chain("top", "left")
    tap = world.hubs["top"].tap(secrets=True)
    client, other = world.client("left"), world.client("left")
    client.subscribe(key_of(client) + b"/box")
    other.publish(key_of(client) + b"/box", b"1")
    assert client.receive(timeout=PATIENCE).payload == b"1"
    settle(other)
    assert len(tap) == 0


@pytest.mark.parametrize("relays", [(), (12_345,)], ids=["announce", "prune"])
def test_changed_exports_and_imports_apply_at_once(world: World, relays: tuple[int, ...]) -> None:
    world.hub("top", relays=relays)
    world.hub("left")
    parent, children = world.client("top"), world.client("left")
    world.uids["top"] = relays[0] if relays else os.getuid()
    relay = world.relay("left", "top", export=[b"a/"], import_=[b"c/"])
    parent.subscribe(b"", b"b/1")
    wanted = children.subscribe(b"*/x", b"c/1")
    for epoch, export, import_, up, down in (
        (1, [b"a/"], [b"c/"], [b"a/1"], [b"c/1", b"c/x"]),
        (2, [b"b/", b"a/*"], None, [b"a/1", b"b/1"], [b"c/1", b"c/x", b"d/x"]),
        (3, None, [b"d/*"], [b"a/1", b"b/1", b"c/2"], [b"d/x"]),
        (3, [b"a/"], [b"d/*"], [b"a/1"], [b"d/x"]),
        (4, [], [], [], []),
        (5, [b"c/"], [b"c/x", b"d/"], [b"c/2"], [b"c/x", b"d/x"]),
    ):
        relay.reconfigure(world.address("top"), export=export, import_=import_)
        eventually(lambda: (relay.epoch, relay.state) == (epoch, "joined"))  # noqa: B023
        settle(parent, children)
        received(parent)
        for key in (b"a/1", b"b/1", b"c/2"):
            children.publish(key)
        settle(children, parent)
        assert keys_at(parent) == up
        for key in (b"c/1", b"c/x", b"d/x", b"d/1"):
            parent.publish(key)
        settle(parent, children)
        assert keys_at(children) == down
        received(parent)
    assert relay.statistics().uncertain == 0, "another import_ makes the relay leave in good order"
    assert relay.statistics().patterns == 2
    wanted.unsubscribe()
    eventually(lambda: relay.statistics().patterns == 0)


@pytest.mark.parametrize("other", [True, False], ids=["of another user", "of the same user"])
@pytest.mark.parametrize("export", [None, [b"a/"]], ids=["everything", "bounded"])
def test_a_relay_without_exports_to_the_hub_of_another_user_logs_that_once(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    other: bool,
    export: list[bytes] | None,
) -> None:
    if other:
        monkeypatch.setattr(
            parent_link, "peer_credentials", lambda sock: Credentials(gid=1, uid=os.getuid() + 1, pid=1)
        )
    for name in ("top", "left"):
        world.hub(name)
    relay = world.relay("left", "top", export=export)
    world.hubs["top"].stop(0)
    eventually(lambda: relay.state != "joined")
    world.hubs["top"].start()
    relay.wait(PATIENCE)
    told = [record.getMessage() for record in caplog.records if "name what may" in record.getMessage()]
    assert len(told) == (1 if other and export is None else 0)


def test_all_patterns_are_told_again_however_many(world: World) -> None:
    world.hub("top")
    world.hub("left", limits=msgspec.structs.replace(FAST, queued_answers=64))
    world.relay("left", "top")
    client = world.client("left")
    count = 3 * 64  # more than may wait for the parent at a time
    for n in range(count):
        run(client._connection.change(lambda n=n: [b"SUB k/%d" % n], None))  # type: ignore[misc]
    settle(client)
    world.hubs["top"].stop(0)
    top = world.hub("top")
    eventually(lambda: top.statistics().patterns == count + 1)  # and the link's secrets


RUBBISH = {
    b"nonsense": "unknown verb",
    b"MSG no end": "message without NUL",
    b"SUB k": "not for a relay",
    b"MSG a/!/b\0": "reserved token in a key",
    b"CMSG from\0": "wrapper without packet",
    b"CMSG from\0!/cred/1/2/3\0SUB k": "wrapped packet is no message",
    b"CMSG from\0somebody\0MSG k\0": "malformed sender",
    b"CMSG hub/features\0path=" + b",".join([b"1"] * 257): "path too long",
    b"CMSG interest/on\0master": "unknown mode",
    b"CMSG interest/sync\0" + bytes(65): "token too long",
    b"CMSG notice/lost\0nonsense": "malformed notice",
}


@pytest.mark.parametrize(("packet", "reason"), RUBBISH.items())
def test_a_wrong_packet_from_above_is_logged_once_and_does_not_end_the_link(
    world: World, caplog: pytest.LogCaptureFixture, packet: bytes, reason: str
) -> None:
    with FakeHub(world.address("top")) as master:
        link = join(world, master)
        client = world.client("left")
        client.subscribe(b"k")
        for _ in range(3):
            link.send(packet)
            link.send(b"MSG k\0")
            client.receive(timeout=PATIENCE)
        statistics = world.relays["left"].statistics()
        assert (statistics.state, statistics.epoch, statistics.mode) == ("joined", 1, "announce")
        assert statistics.dropped == {reason: 3}
        told = [record.message for record in caplog.records]
        assert len(told) == 1
        assert f": {reason}; user " in told[0]
        assert told[0].endswith(f", at {world.address('top')}")


def test_the_longest_message_comes_down_with_its_sender(world: World) -> None:
    world.chain("top", "left")
    client = world.client("top")
    choose(client, b"senders/on")
    client.subscribe(b"k")
    settle(client)
    payload = bytes(409_600 - len(b"MSG k\0"))
    world.client("left").publish(b"k", payload)
    message = client.receive(timeout=PATIENCE)
    assert message.payload == payload
    assert message.sender is not None
