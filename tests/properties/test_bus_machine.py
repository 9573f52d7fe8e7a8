"""A whole bus beside a model of it: random clients of several users, patterns, modes, publishes, stalls and closes.

To make the model exact, the kernel holds one packet for each client (see :mod:`accounting`), which a client takes out
when a rule says so; and the hub, which shares this thread, is let run until nothing is left to do. Which users
the clients are of is made up. In what order the receivers of one message have it is taken from the hub, and so is that
receivers of the same messages of a turn follow one another: where two of one user compete for the last place of their
share, it decides.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from unittest import mock

import gevent
from accounting import BIG, LARGEST, balance, settle
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from properties.test_outbox_properties import is_below_share, is_full

from sbuslib import Hub, Limits
from sbuslib.core.connection import Connection
from sbuslib.kernel.sockets import connect
from sbuslib.matcher import matches
from sbuslib.secrets import Credentials
from sbuslib.wire.addresses import parse_address
from sbuslib.wire.modes import HARD, ORDER, SOFT, Hard, Soft

KEYS = [b"a", b"b", b"a/b"]
PATTERNS = [b"", b"a", b"b", b"a/", b"*", b"*/b"]
MESSAGES = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(BIG, LARGEST)), min_size=1, max_size=8)
TRUSTED = 3
PLENTY = 10**9


def key_of(packet: bytes) -> bytes:
    """The key of a ``MSG``."""
    return packet[4 : packet.index(b"\0")]


def causes(lost: Mapping[str, int]) -> Counter[str]:
    """Losses by cause. A long message may overflow a queue in which the shortest of its turn is above the quota: the
    hub then tells the reason of the shortest for all, so these two causes are one here."""
    counts = Counter(lost)
    counts["overflow"] += counts.pop("quota", 0)
    return +counts


class Share:
    """One user's room in queues, in packets and bytes, by sender."""

    def __init__(self, limits: Limits) -> None:
        self.most = limits.user_queued_packets, limits.user_queued_bytes
        self.held: dict[int, list[int]] = {}

    def remaining(self) -> tuple[int, int]:
        return self.most[0] - sum(p for p, _ in self.held.values()), self.most[1] - sum(
            b for _, b in self.held.values()
        )

    def fits(self, sender: int, size: int) -> bool:
        mine = self.held.get(sender, [0, 0])
        users = len(self.held) + (sender not in self.held)
        return all(
            have + more <= (free + have) // (users + 1)
            for have, more, free in zip(mine, (1, size), self.remaining(), strict=True)
        )

    def charge(self, sender: int, size: int, sign: int) -> None:
        mine = self.held.setdefault(sender, [0, 0])
        mine[0] += sign
        mine[1] += sign * size
        if not mine[0]:
            del self.held[sender]


class Client:
    """The model of one client."""

    def __init__(self, number: int, uid: int, sock: socket.SocketType, connection: Connection, share: Share) -> None:
        self.number, self.uid, self.sock, self.connection, self.share = number, uid, sock, connection, share
        self.patterns: Counter[bytes] = Counter()
        self.soft, self.hard, self.order = "queue", "discard", "queue"
        self.echo = True
        self.kernel: bytes | None = None
        self.waiting: list[tuple[bytes, int]] = []
        self.received = self.routed = self.delivered = 0
        self.lost: Counter[str] = Counter()
        self.holders: set[Client] = set()
        self.holds: set[Client] = set()
        self.for_room = False
        self.unread: list[bytes] = []  # published, and not read by the hub, which holds this client
        self.leaving = False  # closed while held
        self.mute = False
        self.closed = False

    def wants(self, key: bytes) -> bool:
        return any(matches(pattern, key) for pattern in +self.patterns)

    def take(self) -> bytes:
        """What goes next of what waits."""
        if self.order == "queue":
            place = 0
        elif self.order == "stack":
            place = -1
        else:
            place = max(range(len(self.waiting)), key=lambda n: (len(self.waiting[n][0]), -n))
        packet, sender = self.waiting.pop(place)
        self.share.charge(sender, len(packet), -1)
        return packet


class BusMachine(RuleBasedStateMachine):
    # -- the hub -----------------------------------------------------------------------------------

    @initialize(
        packets=st.integers(1, 5),
        size=st.sampled_from([PLENTY, 3 * LARGEST]),
        user=st.sampled_from([PLENTY, 6, 10, 16]),
        user_size=st.sampled_from([PLENTY, 8 * LARGEST]),
        fanout=st.sampled_from([PLENTY, 1, 2]),
        members=st.lists(
            st.tuples(
                st.integers(1, 3), st.sampled_from(PATTERNS[:3]), st.sampled_from(SOFT[:3]), st.sampled_from(HARD)
            ),
            min_size=2,
            max_size=4,
        ),
    )
    def begin(
        self,
        packets: int,
        size: int,
        user: int,
        user_size: int,
        fanout: int,
        members: list[tuple[int, bytes, Soft, Hard]],
    ) -> None:
        if fanout != PLENTY:
            user = user_size = PLENTY  # who of a user has the last place is another one where its clients stand in line
        self.limits = Limits(
            queued_packets=packets,
            queued_bytes=size,
            user_queued_packets=user,
            user_queued_bytes=user_size,
            fanout=fanout,
            block_timeout=1e6,
            turn_time=1e6,
        )
        self.folder = tempfile.mkdtemp(prefix="sbus-")
        self.next_credentials = Credentials(gid=1, uid=1, pid=1)
        self.patches: list[Any] = [
            mock.patch("sbuslib.core.acceptor.peer_credentials", self.who_connects),
            # Turns take no time, or the machine's load would decide whose is next.
            mock.patch("sbuslib.core.scheduler.thread_time", return_value=0.0),
        ]
        for patch in self.patches:
            patch.start()
        self.hub = Hub(self.folder + "/bus", limits=self.limits, trusted=[TRUSTED])
        self.hub.start()
        self.clients: list[Client] = []
        self.gone: list[Client] = []
        self.shares: dict[int, Share] = {}
        self.count = 0
        self.ignored = 0
        self.in_turn = False
        self.released: list[Client] = []
        for uid, pattern, soft, hard in members:
            self.add(uid, pattern)
            self.choose(self.clients[-1], soft, hard)

    def teardown(self) -> None:
        if not hasattr(self, "hub"):
            return
        try:
            for client in self.clients:
                client.sock.close()
            for _ in range(100):  # those that hold one another let go one after the other
                settle(self.hub)
                if not self.hub.statistics().clients:
                    break
            assert self.hub.statistics().clients == 0
            assert self.hub.context.quotas.is_clear()
            balance(self.hub)
        finally:
            for client in [*self.clients, *self.gone]:
                client.sock.close()
            self.hub.stop(0)
            gevent.idle()
            for patch in self.patches:
                patch.stop()
            shutil.rmtree(self.folder)

    def who_connects(self, sock: socket.SocketType) -> Credentials:
        return self.next_credentials

    # -- rules -------------------------------------------------------------------------------------

    def draw(self, data: st.DataObject, free: bool = True, calm: bool = False) -> Client | None:
        """One of the clients; with ``free``, one that is not held; with ``calm``, one that may release publishers."""
        clients = [
            client
            for client in self.clients
            if not client.leaving
            and not (free and client.holders)
            # Who of several goes first once all may go on is not said.
            and not (calm and sum(bool(held.unread or held.leaving) for held in client.holds) > 1)
        ]
        return data.draw(st.sampled_from(clients)) if clients else None

    @precondition(lambda self: len(self.clients) < 6)
    @rule(uid=st.integers(1, 3), pattern=st.sampled_from(PATTERNS))
    def join(self, uid: int, pattern: bytes) -> None:
        self.add(uid, pattern)

    def add(self, uid: int, pattern: bytes) -> None:
        self.count += 1
        self.next_credentials = Credentials(gid=uid, uid=uid, pid=self.count)
        before = set(self.hub.clients.connections.values())
        sock = connect(parse_address(self.folder + "/bus"), 425_984)
        sock.send(b"SUB " + pattern)
        settle(self.hub)
        (connection,) = set(self.hub.clients.connections.values()) - before
        connection.outbound.grow(anyway=True)  # once: the next line narrows it
        connection.outbound.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        share = self.shares.setdefault(uid, Share(self.limits))
        self.clients.append(Client(self.count, uid, sock, connection, share))
        self.clients[-1].patterns[pattern] += 1

    @rule(data=st.data(), pattern=st.sampled_from(PATTERNS))
    def subscribe(self, data: st.DataObject, pattern: bytes) -> None:
        client = self.draw(data)
        if client is None:
            return
        client.sock.send(b"SUB " + pattern)
        client.patterns[pattern] += 1

    @rule(data=st.data(), pattern=st.sampled_from(PATTERNS))
    def unsubscribe(self, data: st.DataObject, pattern: bytes) -> None:
        client = self.draw(data)
        if client is None:
            return
        client.sock.send(b"UNSUB " + pattern)
        if client.patterns[pattern]:
            client.patterns[pattern] -= 1
        else:
            self.ignored += 1

    @rule(data=st.data(), on=st.booleans())
    def choose_echo(self, data: st.DataObject, on: bool) -> None:
        client = self.draw(data)
        if client is None:
            return
        client.sock.send(b"CMSG echo/on" if on else b"CMSG echo/off")
        client.echo = on

    @rule(data=st.data(), soft=st.sampled_from(SOFT), hard=st.sampled_from(HARD))
    def choose_modes(self, data: st.DataObject, soft: Soft, hard: Hard) -> None:
        client = self.draw(data, calm=True)
        if client is not None:
            self.choose(client, soft, hard)

    def choose(self, client: Client, soft: Soft, hard: Hard) -> None:
        client.sock.send(b"CMSG blocking/soft/" + soft.encode())
        client.sock.send(b"CMSG blocking/hard/" + hard.encode())
        client.soft, client.hard = soft, hard
        self.let_go(client, anyway=True)

    @rule(data=st.data(), order=st.sampled_from(ORDER))
    def choose_order(self, data: st.DataObject, order: str) -> None:
        client = self.draw(data, calm=True)
        # Sorting anew may wait for more messages; that is told in the tests of the outbox.
        if client is None or (client.waiting and "random" in (order, client.order)):
            return
        client.sock.send(b"CMSG order/" + order.encode())
        client.order = order
        self.let_go(client, anyway=True)

    @rule(data=st.data(), messages=MESSAGES)
    def publish(self, data: st.DataObject, messages: list[tuple[bytes, int]]) -> None:
        client = self.draw(data, free=False)
        if client is not None:
            self.say(client, messages)

    @rule(data=st.data(), messages=MESSAGES)
    def publish_as_another_user(self, data: st.DataObject, messages: list[tuple[bytes, int]]) -> None:
        """From the client that has published least, so that a queue has several senders."""
        clients = [client for client in self.clients if not client.leaving]
        if clients:
            self.say(min(clients, key=lambda client: (client.received + len(client.unread), client.number)), messages)

    def say(self, client: Client, messages: list[tuple[bytes, int]]) -> None:
        if client.holders and any(other.unread for other in self.clients if other is not client):
            return  # who of several goes first once all may go on is not said
        if len(client.unread) > 30:
            return  # its socket has room for some fifty
        packets = []
        for key, size in messages:
            self.count += 1
            packets.append(b"MSG %b\0%b" % (key, (b"%08d" % self.count).ljust(size, b".")))
        order = self.observe(packets)
        for packet in packets:
            client.sock.send(packet)
        if client.holders:
            client.unread += packets
        else:
            self.turn(client, packets, order)

    @rule(data=st.data())
    def read_one(self, data: st.DataObject) -> None:
        client = self.draw(data, free=False, calm=True)
        if client is not None:
            self.read(client)

    @rule(data=st.data())
    def read_all(self, data: st.DataObject) -> None:
        client = self.draw(data, free=False, calm=True)
        while client is not None and client.kernel is not None and not client.closed:
            self.read(client)
            self.agrees()

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        client = self.draw(data, free=False, calm=True)
        if client is None:
            return
        unread = [packet for held in client.holds for packet in held.unread]
        if any(client.wants(key_of(packet)) for packet in unread):
            return  # whether it is still among the receivers of what it held back is not said
        client.sock.close()
        if not client.holders:
            self.end(client)
            return
        client.leaving = True
        if client.waiting:  # the hub watches for room, and so sees the end
            self.silence(client)

    @rule(data=st.data())
    def offend(self, data: st.DataObject) -> None:
        client = self.draw(data, calm=True)
        if client is None:
            return
        client.sock.send(b"nonsense")
        self.end(client)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "hub"):
            return
        settle(self.hub)
        balance(self.hub)
        by_publisher: dict[object, Client] = {client.connection: client for client in self.clients}
        by_outgoing: dict[object, Client] = {client.connection.outbound: client for client in self.clients}
        assert set(self.hub.clients.connections.values()) == by_publisher.keys()
        for client in self.clients:
            connection = client.connection
            connection._lone = None  # what is sent at once comes in one batch, as the model has it
            told = connection.statistics()
            assert told.published == client.received
            assert (told.routed, told.delivered, told.waiting) == (client.routed, client.delivered, len(client.waiting))
            assert causes(told.lost) == causes(client.lost)
            assert told.patterns == len(+client.patterns)
            assert {by_outgoing[holder] for holder in connection.pausers} == client.holders
            assert {by_publisher[held] for held in connection.outbound.held} == client.holds
            if client.kernel is not None and not client.leaving:
                assert client.sock.recv(LARGEST * 2, socket.MSG_PEEK) == client.kernel
        for uid, share in self.shares.items():
            account = self.hub.context.quotas.account(uid)
            assert (account.packets._held, account.queued_bytes._held) == (
                {sender: held[0] for sender, held in share.held.items()},
                {sender: held[1] for sender, held in share.held.items()},
            )
        whole = self.hub.statistics()
        everybody = [*self.clients, *self.gone]
        assert whole.published == sum(client.received for client in everybody)
        assert whole.routed == sum(client.routed for client in everybody)
        assert whole.delivered == sum(client.delivered for client in everybody)
        lost, expected = Counter(whole.lost), sum((client.lost for client in everybody), Counter[str]())
        if self.limits.fanout != PLENTY:
            # What comes for a client that is about to be let go is discarded, or finds it gone after a while in a line.
            for counts in (lost, expected):
                counts["outage"] += counts.pop("discard", 0)
        assert causes(lost) == causes(expected)
        assert whole.ignored == self.ignored

    # -- the model ---------------------------------------------------------------------------------

    def observe(self, packets: list[bytes]) -> dict[bytes, list[Client]]:
        """The receivers of each key, in the hub's order; exactly the clients whose patterns match."""
        settle(self.hub)
        orders = self.orders(packets)
        for key, found in orders.items():
            assert sorted(client.number for client in found) == [c.number for c in self.clients if c.wants(key)]
        return orders

    def turn(self, sender: Client, packets: list[bytes], order: dict[bytes, list[Client]]) -> None:
        assert not self.in_turn
        self.in_turn = True
        sender.received += len(packets)
        mine: dict[Client, list[bytes]] = {}
        for packet in packets:
            for receiver in order[key_of(packet)]:
                mine.setdefault(receiver, []).append(packet)
        # Receivers of the same packets follow one another.
        alike: dict[tuple[bytes, ...], list[Client]] = {}
        for receiver, several in mine.items():
            alike.setdefault(tuple(several), []).append(receiver)
        turns = [(receiver, list(several)) for several, some in alike.items() for receiver in some]
        condemned = [receiver for receiver, several in turns if self.deliver(receiver, sender, several)]
        for receiver in reversed(condemned):
            self.end(receiver)
        # Those who wait to be read again are, in the rounds that follow.
        self.in_turn = False
        released, self.released = self.released, []
        for client in released:
            self.go_on(client)

    def deliver(self, receiver: Client, sender: Client, packets: list[bytes]) -> bool:
        """Whether the receiver is to be disconnected."""
        if receiver is sender and not receiver.echo:
            return False
        receiver.routed += len(packets)
        if receiver.leaving and not receiver.mute:
            self.silence(receiver)
        if receiver.mute:
            receiver.lost["outage"] += len(packets)
            return False
        if receiver.kernel is None:
            assert not receiver.waiting
            receiver.kernel, *packets = packets
            receiver.delivered += 1
        may_hold = receiver is not sender and receiver.uid in (sender.uid, TRUSTED)
        for position, packet in enumerate(packets):
            match self.offer(receiver, sender, packet, may_hold):
                case "error":
                    receiver.lost["discard"] += len(packets) - position - 1
                    return True
                case "hold":
                    receiver.for_room = receiver.soft != "block"
                    receiver.holds.add(sender)
                    sender.holders.add(receiver)
        return False

    def offer(self, receiver: Client, sender: Client, packet: bytes, may_hold: bool) -> str:
        soft, hard = receiver.soft, receiver.hard
        below = is_below_share(receiver.waiting, sender.uid, len(packet), self.limits)
        if not may_hold:
            soft = "queue" if soft == "block" else soft
            hard = "discard" if hard == "block" else hard
        if soft in ("discard", "error"):
            receiver.lost["discard"] += 1
            return soft
        waiting = receiver.waiting
        overflow = not below and is_full(waiting, len(packet), self.limits)
        action = "hold" if soft == "block" and not below else "keep"
        if overflow or not receiver.share.fits(sender.uid, len(packet)):
            if hard != "block":
                receiver.lost["overflow" if overflow else "quota"] += 1
                return hard
            action = "hold"
            packets, size = receiver.share.remaining()
            if packets < 1 or size < len(packet):
                receiver.lost["quota"] += 1
                return "hold" if waiting else "discard"
        receiver.share.charge(sender.uid, len(packet), 1)
        waiting.append((packet, sender.uid))
        return action

    def read(self, client: Client) -> None:
        if client.kernel is None:
            with suppress(BlockingIOError):
                raise AssertionError(f"came from nowhere: {client.sock.recv(LARGEST)!r}")
            return
        assert client.sock.recv(LARGEST * 2) == client.kernel
        client.kernel = None
        if client.waiting:
            client.kernel = client.take()
            client.delivered += 1
            self.let_go(client)

    def let_go(self, receiver: Client, anyway: bool = False) -> None:
        """The publishers that this receiver holds go on if there is room for them."""
        waiting, limits = receiver.waiting, self.limits
        half = 2 * len(waiting) <= limits.queued_packets and 2 * sum(len(p) for p, _ in waiting) <= limits.queued_bytes
        going = []
        for held in list(receiver.holds):
            below = is_below_share(waiting, held.uid, 1, limits)
            room = (below or (receiver.for_room and half)) and receiver.share.fits(held.uid, 1)
            if anyway or not waiting or room:
                receiver.holds.discard(held)
                held.holders.discard(receiver)
                going.append(held)
        if self.in_turn:
            self.released += going
            return
        for held in going:
            self.go_on(held)

    def go_on(self, client: Client) -> None:
        """A client that is held no more is read again."""
        if client.holders or client.closed:
            return
        unread, client.unread = client.unread, []
        if unread:
            self.turn(client, unread, self.orders(unread))
        if client.leaving and not client.closed:
            # Its end is in the same batch as its last messages, so a hold that these bring comes too late.
            self.end(client)

    def orders(self, packets: list[bytes]) -> dict[bytes, list[Client]]:
        """As :meth:`observe`, of a moment that is past: no pattern has come or gone since."""
        by_outgoing: dict[Any, Client] = {client.connection.outbound: client for client in self.clients}
        found = {key: self.hub.context.router._look_up(key) for key in map(key_of, packets)}
        return {key: [by_outgoing[one] for one in receivers if one in by_outgoing] for key, receivers in found.items()}

    def silence(self, client: Client) -> None:
        """Nothing can be sent to this client any more."""
        client.mute = True
        self.lose_all(client)

    def lose_all(self, client: Client) -> None:
        client.lost["outage"] += len(client.waiting)
        for packet, sender in client.waiting:
            client.share.charge(sender, len(packet), -1)
        client.waiting.clear()
        self.let_go(client, anyway=True)

    def end(self, client: Client) -> None:
        """The hub closes the connection."""
        if client.closed:
            return
        client.closed = client.mute = True
        self.clients.remove(client)
        self.gone.append(client)
        for holder in client.holders:
            holder.holds.discard(client)
        client.holders.clear()
        self.lose_all(client)


TestBusMachine = BusMachine.TestCase
TestBusMachine.settings = settings(max_examples=60, stateful_step_count=40)
