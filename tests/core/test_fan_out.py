"""Messages for many clients of one user: who is handed them through the fan-out queue, its order and its bounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import pytest
from accounting import balance, opened, settle
from support import Bus, ConnectAs, Peer, eventually

from sbuslib import Hub
from sbuslib.core.fan_out import FanOutQueue
from sbuslib.statistics import UserStatistics
from sbuslib.wire.batches import coalesce

PUBLISHER, READER = 1001, 1002
FANOUT = 4


def readers_of(connect_as: ConnectAs, *patterns: bytes, count: int = FANOUT, uid: int = READER) -> list[Peer]:
    readers = [connect_as(uid) for _ in range(count)]
    for reader in readers:
        reader.subscribe(*patterns)
    return readers


def account(hub: Hub, uid: int = READER) -> UserStatistics:
    return next(user for user in hub.statistics().per_user if user.uid == uid)


@contextmanager
def stopped(hub: Hub) -> Iterator[None]:
    """Lines do not get on meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FanOutQueue, "take_turn", lambda queue: None)
        yield
    for line in hub.clients.fan_outs.waiting:
        line._postpone()


def message(key: bytes, number: int) -> bytes:
    return b"MSG %b\0%d" % (key, number)


@pytest.fixture
def hub(bus: Bus) -> Hub:
    return bus({"mode": 0o777}, fanout=FANOUT)


def test_the_publisher_leaves_a_message_in_line(hub: Hub, connect_as: ConnectAs) -> None:
    connect_as(PUBLISHER).barrier()
    readers = readers_of(connect_as, b"k")
    before = hub.statistics()
    hub.publish(b"k", b"1")  # which does not let the event loop run
    at_once = hub.statistics()
    assert at_once.delivered == before.delivered
    assert (account(hub).waiting_packets, account(hub).waiting_bytes) == (1, len(message(b"k", 1)))
    settle(hub)
    assert [reader.pending() for reader in readers] == [[message(b"k", 1)]] * FANOUT
    assert account(hub).waiting_packets == account(hub).waiting_bytes == 0
    assert hub.statistics().delivered == before.delivered + FANOUT


@pytest.mark.parametrize(
    ("count", "uid", "strangers"),
    [(FANOUT - 1, READER, True), (FANOUT, READER, False), (FANOUT, 0, True)],
    ids=["few", "one user alone", "trusted"],
)
def test_which_receivers_are_handed_a_message_at_once(
    hub: Hub, connect_as: ConnectAs, count: int, uid: int, strangers: bool
) -> None:
    if strangers:
        connect_as(PUBLISHER).barrier()
    readers = readers_of(connect_as, b"k", count=count, uid=uid)
    hub.publish(b"k", b"1")
    assert hub.statistics().delivered >= count
    assert [reader.pending() for reader in readers] == [[message(b"k", 1)]] * count


def test_messages_of_one_sender_wait_together_up_to_as_many_as_are_received_at_once(
    bus: Bus, connect_as: ConnectAs
) -> None:
    hub = bus({"mode": 0o777}, fanout=FANOUT, batch=10)
    connect_as(PUBLISHER).barrier()
    readers = readers_of(connect_as, b"k")
    readers[0].subscribe(b"own")
    with stopped(hub):
        for key in (b"k", b"own"):
            for number in range(25):
                hub.publish(key, b"%d" % number)
        (queue,) = hub.clients.fan_outs.waiting
        assert [entry.count for entry in queue._entries] == [10, 10, 5] * 2
    settle(hub)
    assert [len(reader.pending()) for reader in readers] == [50, 25, 25, 25]


def test_a_users_own_messages_do_not_stand_in_line(hub: Hub, connect_as: ConnectAs) -> None:
    connect_as(PUBLISHER).barrier()
    readers = readers_of(connect_as, b"k")
    hub.publish(b"k", b"1")
    assert hub.clients.fan_outs.waiting
    own = connect_as(READER)
    own.publish(b"k", b"2")
    own.barrier()
    settle(hub)
    for reader in readers:
        assert sorted(reader.pending()) == [message(b"k", 1), message(b"k", 2)]


@pytest.mark.parametrize("form", ["packets", "batches", "batches to some"])
def test_order_where_keys_go_to_many_and_to_few(hub: Hub, connect_as: ConnectAs, form: str) -> None:
    """One reader wants more than the others: messages for it alone stay behind those in the fan-out queue."""
    publisher = connect_as(PUBLISHER)
    publisher.send(b"CMSG batch/on")
    first, *others = readers_of(connect_as, b"all")
    first.subscribe(b"one")
    if form == "batches to some":
        others[0].send(b"CMSG batch/on")
        others[0].barrier()
    sent = [message((b"all", b"one", b"none")[n % 7 % 3], n) for n in range(40)]
    same = [message(b"all", n) for n in range(40, 60)]
    with stopped(hub):
        for some in (sent, same):
            batch = coalesce(some)
            assert batch is not None
            publisher.send(*(some if form == "packets" else [batch.packet]))
            publisher.barrier()
            publisher.send(*[b"CMSG overwrites the receive buffer".ljust(5_000, b"!")] * 64)
            publisher.barrier()
    settle(hub)
    assert first.pending() == [packet for packet in [*sent, *same] if b"none" not in packet]
    wanted = [packet for packet in [*sent, *same] if b"all" in packet]
    assert [opened(other.pending()) for other in others] == [wanted] * len(others)


def test_messages_that_find_the_fan_out_queue_full_are_lost_and_counted(bus: Bus, connect_as: ConnectAs) -> None:
    hub = bus({"mode": 0o777}, fanout=FANOUT, fanout_packets=20)
    connect_as(PUBLISHER).barrier()
    readers = readers_of(connect_as, b"k")
    readers[0].send(b"CMSG notices/on")
    readers[0].barrier()
    for number in range(25):
        hub.publish(b"k", b"%d" % number)
    assert account(hub).waiting_packets == 10  # half of the room is for one sender alone
    balance(hub)
    settle(hub)
    kept = [message(b"k", number) for number in range(10)]
    told, *rest = readers
    assert [reader.pending() for reader in rest] == [kept] * len(rest)
    *got, notice = [told.receive() for _ in range(len(kept) + 1)]
    assert got == kept
    assert notice.startswith(b"CMSG notice/lost\0quota 15 ")
    assert hub.statistics().lost["quota"] == 15 * FANOUT
    balance(hub)
    hub.publish(b"k", b"again")
    settle(hub)
    assert readers[-1].pending() == [b"MSG k\0again"]


def test_a_fan_out_queue_goes_on_where_its_last_turn_ended(
    bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each receiver gets each message once, also where a turn ended between two receivers."""
    monkeypatch.setattr("sbuslib.core.scheduler._SLICE", 0.0)  # one turn a round
    hub = bus({"mode": 0o777}, fanout=FANOUT, turn_deliveries=3)
    connect_as(PUBLISHER).barrier()
    readers = readers_of(connect_as, b"k", count=2 * FANOUT)
    for number in range(30):
        hub.publish(b"k", b"%d" % number)
        if number % 10 == 5:
            before = hub.statistics().delivered
            while hub.statistics().delivered == before:
                gevent.sleep(0)
            assert hub.clients.fan_outs.waiting
    settle(hub)
    assert [reader.pending() for reader in readers] == [[message(b"k", number) for number in range(30)]] * len(readers)


def test_an_answer_comes_after_messages_in_the_fan_out_queue(hub: Hub, connect_as: ConnectAs) -> None:
    connect_as(PUBLISHER).barrier()
    reader, *_ = readers_of(connect_as, b"k")
    reader.send(b"UNSUB k", b"CMSG hub/sync\0token")
    hub.publish(b"k", b"1")
    got = [reader.receive(), reader.receive()]
    assert got == [message(b"k", 1), b"CMSG hub/sync\0token\0local"]
    settle(hub)
    assert not reader.pending()


def test_a_client_that_asks_too_much_while_the_fan_out_queue_is_full_is_kicked(
    bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = bus({"mode": 0o777}, fanout=FANOUT, queued_answers=10)
    connect_as(PUBLISHER).barrier()
    greedy, *others = readers_of(connect_as, b"k")
    with monkeypatch.context() as patch:
        patch.setattr(FanOutQueue, "take_turn", lambda queue: None)  # it does not get on
        hub.publish(b"k", b"1")
        for _ in range(3):
            greedy.send(*[b"CMSG hub/sync\0t"] * 4)
            gevent.idle()
        while not hub.clients.violations.counts:
            gevent.idle()
    assert hub.clients.violations.counts == {"too many unread answers": 1}
    (line,) = hub.clients.fan_outs.waiting
    line._postpone()
    settle(hub)
    assert [other.pending() for other in others] == [[message(b"k", 1)]] * len(others)


def test_messages_in_a_fan_out_queue_are_delivered_when_the_hub_stops(hub: Hub, connect_as: ConnectAs) -> None:
    connect_as(PUBLISHER).barrier()
    readers = readers_of(connect_as, b"k")
    for number in range(100):
        hub.publish(b"k", b"%d" % number)
    hub.stop(10)
    for reader in readers:
        assert [reader.receive() for _ in range(101)] == [*(message(b"k", number) for number in range(100)), b""]
    assert hub.context.quotas.is_clear()
    assert not hub.clients.fan_outs.waiting


def test_closing_a_hub_counts_messages_lost_in_fan_out_queues(
    bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message that went into the queue is counted for each receiver: some got it, some had no room."""
    monkeypatch.setattr("sbuslib.core.scheduler._SLICE", 0.0)  # one turn a round
    hub = bus({"mode": 0o777}, fanout=FANOUT, fanout_packets=20, turn_deliveries=2)
    connect_as(PUBLISHER).barrier()
    readers_of(connect_as, b"k")
    for number in range(10):
        hub.publish(b"k", b"%d" % number)
    while not hub.statistics().delivered:
        gevent.sleep(0)
    had = hub.statistics()
    assert had.delivered < 10 * FANOUT
    for number in range(10, 25):
        hub.publish(b"k", b"%d" % number)
    hub.close()
    told = hub.statistics()
    assert told.routed == 25 * FANOUT
    assert told.delivered == had.delivered
    assert set(told.lost) == {"outage", "quota"}
    balance(hub)


def test_messages_in_a_fan_out_queue_for_a_client_that_leaves_are_counted(hub: Hub, connect_as: ConnectAs) -> None:
    connect_as(PUBLISHER).barrier()
    gone, *readers = readers_of(connect_as, b"k")
    with stopped(hub):
        hub.publish(b"k", b"1")
        gone.close()
        eventually(lambda: hub.statistics().clients == FANOUT)
    settle(hub)
    hub.publish(b"k", b"2")
    settle(hub)
    told = hub.statistics()
    assert (told.routed, told.delivered, told.lost) == (2 * FANOUT - 1, 2 * FANOUT - 2, {"outage": 1})
    assert [reader.pending() for reader in readers] == [[message(b"k", 1), message(b"k", 2)]] * len(readers)


def test_losses_of_many_groups_make_a_full_queue_no_longer(bus: Bus, connect_as: ConnectAs) -> None:
    """Losses of a group are counted in one place; with more groups than a queue may name, for each receiver at once."""
    hub = bus({"mode": 0o777}, fanout=FANOUT, fanout_packets=4, cached_receivers=3 * FANOUT)
    connect_as(PUBLISHER).barrier()
    first, *_ = readers_of(connect_as, b"k/")
    first.subscribe(b"x")
    with stopped(hub):
        for number in range(20):
            hub.context.router.reconsider_all()
            hub.publish(b"k/%d" % number)
            hub.publish(b"x")
        (queue,) = hub.clients.fan_outs.waiting
        assert len(queue._entries) <= 4 + 3
    settle(hub)
    assert hub.statistics().lost == {"quota": 19 * FANOUT + 19}
    assert len(first.pending()) == 2
    assert not queue._entries
    assert not queue._names


def test_a_queue_names_no_more_receivers_than_are_remembered(bus: Bus, connect_as: ConnectAs) -> None:
    """Nor does a publisher count each loss, which would take as many steps: it is told in turns of the receivers."""
    hub = bus({"mode": 0o777}, fanout=FANOUT, cached_receivers=3 * FANOUT)
    connect_as(PUBLISHER).barrier()
    readers = readers_of(connect_as, b"k/")
    readers[0].send(b"CMSG notices/on")
    readers[0].barrier()
    with stopped(hub):
        for number in range(20):
            hub.context.router.reconsider_all()
            hub.publish(b"k/%d" % number)
            assert sum(len(group[0]) for group in hub.clients.fan_outs._groups.values()) <= 3 * FANOUT
        assert account(hub).waiting_packets == 3
        assert hub.statistics().lost == {}
    settle(hub)
    assert hub.statistics().lost == {"quota": 17 * FANOUT}
    assert [len(reader.pending()) for reader in readers] == [4] + [3] * (FANOUT - 1)  # the first is told of it
    balance(hub)


def test_answers_for_clients_that_left_count_against_the_bound(bus: Bus, connect_as: ConnectAs) -> None:
    hub = bus({"mode": 0o777}, fanout=FANOUT, fanout_packets=20)
    connect_as(PUBLISHER).barrier()
    readers_of(connect_as, b"k")
    with stopped(hub):
        hub.publish(b"k")
        for _ in range(10):
            asking = connect_as(READER)
            asking.send(*[b"CMSG hub/sync\0t"] * 8)
            asking.close()
            settle(hub)
            assert hub.statistics().clients == FANOUT + 1
        (line,) = hub.clients.fan_outs.waiting
        assert len(line._entries) == 1 + 20
        asking = connect_as(READER)
        asking.send(b"CMSG hub/sync\0t")
        assert asking.is_disconnected()
    settle(hub)
    assert hub.clients.violations.counts == {"too many unread answers": 1}
    assert not line._answers


def test_a_fan_out_queue_is_used_until_it_is_empty(bus: Bus, connect_as: ConnectAs) -> None:
    """Also when no other user is connected any more: messages for each receiver alone would not have room."""
    hub = bus({"mode": 0o777}, fanout=FANOUT, fanout_packets=60)
    other = connect_as(PUBLISHER)
    other.barrier()
    readers = readers_of(connect_as, b"k")
    with stopped(hub):
        hub.publish(b"k", b"0")
        other.close()
        eventually(lambda: not hub.context.running.scheduler.several)
        for number in range(1, 20):
            hub.publish(b"k", b"%d" % number)
        assert account(hub).waiting_packets == 20
    settle(hub)
    assert [reader.pending() for reader in readers] == [[message(b"k", number) for number in range(20)]] * FANOUT


def test_a_relay_is_told_only_when_the_line_is_empty(hub: Hub, connect_as: ConnectAs) -> None:
    """``hub/sync`` of scope ``passed`` waits for messages in a fan-out queue, and then in queues of clients."""
    connect_as(PUBLISHER).barrier()
    readers = readers_of(connect_as, b"k")
    answers: list[int] = []
    hub.publish(b"k", b"1")
    hub.context.running.delivery_barrier.when_flushed(lambda: answers.append(1))
    assert not answers
    settle(hub)
    assert answers == [1]
    assert [reader.pending() for reader in readers] == [[message(b"k", 1)]] * FANOUT
