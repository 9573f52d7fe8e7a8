"""The queue of one receiver beside a list that does the same."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbuslib.limits import Limits
from sbuslib.outbox import Action, Outbox
from sbuslib.quota import Account


class OutboxMachine(RuleBasedStateMachine):
    """Messages and answers come, packets go; nothing is lost but new messages that find the queue full.

    In the default modes; the others are told in the unit tests.
    """

    @initialize(packets=st.integers(1, 6), size=st.integers(1, 60), answers=st.integers(1, 4))
    def begin(self, packets: int, size: int, answers: int) -> None:
        self.limits = Limits(queued_packets=packets, queued_bytes=size, queued_answers=answers)
        self.account = Account(1000, self.limits)
        self.box = Outbox(self.limits, self.account)
        self.model: list[tuple[bytes, bool]] = []
        self.lost = 0
        self.count = 0

    def packet(self, size: int) -> bytes:
        self.count += 1
        return b"%d" % self.count + bytes(size)

    @rule(size=st.integers(0, 30))
    def push(self, size: int) -> None:
        packet = self.packet(size)
        full = (
            len(self.model) >= self.limits.queued_packets
            or sum(len(other) for other, _ in self.model) + len(packet) > self.limits.queued_bytes
        )
        assert self.box.offer([packet], 7, True, 0.0) is (Action.LOSE if full else Action.KEEP)
        if full:
            self.lost += 1
        else:
            self.model.append((packet, False))

    @rule(size=st.integers(0, 30))
    def push_answer(self, size: int) -> None:
        packet = self.packet(size)
        self.model.append((packet, True))
        waiting = sum(is_answer for _, is_answer in self.model)
        assert self.box.push_answer(packet) is (waiting <= self.limits.queued_answers)

    @rule(data=st.data())
    def pop(self, data: st.DataObject) -> None:
        taken = data.draw(st.integers(0, len(self.model) + 1))
        sent = data.draw(st.integers(0, min(taken, len(self.model))))
        assert self.box.take(taken) == [packet for packet, _ in self.model[:taken]]
        assert self.box.settle(sent) == sum(not is_answer for _, is_answer in self.model[:sent])
        del self.model[:sent]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "box"):
            return
        assert len(self.box) == len(self.model)
        assert self.box.messages == sum(not is_answer for _, is_answer in self.model)
        assert self.box.bytes == sum(len(packet) for packet, _ in self.model)
        assert self.box.lost.total() == self.lost
        messages = [packet for packet, is_answer in self.model if not is_answer]
        assert self.account.packets.held(7) == len(messages)
        assert self.account.queued_bytes.held(7) == sum(map(len, messages))


TestOutboxMachine = OutboxMachine.TestCase
