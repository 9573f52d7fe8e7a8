"""The queue of one receiver beside a list that does the same."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbuslib.limits import Limits
from sbuslib.outbox import Outbox


class OutboxMachine(RuleBasedStateMachine):
    """Messages and answers come, packets go; nothing is lost but new messages that find the queue full."""

    @initialize(packets=st.integers(1, 6), size=st.integers(1, 60), answers=st.integers(1, 4))
    def begin(self, packets: int, size: int, answers: int) -> None:
        self.limits = Limits(queued_packets=packets, queued_bytes=size, queued_answers=answers)
        self.box = Outbox(self.limits)
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
        assert self.box.push(packet) is not full
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
        count = data.draw(st.integers(0, len(self.model)))
        self.box.pop(count)
        del self.model[:count]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "box"):
            return
        assert self.box.first(100) == [packet for packet, _ in self.model]
        assert self.box.first(1) == [packet for packet, _ in self.model[:1]]
        assert len(self.box) == len(self.model)
        assert self.box.bytes == sum(len(packet) for packet, _ in self.model)
        assert self.box.lost == self.lost


TestOutboxMachine = OutboxMachine.TestCase
