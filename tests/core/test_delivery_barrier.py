"""When all that waits on a hub has been passed on."""

from __future__ import annotations

from collections.abc import Callable

from sbuslib.core.delivery_barrier import DeliveryBarrier


class Queue:
    """A receiver for which ``queued`` messages wait."""

    def __init__(self, queued: int, in_order: bool = True, hands_on: bool = False, is_hub: bool = False) -> None:
        self.queued = queued
        self.delivered = 0
        self.in_order = in_order
        self.hands_on = hands_on
        self.is_hub = is_hub

    def send(self, count: int, backlog: DeliveryBarrier) -> None:
        self.queued -= count
        self.delivered += count
        backlog.note(self, bool(self.queued))
        backlog.check()


class Timers:
    """The timers that were set, to be called by hand."""

    def __init__(self) -> None:
        self.set: list[Callable[[], None]] = []

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        self.set.append(function)

    def go_off(self) -> None:
        due, self.set = self.set, []
        for function in due:
            function()


def make(*queues: Queue, wait: float = 60.0) -> tuple[DeliveryBarrier, Timers, list[int]]:
    timers = Timers()
    backlog = DeliveryBarrier(timers.after, wait)
    for queue in queues:
        backlog.note(queue, True)
    return backlog, timers, []


def test_answers_come_in_the_order_of_the_questions_and_wait_for_no_later_messages() -> None:
    one = Queue(10)
    backlog, _, answers = make(one)
    for n in range(3):
        backlog.when_flushed(lambda n=n: answers.append(n))  # type: ignore[misc]
        one.queued += 10
    one.send(25, backlog)
    assert answers == [0]
    one.send(15, backlog)
    assert answers == [0, 1, 2]


def test_questions_that_came_later_wait_for_a_stopped_receiver_no_longer_than_the_first() -> None:
    stopped = Queue(10)
    backlog, timers, answers = make(stopped, wait=0.0)
    backlog.when_flushed(lambda: answers.append(1))
    backlog.when_flushed(lambda: answers.append(2))
    timers.go_off()
    assert answers == [1, 2]


def test_where_the_newest_goes_first_all_has_to_go() -> None:
    stack = Queue(10, in_order=False)
    backlog, _, answers = make(stack)
    backlog.when_flushed(lambda: answers.append(1))
    stack.queued += 1
    stack.send(10, backlog)
    assert not answers
    stack.send(1, backlog)
    assert answers == [1]


def test_the_answer_does_not_wait_for_a_receiver_that_is_cleared() -> None:
    gone = Queue(10)
    backlog, _, answers = make(gone)
    backlog.when_flushed(lambda: answers.append(1))
    backlog.note(gone, False)
    assert answers == [1]


def test_the_answer_waits_only_once_for_a_receiver_that_stopped() -> None:
    stopped, other = Queue(10), Queue(1)
    backlog, timers, answers = make(stopped, other, wait=0.0)
    backlog.when_flushed(lambda: answers.append(1))
    other.send(1, backlog)
    assert not answers
    timers.go_off()
    assert answers == [1]
    backlog.note(stopped, True)
    backlog.when_flushed(lambda: answers.append(2))
    assert answers == [1, 2]
    stopped.send(10, backlog)
    stopped.queued = 1
    backlog.note(stopped, True)
    backlog.when_flushed(lambda: answers.append(3))
    assert answers == [1, 2], "it had caught up, and is waited for again"


def test_the_answer_waits_for_a_hub_however_long_it_takes() -> None:
    hub, client = Queue(10, is_hub=True), Queue(10)
    backlog, timers, answers = make(hub, client, wait=0.0)
    backlog.when_flushed(lambda: answers.append(1))
    timers.go_off()
    assert not timers.set, "there is nothing to wait for but the hub"
    hub.send(9, backlog)
    assert not answers
    hub.send(1, backlog)
    assert answers == [1]


def test_the_answer_waits_for_messages_that_were_handed_over() -> None:
    giver, other, receiver = Queue(2, hands_on=True), Queue(9, hands_on=True), Queue(5)
    backlog, _, answers = make(giver)
    backlog.when_flushed(lambda: answers.append(1))
    backlog.note(receiver, True)
    backlog.note(other, True)
    giver.send(2, backlog)
    assert not answers
    receiver.queued += 3  # later, and of no account; nor is what the other one may hand on
    receiver.send(5, backlog)
    assert answers == [1]
