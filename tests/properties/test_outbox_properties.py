"""The queue of one receiver beside a list that does the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbuslib.core.outbox import Action, Outbox
from sbuslib.core.quotas import Account
from sbuslib.core.records import OutboxRecord
from sbuslib.limits import Limits
from sbuslib.wire.batches import QueuedBatch, coalesce
from sbuslib.wire.modes import HARD, ORDER, SOFT, Hard, Order, Soft

USERS = (7, 8, 9)


def handed_over(box: Outbox, limits: Limits, account: Account) -> Outbox:
    """The same queue on a hub that takes over."""
    record = msgspec.msgpack.decode(msgspec.msgpack.encode(box.record()), type=OutboxRecord)
    new = Outbox(limits, account)
    new.has_notices = box.has_notices
    new.restore(record)
    return new


Waiting: TypeAlias = Sequence[tuple[bytes, int | None]]
"""Packets with the user that sent each; ``None`` for an answer."""


def is_below_share(waiting: Waiting, user: int, size: int, limits: Limits) -> bool:
    """Whether a user is below its share of what waits with one more message of ``size`` bytes."""
    mine = [len(packet) for packet, sender in waiting if sender == user]
    users = len({sender for _, sender in waiting if sender is not None} | {user})
    packets, size = len(mine) + 1, sum(mine) + size
    return users > 1 and packets * users <= limits.queued_packets and size * users <= limits.queued_bytes


def is_full(waiting: Waiting, size: int, limits: Limits) -> bool:
    """Whether there is no room for one more message of ``size`` bytes."""
    whole = size + sum(len(packet) for packet, _ in waiting)
    return len(waiting) >= limits.queued_packets or whole > limits.queued_bytes


class OutboxMachine(RuleBasedStateMachine):
    """Messages of three users and answers come, packets go. Only new messages that find the queue full are lost.

    The queue is never full for a user that is below its share. The modes are the default ones, or ``block`` in both
    places; unit tests test the others.
    """

    @initialize(
        packets=st.integers(1, 6),
        size=st.integers(1, 60),
        answers=st.integers(1, 4),
        blocks=st.booleans(),
        order=st.sampled_from(ORDER),
    )
    def begin(self, packets: int, size: int, answers: int, blocks: bool, order: Order) -> None:
        self.limits = Limits(queued_packets=packets, queued_bytes=size, queued_answers=answers)
        self.account = Account(1000, self.limits)
        self.box = Outbox(self.limits, self.account)
        if blocks:
            self.box.soft = self.box.hard = "block"
        self.box.order = order
        self.model: list[tuple[bytes, int | None]] = []
        self.lost = 0
        self.count = 0

    def packet(self, size: int) -> bytes:
        self.count += 1
        return b"%d" % self.count + bytes(size)

    @rule(size=st.integers(0, 30), user=st.sampled_from(USERS))
    def push(self, size: int, user: int) -> None:
        packet = self.packet(size)
        below = is_below_share(self.model, user, len(packet), self.limits)
        full = not below and is_full(self.model, len(packet), self.limits)
        if self.box.hard == "block":
            expected = Action.KEEP if below else Action.HOLD
        else:
            expected = Action.LOSE if full else Action.KEEP
        if self.box.why_lost(user, True, len(packet)):
            assert expected is Action.LOSE
        assert self.box.offer([packet], user, True, 0.0) is expected
        if expected is Action.LOSE:
            self.lost += 1
        else:
            self.model.append((packet, user))

    @rule(size=st.integers(0, 30))
    def push_answer(self, size: int) -> None:
        packet = self.packet(size)
        self.model.append((packet, None))
        waiting = sum(sender is None for _, sender in self.model)
        assert self.box.push_answer(packet) is (waiting <= self.limits.queued_answers)

    @rule(data=st.data())
    def pop(self, data: st.DataObject) -> None:
        taken = data.draw(st.integers(0, len(self.model) + 1))
        sent = data.draw(st.integers(0, min(taken, len(self.model))))
        going = self.in_order()
        assert self.box.take(taken) == [packet for packet, _ in going[:taken]]
        assert self.box.settle(sent) == sum(sender is not None for _, sender in going[:sent])
        for one in going[:sent]:
            self.model.remove(one)

    def in_order(self) -> list[tuple[bytes, int | None]]:
        """The model in the order in which it goes: answers before all, unless the oldest goes first."""
        if self.box.order == "queue":
            return self.model
        answers = [one for one in self.model if one[1] is None]
        messages = [one for one in self.model if one[1] is not None]
        if self.box.order == "stack":
            return answers + messages[::-1]
        return answers + sorted(messages, key=lambda one: -len(one[0]))

    @rule()
    def hand_over(self) -> None:
        self.account = Account(1000, self.limits)
        self.box = handed_over(self.box, self.limits, self.account)

    @rule()
    def clear(self) -> None:
        self.lost += sum(sender is not None for _, sender in self.model)
        self.model.clear()
        self.box.clear("outage", 0.0)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "box"):
            return
        assert len(self.box) == len(self.model)
        assert self.box.messages == sum(sender is not None for _, sender in self.model)
        assert self.box.bytes == sum(len(packet) for packet, _ in self.model)
        assert self.box.losses.total.total() == self.lost
        for user in USERS:
            messages = [packet for packet, sender in self.model if sender == user]
            assert self.account.packets.held(user) == len(messages)
            assert self.account.queued_bytes.held(user) == sum(map(len, messages))
            assert self.box.is_below_share(user) is is_below_share(self.model, user, 1, self.limits)
        if self.box.hard != "block":
            harmonic = sum(self.limits.queued_packets // number for number in range(1, len(USERS) + 1))
            assert self.box.messages <= harmonic


class BatchMachine(RuleBasedStateMachine):
    """Two queues get the same messages, one of them as whole batches. All their counts stay equal."""

    @initialize(packets=st.integers(1, 40), size=st.integers(1, 900), user=st.integers(1, 80), data=st.data())
    def begin(self, packets: int, size: int, user: int, data: st.DataObject) -> None:
        limits = Limits(queued_packets=packets, queued_bytes=size, user_queued_packets=user, user_queued_bytes=2 * size)
        self.limits = limits
        self.boxes = [Outbox(limits, Account(1000, limits)) for _ in range(2)]
        for box in self.boxes:
            box.has_notices = True
        self.count = 0

    @rule(soft=st.sampled_from(SOFT), hard=st.sampled_from(HARD), order=st.sampled_from(ORDER))
    def choose(self, soft: Soft, hard: Hard, order: Order) -> None:
        for box in self.boxes:
            box.soft, box.hard, box.order = soft, hard, order

    @rule()
    def hand_over(self) -> None:
        self.boxes = [handed_over(box, self.limits, Account(1000, self.limits)) for box in self.boxes]

    @rule(
        sizes=st.lists(st.integers(0, 30), min_size=2, max_size=20),
        keys=st.integers(1, 3),
        wrapper=st.sampled_from([b"", b"CMSG from\0!/cred/1/2/3\0"]),
        sender=st.integers(7, 8),
        may_hold=st.booleans(),
        one_by_one=st.booleans(),
    )
    def offer(self, sizes: list[int], keys: int, wrapper: bytes, sender: int, may_hold: bool, one_by_one: bool) -> None:
        plain = []
        for number, size in enumerate(sizes):
            self.count += 1
            plain.append(b"MSG %d\0%06d" % (number % keys, self.count) + b"x" * size)
        batch = coalesce(plain)
        assert batch is not None
        packets = [wrapper + packet for packet in plain]
        batched, other = self.boxes
        action = None if one_by_one else batched.offer_batch(QueuedBatch.of(batch, wrapper), sender, may_hold)
        if action is None:
            action = batched.offer(packets, sender, may_hold, 0.0)
        assert other.offer(packets, sender, may_hold, 0.0) is action

    @rule(packet=st.binary(max_size=5))
    def push_answer(self, packet: bytes) -> None:
        for box in self.boxes:
            box.push_answer(b"CMSG " + packet)

    @rule(data=st.data())
    def pop(self, data: st.DataObject) -> None:
        batched, other = self.boxes
        packets = batched.take(data.draw(st.integers(0, 12)))
        sent = data.draw(st.integers(0, len(packets)))
        opened = [one.packets() if isinstance(one, QueuedBatch) else [one] for one in packets]
        expected = [packet for packets in opened for packet in packets]
        assert other.take(len(expected)) == expected
        assert other.settle(sum(map(len, opened[:sent]))) == batched.settle(sent)

    @rule()
    def open(self) -> None:
        self.boxes[0].open_batches()

    @rule()
    def clear(self) -> None:
        for box in self.boxes:
            box.clear("outage", 0.0)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "boxes"):
            return
        batched, other = (
            (
                *(len(box), box.messages, box.answers, box.bytes, box.losses.total, box.peak, box.is_half_empty()),
                *((box._account.packets.held(user), box._account.queued_bytes.held(user)) for user in (7, 8)),
            )
            for box in self.boxes
        )
        assert batched == other


TestOutboxMachine = OutboxMachine.TestCase
TestOutboxMachine.settings = settings(max_examples=60)
TestBatchMachine = BatchMachine.TestCase
TestBatchMachine.settings = settings(max_examples=60, stateful_step_count=30)
