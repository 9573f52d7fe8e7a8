"""Settings that can change while a hub serves: who is disconnected, what is withdrawn, and what goes on as before."""

from __future__ import annotations

import os
from unittest.mock import Mock

import pytest
from gevent.event import Event
from support import PATIENCE, Connect, MakeHub, choose, eventually
from worlds import World

from sbuslib import Client, Hub
from sbuslib.core.settings import Settings
from sbuslib.errors import StateError, UsageError
from sbuslib.keys.policy import Policy, Rule
from sbuslib.secrets import Credentials
from sbuslib.wire.control import Kicked, Notice, Withdrawn


def policy(*rules: Rule) -> Policy:
    return Policy(rules, lambda uid: (b"", frozenset()), b"/")


def everybody(publish: tuple[bytes, ...] = (b"",), subscribe: tuple[bytes, ...] = (b"",)) -> Policy:
    return policy(Rule(everybody=True, publish=publish, subscribe=subscribe))


def reconfigure(hub: Hub, **settings: object) -> None:
    hub.reconfigure(**settings)  # type: ignore[arg-type]
    assert hub.reviewed(PATIENCE)


def test_a_subscription_that_is_not_allowed_any_more_is_withdrawn_and_the_client_stays(
    make_hub: MakeHub, connect: Connect
) -> None:
    hub = make_hub()
    peer, told = connect(), connect()
    told.send(b"CMSG notices/on")
    for one in (peer, told):
        one.subscribe(b"a/", b"b", b"b", b"*/c", b"!/cred////x")
    reconfigure(hub, authorize=everybody(subscribe=(b"a/", b"d")))
    hub.publish_many([(b"a/1", b""), (b"b", b""), (b"x/c", b""), (b"!/cred////x", b"")])
    assert peer.pending() == [b"MSG a/1\0", b"MSG !/cred////x\0"]
    packets = told.pending()
    assert packets[1:] == [b"MSG a/1\0", b"MSG !/cred////x\0"]
    notice, _, patterns = packets[0].partition(b"\0")
    assert notice == b"CMSG notice/withdrawn"
    assert set(patterns.split(b"\0")) == {b"b", b"*/c"}
    assert hub.context.quotas.account(os.getuid()).patterns == 4


def test_rules_come_and_go_and_answers_are_not_remembered_beyond_them(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub()
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(b"")
    publisher.send(b"CMSG notices/on")
    for rules in (None, everybody(publish=(b"a",)), None, everybody()):
        reconfigure(hub, authorize=rules)
        publisher.publish(b"a")
        assert subscriber.receive() == b"MSG a\0"
    reconfigure(hub, authorize=everybody(publish=(b"b",)))
    publisher.publish(b"b")
    publisher.publish(b"a")
    assert [publisher.receive() for _ in range(2)] == [b"CMSG notice/kicked\0publishing refused", b""]
    assert subscriber.receive() == b"MSG b\0"


def test_only_users_whose_rules_differ_are_asked_about_again(world: World) -> None:
    looked_up: list[int] = []

    def made(*patterns: bytes) -> Policy:
        def look_up(uid: int) -> tuple[bytes, frozenset[int]]:
            looked_up.append(uid)
            return b"", frozenset()

        rules = [Rule(users=frozenset({1}), publish=(b"a",)), Rule(users=frozenset({2}), publish=patterns)]
        return Policy(rules, look_up, b"/")

    hub = world.hub("top", authorize=made(b"a"))
    for uid in (1, 1, 2, 2):
        peer = world.peer_of("top", uid)
        peer.publish(b"a")
        peer.barrier()
    publishers = [*hub.clients.connections.values()]
    reconfigure(hub, authorize=made(b"a", b"b"))
    assert [one.knows_allowed(b"MSG a\0") for one in publishers] == [True, True, False, False]
    assert looked_up == [1, 2, 1, 2], "once for each user and policy"


def test_a_right_is_withdrawn_however_many_users_came_since_it_was_given(world: World) -> None:
    groups = {1: frozenset({10})}

    def made() -> Policy:
        rules = [Rule(groups=frozenset({10}), subscribe=(b"a",)), Rule(everybody=True, publish=(b"",))]
        return Policy(rules, lambda uid: (b"", groups.get(uid, frozenset())), b"/")

    hub = world.hub("top", authorize=made(), users=[*range(210)])
    reader = world.peer_of("top", 1)
    reader.subscribe(b"a")
    for uid in range(10, 210):
        other = world.peer_of("top", uid)
        other.publish(b"b")
        other.close()
    groups.clear()  # the user leaves its group
    reconfigure(hub, authorize=made(), users=[*range(210)])
    hub.publish(b"a")
    assert reader.pending() == []


def test_a_user_who_may_no_longer_connect_is_disconnected(world: World) -> None:
    hub = world.hub("top", users=[1, 2])
    ann, bob = world.peer_of("top", 1), world.peer_of("top", 2)
    own = world.peer("top")
    ann.send(b"CMSG notices/on")
    ann.barrier()
    reconfigure(hub, users=[2])
    assert [ann.receive(), ann.receive()] == [b"CMSG notice/kicked\0user not allowed", b""]
    for peer in (bob, own):
        peer.barrier()
    reconfigure(hub)
    world.peer_of("top", 3).barrier()


def test_trusted_users_and_relays_change(world: World) -> None:
    hub = world.hub("top", trusted=[1], relays=[2])
    links = {uid: world.peer_of("top", uid) for uid in (0, 1, 2)}
    for link in links.values():
        link.send(b"CMSG interest/on")
        link.barrier()
    asker = world.peer_of("top", 3)
    asker.send(b"CMSG hub/statistics")
    assert asker.receive() == b"CMSG hub/statistics\0"
    reconfigure(hub, trusted=[3], relays=[2])
    assert b"" in iter(links[1].receive, None), "it may learn less now"
    for uid in (0, 2):
        links[uid].barrier()
    asker.send(b"CMSG hub/statistics")
    assert len(asker.receive()) > 100
    reconfigure(hub)
    assert b"" in iter(links[2].receive, None)
    links[0].barrier()


def test_thousands_of_patterns_are_withdrawn_from_a_client_that_does_not_read(
    make_hub: MakeHub, connect: Connect
) -> None:
    hub = make_hub()
    peer, other = connect(), connect()
    peer.send(b"CMSG notices/on")
    patterns = [b"%d/%s" % (n, b"x" * 60) for n in range(5_000)]
    for start in range(0, len(patterns), 100):
        peer.subscribe(*patterns[start : start + 100])
    reconfigure(hub, authorize=everybody(subscribe=(b"other",)))
    other.subscribe(b"other")
    told: list[bytes] = []
    for packet in peer.pending():
        key, _, payload = packet.partition(b"\0")
        assert key == b"CMSG notice/withdrawn"
        told += payload.split(b"\0")
    assert sorted(told) == sorted(patterns)


def test_a_client_that_is_told_does_not_ask_for_the_pattern_again(make_hub: MakeHub, address: str) -> None:
    hub = make_hub()
    notices: list[Notice] = []
    with Client(address, reconnect=True, on_notice=notices.append) as client:
        choose(client, b"notices/on")
        client.subscribe(b"a", b"b")
        reconfigure(hub, authorize=everybody(subscribe=(b"a",)))
        client.sync()
        assert notices == [Withdrawn((b"b",))]
        hub.stop(0)
        hub.start()
        client.sync()
        hub.publish(b"a")
        assert client.receive(timeout=PATIENCE).key == b"a"
    assert not [notice for notice in notices if isinstance(notice, Kicked)]


def allow_a(credentials: Credentials, verb: str, key: bytes) -> bool:
    return key == b"a"


def test_users_are_names_and_ids_and_the_own_user_is_always_among_them() -> None:
    own = os.getuid()
    settings = Settings(["root", 12_345, "23456"], [34_567], ["45678", "@56789"], None)
    assert settings.users == {own, 0, 12_345, 23_456}
    assert settings.trusted == {own, 0, 34_567}
    assert settings.relays == (frozenset({45_678}), frozenset({56_789}))
    assert Settings([], (), (), None).users == {own}
    assert Settings(None, (), (), None).users is None, "everybody may connect"


def test_wrong_settings_change_nothing(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub(authorize=allow_a)
    peer = connect()
    for wrong in ({"users": ["nobody-at-all"]}, {"trusted": "root"}, {"authorize": 3}, {"relays": "x"}):
        with pytest.raises(UsageError):
            hub.reconfigure(**wrong)
    peer.publish(b"b")
    assert peer.is_disconnected()


def test_a_hub_can_be_reconfigured_before_it_is_started(address: str, connect: Connect) -> None:
    hub = Hub(address)
    hub.reconfigure(authorize=allow_a)
    with hub:
        peer = connect()
        peer.publish(b"b")
        assert peer.is_disconnected()


def test_a_reload_is_for_trusted_clients_and_tells_what_came_of_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    hub = world.hub("top")
    stranger, client = world.peer_of("top", 1), world.client("top")
    stranger.send(b"CMSG hub/reload")
    assert stranger.receive() == b"CMSG hub/reload\0"
    with pytest.raises(StateError, match="no configuration file"):
        client.hub.reload()
    hub.reloads.function = lambda: "done so"
    assert client.hub.reload() == "done so"

    for error, text in ((UsageError("line 3 is wrong"), "line 3 is wrong"), (KeyError("x"), "KeyError")):
        hub.reloads.function = Mock(side_effect=error)
        with pytest.raises(StateError, match=text):
            client.hub.reload()
    assert [record.message for record in caplog.records if record.exc_info] == ["a reload failed"]
    hub.reloads.function = lambda: "again"
    assert client.hub.reload() == "again"


def test_a_reload_that_is_under_way_when_a_take_over_fails_answers_nobody_who_asks_later(hub: Hub) -> None:
    said: list[tuple[str, bytes]] = []
    go = Event()
    runs: list[None] = []

    def reload() -> str:
        runs.append(None)
        go.wait()
        return f"run {len(runs)}"

    hub.reloads.function = reload
    hub.reloads.ask(lambda packet: said.append(("first", packet)))
    eventually(lambda: runs)
    hub.reloads.end()  # another process is about to have the hub, and then does not take it
    hub.reloads.ask(lambda packet: said.append(("second", packet)))
    go.set()
    eventually(lambda: len(said) == 2)
    assert said == [
        ("first", b"CMSG hub/reload\0failed\0another process takes the hub over"),
        ("second", b"CMSG hub/reload\0done\0run 2"),
    ]
