"""Trees of hubs: credentials, messages and senders, questions that go round, and the object."""

from __future__ import annotations

import itertools
import os
from typing import Any

import gevent
import msgspec
import pytest
from support import PATIENCE, WHOAMI, FakeHub, PlainDaemon, eventually, own_key, python
from worlds import FAST, World, key_of, received, settle

from sbuslib import Hub, Relay
from sbuslib.errors import DisconnectedError, StateError, UsageError
from sbuslib.secrets import Credentials
from sbuslib.tree import above_role, tree

# -- prefixes and secrets ---------------------------------------------------------------------------


def test_credential_keys_at_each_depth_of_a_tree(world: World) -> None:
    world.chain("top", "middle", "bottom")
    keys = [key_of(world.client(name)) for name in ("top", "middle", "bottom")]
    assert [key.count(b"!/cred/") for key in keys] == [1, 2, 3]
    middle = world.hubs["middle"].context.router.namespace.prefix
    assert keys[1].startswith(middle)
    assert keys[2].startswith(middle)


def test_secrets_cross_the_tree_in_every_direction(world: World) -> None:
    world.chain("top", "left")
    world.hub("right")
    world.relay("right", "top")
    world.hub("below")
    world.relay("below", "left")
    clients = {name: world.client(name) for name in ("top", "left", "right", "below")}
    keys = {name: key_of(client) + b"/box" for name, client in clients.items()}
    for name, client in clients.items():
        client.subscribe(keys[name])
    for sender, to in itertools.permutations(clients, 2):
        clients[sender].publish(keys[to], b"from " + sender.encode())
        assert clients[to].receive(PATIENCE).payload == b"from " + sender.encode()
    for client in clients.values():
        assert received(client) == []


def test_no_client_reads_secrets_of_another(world: World) -> None:
    world.chain("top", "left")
    world.hub("right")
    world.relay("right", "top")
    key = key_of(world.client("left")) + b"/box"
    for name in ("top", "left", "right"):
        thief = world.peer(name)
        thief.send(b"SUB " + key)
        assert thief.is_disconnected()
    everything = world.client("right")
    everything.subscribe(b"")
    world.client("top").publish(key, b"secret")
    settle(everything)
    assert received(everything) == []


def test_a_secret_under_the_own_prefix_never_goes_up(world: World) -> None:
    world.chain("top", "left")
    tap = world.hubs["top"].tap(secrets=True)
    client, other = world.client("left"), world.client("left")
    client.subscribe(key_of(client) + b"/box")
    other.publish(key_of(client) + b"/box", b"1")
    assert client.receive(PATIENCE).payload == b"1"
    settle(other)
    assert len(tap) == 0


def test_whoami_waits_for_the_first_prefix(world: World) -> None:
    world.hub("left")
    world.relay("left", "top", wait=False)
    peer = world.peer("left")
    peer.send(b"CMSG hub/features", WHOAMI)
    assert peer.receive().startswith(b"CMSG hub/features\0")
    world.hub("top")
    assert peer.receive().count(b"!/cred/") == 3, "the question's own, and two credentials"


def test_whoami_waits_no_longer_than_prefix_wait(world: World) -> None:
    world.hub("left", limits=msgspec.structs.replace(FAST, prefix_wait=0.01))
    world.relay("left", "top", wait=False)
    assert key_of(world.client("left")).count(b"!/cred/") == 1


def test_an_outage_keeps_the_prefix_and_a_new_one_is_told(world: World) -> None:
    world.chain("top", "left")
    notices: list[object] = []
    told = world.client("left", on_notice=notices.append)
    before = key_of(told)
    untold = world.peer("left")
    untold.send(WHOAMI)
    own = untold.receive().split(b"\0")[1]
    untold.subscribe(own + b"/box")
    world.hubs["top"].stop(0)
    eventually(lambda: world.relays["left"].state == "outage")
    assert key_of(told) == before
    world.hub("top")  # which gives the link another pid
    world.relays["left"].wait(PATIENCE)
    assert untold.is_disconnected()
    eventually(lambda: (told.sync(), notices)[1])
    assert told.credentials != before
    assert told.credentials == key_of(told)
    told.subscribe(told.credentials + b"/box")
    world.client("top").publish(told.credentials + b"/box", b"found")
    assert told.receive(PATIENCE).payload == b"found"


def test_the_embedder_stands_under_the_prefix(world: World) -> None:
    world.chain("top", "left")
    hub = world.hubs["left"]
    assert hub.whoami() == hub.context.router.namespace.prefix + own_key()
    inbox = hub.subscribe(hub.whoami() + b"/box")
    world.client("top").publish(hub.whoami() + b"/box", b"1")
    assert inbox.get(PATIENCE).payload == b"1"
    world.relays.pop("left").stop()
    assert hub.whoami() == own_key()
    with pytest.raises(DisconnectedError):
        inbox.get(PATIENCE)


# -- messages and senders ---------------------------------------------------------------------------


def test_messages_go_up_down_and_across_once_and_in_order(world: World) -> None:
    world.chain("top", "left", "below")
    world.hub("right")
    world.relay("right", "top")
    clients = {name: world.client(name) for name in ("top", "left", "below", "right")}
    for client in clients.values():
        client.subscribe(b"room/")
        client.subscribe(b"")
    settle(*clients.values())
    for name, client in clients.items():
        client.publish_many([(b"room/%d" % n, name.encode()) for n in range(100)])
    settle(*clients.values())
    for client in clients.values():
        mine: dict[bytes, list[bytes]] = {}
        for _ in range(400):
            message = client.receive(PATIENCE)
            mine.setdefault(message.payload, []).append(message.key)
        assert all(keys == [b"room/%d" % n for n in range(100)] for keys in mine.values())
        assert len(mine) == 4
    settle(*clients.values())
    assert [received(client) for client in clients.values()] == [[], [], [], []]


def test_senders_are_named_by_what_each_kernel_says(world: World) -> None:
    world.chain("top", "left", "below")
    clients = {name: world.client(name) for name in ("top", "left", "below")}
    for client in clients.values():
        client.senders()
        client.subscribe(b"room/")
    settle(*clients.values())
    for publisher in clients.values():
        publisher.publish(b"room/1", b"x")
        for client in clients.values():
            assert client.receive(PATIENCE).sender == key_of(publisher)
    for client in clients.values():
        client.senders(False)
    settle(*clients.values())
    assert all(not hub.context.senders for hub in world.hubs.values())


def test_the_longest_message_crosses_with_its_sender(world: World) -> None:
    world.chain("top", "left")
    client = world.client("top")
    client.senders()
    client.subscribe(b"k")
    settle(client)
    payload = bytes(409_600 - len(b"MSG k\0"))
    world.client("left").publish(b"k", payload)
    message = client.receive(PATIENCE)
    assert message.payload == payload
    assert message.sender is not None


# -- the object -------------------------------------------------------------------------------------


def test_a_hub_has_one_relay(world: World) -> None:
    world.chain("top", "left")
    with pytest.raises(StateError, match="one relay a hub"):
        Relay(world.hubs["left"], world.address("top")).start()
    with pytest.raises(StateError):
        world.relays["left"].start()


def test_bad_arguments(world: World) -> None:
    hub = Hub(world.address("x"))
    wrong: list[dict[str, Any]] = [
        {"upstream": []},
        {"upstream": ""},
        {"upstream": "/a", "export": b"x"},
        {"upstream": "/a", "import_": [b"\0"]},
    ]
    for options in wrong:
        with pytest.raises(UsageError):
            Relay(hub, **options)
    with pytest.raises(StateError):
        Relay(hub, "/a").start()
    with pytest.raises(UsageError):
        Hub(world.address("x"), relays="me")
    with pytest.raises(UsageError, match="group"):
        Hub(world.address("x"), relays=["@no such group"])


def test_a_group_of_relays(world: World) -> None:
    world.hub("top", relays=[f"@{os.getgid()}"])
    world.hub("left")
    world.uids["top"] = 12_345
    assert world.relay("left", "top").statistics().mode == "prune"


def test_a_hub_whose_relay_stops_is_a_root(world: World) -> None:
    world.chain("top", "left")
    client = world.client("left")
    world.relays["left"].stop()
    assert world.relays["left"].state == "stopped"
    assert key_of(client).count(b"!/cred/") == 1
    assert client.sync("tree") == "tree"
    assert world.hubs["left"].tree.path == (world.hubs["left"].hub_id,)
    eventually(lambda: not world.hubs["top"].tree.links)
    assert world.hubs["top"].context.router.watch is None
    world.relay("left", "top")
    assert key_of(client).count(b"!/cred/") == 2


FORKED = """
import os, sys
import gevent, gevent.os
from sbuslib import Client, Hub, Limits, Relay
from sbuslib.errors import StateError

folder, fork, master = sys.argv[1:]
limits = Limits(settle=0.001, link_pause=0.001, link_pause_most=0.002)
top, below = Hub(folder + "/top", limits=limits), Hub(folder + "/below", limits=limits)
below.start()
if master == "there":
    top.start()
relay = Relay(below, top.address).start()
if master == "there":
    relay.wait(10)
else:
    gevent.sleep(0.01)  # it has tried, and pauses
child = {"os": os.fork, "gevent": gevent.os.fork}[fork]()
if not child:
    relay.stop()
    for verb in (relay.start, relay.wait):
        try:
            verb()
            print("no error")
        except StateError:
            pass
    with Hub(folder + "/other") if master == "there" else top as hub:
        gevent.sleep(0.02)  # ten times the longest pause
        print(relay.state, len(hub._clients.connections.values()), end=" ", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
if master == "away":
    top.start()
    relay.wait(10)
with Client(top.address) as above, Client(below.address) as client:
    client.subscribe(b"k")
    assert client.sync("tree") == "tree"
    above.publish(b"k", b"1")
    print(client.receive(10).payload.decode(), relay.epoch)
"""


@pytest.mark.parametrize("fork", ["os", "gevent"])
@pytest.mark.parametrize("master", ["there", "away"])
def test_a_forked_child_has_no_relay_and_leaves_its_parents_alone(folder: str, fork: str, master: str) -> None:
    code = f"import logging; logging.disable()\n{FORKED}"
    assert python("-c", code, folder, fork, master) == "stopped 0 1 1\n"


def test_waiting_for_a_relay_that_is_stopped_ends(world: World) -> None:
    world.hub("left")
    relay = world.relay("left", "top", wait=False)
    waiting = gevent.spawn(relay.wait)
    gevent.sleep(0)
    relay.stop()
    with pytest.raises(StateError, match="start it first"):
        waiting.get(timeout=PATIENCE)


# -- several addresses ------------------------------------------------------------------------------


def is_at(world: World, name: str) -> bool:
    statistics = world.relays["left"].statistics()
    return statistics.state == "joined" and statistics.upstream == world.address(name)


def test_a_relay_goes_back_to_the_first_address_and_loses_nothing(world: World) -> None:
    world.hub("second")
    world.hub("left")
    relay = world.relay("left", "first", "second")
    publisher = world.client("left")
    below = world.client("left")
    below.subscribe(b"down")
    second = world.client("second")
    second.subscribe(b"up")
    settle(publisher, below, second)
    assert is_at(world, "second")
    world.hub("first")
    first = world.client("first")
    first.subscribe(b"up")
    published = 0
    while not is_at(world, "first"):
        for _ in range(20):
            publisher.publish(b"up", b"%d" % published)
            second.publish(b"down", b"")
            published += 1
        publisher.sync()
        second.sync()
    settle(publisher)
    here, there = ([int(message.payload) for message in received(client)] for client in (second, first))
    assert here, "it went on at the second while it waited"
    assert here + there == list(range(published))
    statistics = relay.statistics()
    assert (statistics.epoch, statistics.lost, statistics.uncertain, statistics.lost_above) == (2, 0, 0, 0)
    counts = world.hubs["second"].statistics()
    to_second = len(here)
    assert counts.delivered == to_second + len(received(below)), "what was sent down before it left came"


def test_messages_that_the_hub_it_leaves_does_not_acknowledge_are_uncertain(world: World) -> None:
    with FakeHub(world.address("second")) as daemon:
        world.hub("left", limits=msgspec.structs.replace(FAST, link_wait=0.05))
        relay = world.relay("left", "first", "second", wait=False)
        link = daemon.accept_relay()
        relay.wait(PATIENCE)
        publisher = world.client("left")
        for n in range(10):
            publisher.publish(b"k", b"%d" % n)
        publisher.sync()
        eventually(lambda: relay.statistics().forwarded == 10)
        world.hub("first")
        client = world.client("first")
        client.subscribe(b"k")
        eventually(lambda: is_at(world, "first"))
        publisher.publish(b"k", b"10")
        assert client.receive(PATIENCE).payload == b"10"
        statistics = relay.statistics()
        assert (statistics.lost, statistics.uncertain) == (0, 10)
        while link.receive():  # until the end
            pass


def test_a_hub_that_does_not_keep_connections_is_not_gone_back_to(world: World) -> None:
    world.hub("second")
    world.hub("left", limits=msgspec.structs.replace(FAST, link_pause_most=0.05))
    relay = world.relay("left", "first", "second")
    with PlainDaemon(world.address("first")) as daemon:
        for seen in range(1, 4):
            eventually(lambda seen=seen: daemon.accepted == seen)  # type: ignore[misc]
            daemon.disconnect()
    assert relay.epoch == 1
    assert is_at(world, "second")


def test_a_hub_that_is_below_this_one_is_not_gone_back_to(world: World) -> None:
    for name in ("second", "left", "first"):
        world.hub(name, limits=msgspec.structs.replace(FAST, prefix_wait=0.001))
    world.hubs["first"].stop(0)
    relay = world.relay("left", "first", "second")
    world.hubs["first"].start()
    world.relay("first", "left")
    looks = world.hubs["first"].statistics
    before = looks().clients_total
    eventually(lambda: looks().clients_total > before + 2)
    assert relay.epoch == 1
    assert is_at(world, "second")


def test_settings_that_change_while_it_leaves_a_hub_stop_nothing(world: World) -> None:
    with FakeHub(world.address("second")) as daemon:
        world.hub("left")
        relay = world.relay("left", "first", "second", wait=False)
        link = daemon.accept_relay()
        relay.wait(PATIENCE)
        world.client("left").publish(b"k", b"1")  # which is not acknowledged yet
        eventually(lambda: relay.statistics().forwarded == 1)
        world.hub("first")
        eventually(lambda: relay.up is not None and not relay.up.open)
        relay.reconfigure(world.address("second"))
        while not (packet := link.receive()).startswith(WHOAMI):
            assert packet
        link.send(WHOAMI + b"\0!/cred/1/2/3")
        while link.receive():
            pass
        link.close()
        daemon.accept_relay()
        eventually(lambda: relay.up is not None and relay.up.open)
        assert relay.statistics().uncertain == 0


def test_the_hub_that_it_leaves_may_end_the_link_itself(world: World) -> None:
    with FakeHub(world.address("second")) as daemon:
        world.hub("left")
        relay = world.relay("left", "first", "second", wait=False)
        link = daemon.accept_relay()
        relay.wait(PATIENCE)
        world.client("left").publish(b"k", b"1")  # which is never acknowledged
        eventually(lambda: relay.statistics().forwarded == 1)
        world.hub("first")
        eventually(lambda: relay.up is not None and not relay.up.open)
        link.close()
        eventually(lambda: is_at(world, "first"))


# -- other settings while it runs -----------------------------------------------------------------------


def keys_at(client: Any) -> list[bytes]:
    return [message.key for message in received(client)]


@pytest.mark.parametrize("relays", [(), (12_345,)], ids=["announce", "prune"])
def test_other_bounds_are_in_force_without_a_new_link(world: World, relays: tuple[int, ...]) -> None:
    world.hub("top", relays=relays)
    world.hub("left")
    world.uids["top"] = relays[0] if relays else os.getuid()
    relay = world.relay("left", "top", export=[b"a/"], import_=[b"c/"])
    world.uids.clear()
    above, below = world.client("top"), world.client("left")
    above.subscribe(b"", b"b/1")
    below.subscribe(b"*/x", b"c/1")
    settle(above, below)
    for export, import_, up, down in (
        ([b"a/"], [b"c/"], [b"a/1"], [b"c/1", b"c/x"]),
        ([b"b/", b"a/*"], None, [b"a/1", b"b/1"], [b"c/1", b"c/x", b"d/x"]),
        (None, [b"d/*"], [b"a/1", b"b/1", b"c/2"], [b"d/x"]),
        ([], [], [], []),
        ([b"c/"], [b"c/x", b"d/"], [b"c/2"], [b"c/x", b"d/x"]),
    ):
        relay.reconfigure(world.address("top"), export=export, import_=import_)
        settle(above, below)
        received(above)
        for key in (b"a/1", b"b/1", b"c/2"):
            below.publish(key)
        settle(below, above)
        assert keys_at(above) == up
        for key in (b"c/1", b"c/x", b"d/x", b"d/1"):
            above.publish(key)
        settle(above, below)
        assert keys_at(below) == down
        received(above)
    assert relay.epoch == 1
    below.unsubscribe(b"*/x", b"c/1")
    eventually(lambda: len(relay.above.interest) == 0)
    assert relay.above.interest.wanted == 0


def test_hubs_below_are_told_of_other_bounds(world: World) -> None:
    world.chain("top", "left", "below")
    above, far = world.client("top"), world.client("below")
    above.subscribe(b"*/1")
    settle(above, far)
    for one in world.relays.values():
        eventually(lambda: one.up is not None and one.up.open)  # noqa: B023
    relay = world.relays["left"]
    for export, up in ([b"a/"], [b"a/1"]), (None, [b"a/1", b"b/1"]), ([b"b/*"], [b"b/1"]), ([], []):
        relay.reconfigure(world.address("top"), export=export)
        eventually(lambda: not relay.above.demand._anew)
        settle(above, far)
        for key in (b"a/1", b"b/1"):
            far.publish(key)
        settle(far, above)
        assert keys_at(above) == up


def test_bounds_that_change_while_patterns_are_still_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "STEPS_A_TURN", 1)
    world.chain("top", "left")
    world.relays["left"].stop()
    below, above = world.client("left"), world.client("top")
    below.subscribe(*(b"%d/%d" % (n % 2, n) for n in range(200)))
    relay = world.relay("left", "top", import_=[b"0/"])
    for import_ in ([b"1/"], None, [b"1/*"]):
        relay.reconfigure(world.address("top"), import_=import_)
        below.unsubscribe(b"0/0")
        below.subscribe(b"0/0")
    settle(below)
    for n in range(4):
        above.publish(b"%d/%d" % (n % 2, n))
    settle(above, below)
    assert keys_at(below) == [b"1/1", b"1/3"]
    assert relay.above.interest.wanted == 100


def test_a_relay_moves_to_another_hub_and_loses_nothing(world: World) -> None:
    for name in ("one", "two", "left"):
        world.hub(name)
    relay = world.relay("left", "one")
    clients = {name: world.client(name) for name in ("one", "two", "left")}
    for name in ("one", "two"):
        clients[name].subscribe(b"k")
    settle(*clients.values())
    for n in range(50):
        clients["left"].publish(b"k", b"%d" % n)
    relay.reconfigure(world.address("two"))
    for n in range(50, 100):
        clients["left"].publish(b"k", b"%d" % n)
    eventually(lambda: is_at(world, "two"))
    settle(clients["left"], clients["two"])
    first, second = ([message.payload for message in received(clients[name])] for name in ("one", "two"))
    assert [*first, *second] == [b"%d" % n for n in range(100)]
    assert (relay.statistics().lost, relay.statistics().uncertain) == (0, 0)


def test_a_hub_above_that_is_still_configured_is_not_left(world: World) -> None:
    for name in ("one", "left"):
        world.hub(name)
    relay = world.relay("left", "one")
    relay.reconfigure([world.address("elsewhere"), world.address("one")])
    client = world.client("left")
    settle(client)
    assert (relay.epoch, is_at(world, "one")) == (1, True)
    world.hub("elsewhere")
    eventually(lambda: is_at(world, "elsewhere"))


def test_wrong_settings_of_a_relay_change_nothing(world: World) -> None:
    world.chain("top", "left")
    relay = world.relays["left"]
    with pytest.raises(UsageError):
        relay.reconfigure([], export=[])
    with pytest.raises(UsageError):
        relay.reconfigure(world.address("elsewhere"), import_=[b"\0"])
    client, above = world.client("left"), world.client("top")
    client.subscribe(b"k")
    settle(client)
    above.publish(b"k")
    assert client.receive(PATIENCE).key == b"k"


# -- what goes up to another user's hub -----------------------------------------------------------------


def of_another_user(sock: Any) -> Credentials:
    return Credentials(gid=1, uid=os.getuid() + 1, pid=1)


@pytest.mark.parametrize("other", [True, False], ids=["of another user", "of the same user"])
@pytest.mark.parametrize("export", [None, [b"a/"]], ids=["everything", "bounded"])
def test_a_relay_without_exports_says_once_that_all_goes_up_to_another_user(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    other: bool,
    export: list[bytes] | None,
) -> None:
    if other:
        monkeypatch.setattr(above_role, "peer_credentials", of_another_user)
    for name in ("top", "left"):
        world.hub(name)
    relay = world.relay("left", "top", export=export)
    world.hubs["top"].stop(0)
    eventually(lambda: relay.state != "joined")
    world.hubs["top"].start()
    relay.wait(PATIENCE)
    told = [record.getMessage() for record in caplog.records if "name what may" in record.getMessage()]
    assert len(told) == (1 if other and export is None else 0)
