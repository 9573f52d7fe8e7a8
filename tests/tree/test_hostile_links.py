"""All that a hostile link can try, beside an honest one."""

from __future__ import annotations

from collections.abc import Callable

from support import PATIENCE, Peer, choose
from worlds import World, key_of_link, settle


def test_a_hostile_link_reads_nothing_and_does_not_disturb_other_links(
    world: World, make_link: Callable[[], Peer]
) -> None:
    world.hub("left")
    world.uids["top"] = 12_345
    relay = world.relay("left", "top")
    world.uids.clear()
    alice, operator = world.client("left"), world.client("top")
    box = alice.hub.whoami() + b"/box"
    choose(alice, b"senders/on")
    alice.subscribe(box, b"private/alice")
    operator.subscribe(b"alice/", operator.hub.whoami() + b"/box")
    settle(alice, operator)
    hostile = make_link()
    key = key_of_link(hostile)
    siblings = world.hubs["left"].context.router.namespace.prefix

    for secret in (box, siblings, siblings[:-1], alice.hub.whoami(), operator.hub.whoami() + b"/box", key + b"0/x"):
        hostile.send(b"SUB " + secret)
    hostile.send(b"SUB !/", b"SUB !/cred/", b"SUB !/cred////", b"UNSUB " + siblings, b"UNSUB private/alice")
    hostile.publish(key + b"/!/cred/1/2/3/box", b"the wrong way")
    hostile.publish(box, b"anybody may")
    for n in range(300):
        hostile.send(
            b"CMSG hub/sync\0%d\0tree" % n, b"CMSG hub/sync\0%d\0passed" % n, b"CMSG interest/sync\0%x\0tree" % n
        )
    hostile.send(
        b"CMSG interest/on", b"CMSG interest/complete", b"CMSG interest/add\0a", b"CMSG interest/prune\0alice/1"
    )
    hostile.send(
        b"CMSG senders/on", b"CMSG notices/on", b"CMSG hub/statistics", b"CMSG notice/credentials\0!/cred/0/0/1"
    )

    for n in range(10):
        alice.publish(b"alice/1", b"%d" % n)
        operator.publish(box, b"for alice")
        operator.publish(b"private/alice", b"%d" % n)
        alice.publish(operator.hub.whoami() + b"/box", b"for the operator")
    got = [alice.receive(timeout=PATIENCE) for _ in range(21)]
    assert [message.payload for message in got].count(b"for alice") == 10
    assert {message.sender for message in got if message.payload == b"anybody may"} == {key}
    assert {message.sender for message in got if message.payload != b"anybody may"} == {operator.hub.whoami()}
    assert [operator.receive(timeout=PATIENCE).payload for _ in range(20)] == [
        payload for n in range(10) for payload in (b"%d" % n, b"for the operator")
    ]
    learnt = hostile.pending()
    assert not [packet for packet in learnt if b"alice" in packet or b"for " in packet or siblings in packet]
    assert b"CMSG hub/statistics\0" in learnt, "which is a refusal"
    assert relay.statistics().epoch == 1
    assert relay.state == "joined"
