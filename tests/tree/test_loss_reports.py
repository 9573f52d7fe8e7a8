"""Reports of messages that were lost between two hubs."""

from __future__ import annotations

from socket import SHUT_RDWR
from time import time
from typing import Any

import msgspec
import pytest
from support import FakeHub, Peer, choose, eventually
from worlds import FAST, World, greet_relay, join, receive_until, settle

from sbuslib import Hub
from sbuslib.tree import loss_reports, parent_link, uplink
from sbuslib.wire.control import Away, LossReport, Lost

SOON = msgspec.structs.replace(FAST, link_notices=0.01)


class Watched:
    """Clients of some hubs, and what each was told."""

    def __init__(self, world: World, *names: str) -> None:
        self.notices: dict[str, list[Any]] = {name: [] for name in names}
        self.clients = {name: world.client(name, on_notice=told.append) for name, told in self.notices.items()}
        for client in self.clients.values():
            choose(client, b"notices/on")

    def lost(self, cause: str) -> dict[str, int]:
        """What each knows of a cause of loss."""
        for client in self.clients.values():
            client.sync()
        return {name: client.lost.get(cause, 0) for name, client in self.clients.items()}


def join_again(master: FakeHub) -> Peer:
    """Have the hub ``left`` join a fake hub once more. Returns the fake hub's end of the link."""
    link = master.accept()
    greet_relay(link)
    link.send(b"CMSG interest/complete")
    return link


def test_what_is_lost_or_uncertain_on_its_way_up_is_told_in_the_whole_tree(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink, "ACK_PAUSE", 600.0)
    for name in ("h0", "h1", "h2"):
        world.hub(name, limits=SOON)
    relay = world.relay("h1", "h0")
    world.relay("h2", "h1")
    watched = Watched(world, "h0", "h1", "h2")
    watched.clients["h0"].subscribe(b"k")
    settle(*watched.clients.values())
    watched.clients["h1"].publish(b"k")
    eventually(lambda: relay.statistics().up == 1)
    assert relay.parent.link is not None
    relay.parent.link.outbound.socket.shutdown(SHUT_RDWR)
    eventually(lambda: watched.lost("uncertain") == dict.fromkeys(watched.clients, 1))
    world.relays["h2"].parent.up.losses.note("upstream", 7, time())
    eventually(lambda: watched.lost("upstream") == dict.fromkeys(watched.clients, 7))
    assert watched.lost("downstream") == dict.fromkeys(watched.clients, 0)


def test_what_a_hub_above_loses_for_a_hub_below_is_told_to_all_below(world: World) -> None:
    world.hub("h0", limits=msgspec.structs.replace(SOON, queued_packets=10))
    for name in ("h1", "h2", "beside"):
        world.hub(name, limits=SOON)
    world.relay("h1", "h0")
    world.relay("h2", "h1")
    world.relay("beside", "h0")
    watched = Watched(world, "h0", "h1", "h2", "beside")
    watched.clients["h2"].subscribe(b"k")
    settle(*watched.clients.values())
    world.hubs["h0"].publish_many([(b"k", bytes(1_000))] * 5_000)  # more than the kernel and the queue take
    (link,) = (link for link in world.hubs["h0"].statistics().per_link if link.patterns > 1)
    count = sum(link.lost.values())
    assert count
    eventually(lambda: watched.lost("downstream") == {"h0": 0, "h1": count, "h2": count, "beside": 0})
    assert world.relays["h1"].statistics().lost_by_parent == count
    assert world.relays["h2"].statistics().lost_by_parent == 0, "it was lost above h1"


def test_all_below_are_told_when_the_hub_above_was_away(world: World) -> None:
    before = time()
    world.chain("h0", "h1", "h2")
    watched = Watched(world, "h1", "h2")
    world.hubs["h0"].stop(0)
    eventually(lambda: world.relays["h1"].state == "outage")
    world.hub("h0")
    eventually(lambda: watched.lost("away") == {"h1": 1, "h2": 1})
    for notices in watched.notices.values():
        (away,) = (notice for notice in notices if isinstance(notice, Away))
        assert before <= away.since <= away.until <= time()


def test_the_hub_above_was_away_until_what_is_wanted_here_is_in_force_in_the_tree(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        link = join(world, master, sync_wait=0.01)
        watched = Watched(world, "left")
        watched.clients["left"].subscribe(b"k")

        # 1. Before a hub has joined whose patterns are in force, nothing is told: the time goes on.
        for _ in range(2):
            link.close()
            link, packets = join_again(master), []
            while not (packet := link.receive()).startswith(b"CMSG hub/sync\0t"):
                packets.append(packet)
            assert b"SUB k" in packets
            assert watched.lost("away") == {"left": 0}

        # 2. A part of the tree that does not answer is asked again. What is known is told meanwhile.
        link.send(b"CMSG hub/sync\0%b\0partial" % packet.split(b"\0")[1])
        eventually(lambda: watched.lost("away") == {"left": 1})
        for answer in (b"partial", b"tree"):
            packet = receive_until(link, b"CMSG hub/sync\0t")
            assert watched.lost("away") == {"left": 1}
            link.send(b"CMSG hub/sync\0%b\0%b" % (packet.split(b"\0")[1], answer))
        eventually(lambda: watched.lost("away") == {"left": 2})
        first, second = (notice for notice in watched.notices["left"] if isinstance(notice, Away))
        assert first.since < first.until == second.since < second.until


def test_the_hub_above_was_away_since_it_last_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_link, "ALIVE_PAUSE", 0.001)
    with FakeHub(world.address("top")) as master:
        link = join(world, master)
        watched = Watched(world, "left")
        packet = receive_until(link, b"CMSG hub/sync\0l")
        answered = time()
        link.send(b"CMSG hub/sync\0%b\0local" % packet.split(b"\0")[1])
        receive_until(link, b"CMSG hub/sync\0l")
        unanswered = time()
        link.close()
        link = join_again(master)
        packet = receive_until(link, b"CMSG hub/sync\0t")
        link.send(b"CMSG hub/sync\0%b\0tree" % packet.split(b"\0")[1])
        eventually(lambda: watched.lost("away") == {"left": 1})
        (away,) = (notice for notice in watched.notices["left"] if isinstance(notice, Away))
        assert away.since < answered < unanswered < away.until


def test_a_hub_above_that_tells_of_losses_all_the_time_is_passed_on_now_and_then(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        link = join(world, master)
        watched = Watched(world, "left")
        for _ in range(50):
            link.send(b"CMSG notice/lost\0overflow 2 1.5")
        eventually(lambda: watched.lost("downstream") == {"left": 100})
        assert len(watched.notices["left"]) < 50
        assert watched.notices["left"][0].since == 1.5


def test_a_report_before_all_hubs_are_back_is_passed_on_to_those_that_come_later(world: World) -> None:
    for name in ("top", "left", "right"):
        world.hub(name)
    for name in ("left", "right"):
        world.relay(name, "top")
    eventually(lambda: world.relays["left"].parent.links_beside == 2)
    watched = Watched(world, "top", "left", "right")
    world.relays["right"].stop()
    watched.clients.pop("top").close()
    world.hubs["top"].stop(0)
    world.relays["left"].parent.up.losses.add("upstream", 5, time())

    top: Hub = world.hub("top", limits=msgspec.structs.replace(FAST, settle=1.0))  # it waits for two links
    eventually(lambda: bool(top.tree.loss_reports.queued))
    assert not top.tree.startup_barrier.done
    world.relay("right", "top")
    eventually(lambda: watched.lost("upstream") == {"left": 5, "right": 5})


@pytest.mark.parametrize(
    "report",
    [
        b"hub downstream 0 0 5 1.5",
        b"hub overflow 0 0 5 1.5",
        b"hub upstream 0 6 5 1.5",
        b"hub upstream 2 1 5 1.5",
        b"hub upstream 0 0 5 9999999999",
        b"hub upstream 0 0 5",
        b"\0".join([b"hub upstream 0 0 5 1.5"] * 65),
    ],
)
def test_a_report_that_no_hub_makes_is_dropped(world: World, report: bytes) -> None:
    top: Hub = world.hub("top")
    watched = Watched(world, "top")
    link = world.peer("top")
    link.send(b"CMSG interest/on", b"CMSG interest/lost\0" + report)
    link.barrier()
    assert sum(top.statistics().dropped.values()) == 1
    watched.lost("upstream")
    assert not any(isinstance(notice, Lost) for notice in watched.notices["top"])


def test_a_report_of_losses_is_made_again_until_the_hub_above_has_acknowledged_it(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        link = join(world, master)
        up, hub = world.relays["left"].parent.up, world.hubs["left"].hub_id
        up.losses.add("upstream", 5, 1.5)
        up.losses.report()
        assert receive_until(link, b"CMSG interest/lost") == b"CMSG interest/lost\0%b upstream 0 0 5 1.500000" % hub
        receive_until(link, b"CMSG hub/sync\0p")

        # 1. Not acknowledged when the link ends: the next process may know of it.
        link.close()
        link = join_again(master)
        assert receive_until(link, b"CMSG interest/lost") == b"CMSG interest/lost\0%b upstream 0 5 5 1.500000" % hub
        first = receive_until(link, b"CMSG hub/sync\0p")
        up.losses.add("upstream", 2, 2.5)
        up.losses.report()
        assert receive_until(link, b"CMSG interest/lost") == b"CMSG interest/lost\0%b upstream 0 5 7 1.500000" % hub
        link.send(b"CMSG hub/sync\0%b\0passed" % first.split(b"\0")[1])
        eventually(lambda: up.queued == 2)

        # 2. A part of it was acknowledged.
        link.close()
        link = join_again(master)
        assert receive_until(link, b"CMSG interest/lost") == b"CMSG interest/lost\0%b upstream 5 7 7 1.500000" % hub
        packet = receive_until(link, b"CMSG hub/sync\0p")
        link.send(b"CMSG hub/sync\0%b\0passed" % packet.split(b"\0")[1])
        eventually(lambda: not up.queued)

        # 3. All of it was.
        link.close()
        link = join_again(master)
        while not (packet := link.receive()).startswith(b"CMSG hub/sync\0t"):
            assert not packet.startswith(b"CMSG interest/lost")


def test_a_report_of_losses_counts_once_and_as_uncertain_where_clients_may_have_been_told(world: World) -> None:
    world.hub("top", limits=SOON)
    world.hub("left", limits=SOON)
    world.relay("left", "top")
    later = time() + 60
    watched = Watched(world, "top", "left")

    # 1. The process before this one may have told of it, unless this one was there when the first was lost.
    for hub, since in ((b"old", 1.5), (b"new", later)):
        link = world.link("left")
        link.send(b"CMSG interest/lost\0%b upstream 1 4 9 %.6f" % (hub, since))
        link.barrier()
        link.close()
    eventually(lambda: watched.lost("upstream") == dict.fromkeys(watched.clients, 5 + 8))
    eventually(lambda: watched.lost("uncertain") == dict.fromkeys(watched.clients, 3))

    # 2. What is reported again, at whichever hub, counts no more.
    for name in ("left", "top", "left"):
        link = world.link(name)
        link.send(b"CMSG interest/lost\0old upstream 1 9 9 1.5", b"CMSG interest/lost\0old upstream 1 9 12 1.5")
        link.send(b"CMSG hub/sync\0p\0passed")
        assert receive_until(link, b"CMSG hub/sync\0p") == b"CMSG hub/sync\0p\0passed"
        link.close()
    settle(*watched.clients.values())
    eventually(lambda: watched.lost("upstream") == dict.fromkeys(watched.clients, 5 + 8 + 3))
    assert watched.lost("uncertain") == dict.fromkeys(watched.clients, 3)


def test_a_hub_acknowledges_reports_that_the_hub_above_has_acknowledged(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        parent = join(world, master)
        link = world.link("left")
        link.send(b"CMSG interest/lost\0low upstream 0 0 9 1.5", b"CMSG hub/sync\0token\0passed")
        assert receive_until(parent, b"CMSG interest/lost") == b"CMSG interest/lost\0low upstream 0 0 9 1.500000"
        packet = receive_until(parent, b"CMSG hub/sync\0p")
        link.barrier()
        assert not [one for one in link.pending() if one.startswith(b"CMSG hub/sync\0token")]
        parent.send(b"CMSG hub/sync\0%b\0passed" % packet.split(b"\0")[1])
        assert receive_until(link, b"CMSG hub/sync\0token")


def test_a_hub_passes_on_what_the_process_before_may_have_passed_on(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        parent = join(world, master)
        link = world.link("left")
        link.send(b"CMSG interest/lost\0low upstream 2 9 9 1.5")
        assert receive_until(parent, b"CMSG interest/lost") == b"CMSG interest/lost\0low upstream 2 9 9 1.500000"


def test_the_oldest_count_is_forgotten_where_there_are_too_many_and_its_losses_are_uncertain(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_reports, "_COUNTS", 2)
    world.hub("h0", limits=SOON)
    world.hub("h1", limits=SOON)
    relay = world.relay("h1", "h0")
    losses = relay.parent.tree.loss_reports
    world.hubs["h0"].stop(0)
    eventually(lambda: relay.parent.link is None)

    # 1. Two hubs below have a place each: nothing is uncertain.
    for hub, count in ((b"first", 3), (b"second", 40)):
        losses.take(LossReport(hub, "upstream", 0, 0, count, time()), None)
    assert losses.own == 0

    # 2. With the third and the fourth, what the parent may not know of the oldest is uncertain.
    losses.take(LossReport(b"third", "upstream", 0, 0, 500, time()), None)
    assert losses.own == 3
    losses.take(LossReport(b"fourth", "upstream", 0, 0, 6000, time()), None)
    assert losses.own == 43
