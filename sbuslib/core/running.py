"""State of a running hub, from a start to its stop: :class:`Running`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import gevent
from gevent.event import Event

from ..kernel.packet_writer import PacketWriter
from ..kernel.receive_buffer import make_receive_buffer
from ..limits import Limits
from ..reasons import Reason
from ..secrets import Credentials
from .charged_work import ChargedWork
from .delivery_barrier import DeliveryBarrier
from .protocols import Receiver
from .scheduler import Scheduler

PASSED_WAIT: Final = 1.0
"""Seconds that an answer to ``hub/sync passed`` waits for a receiver that takes nothing: see
:mod:`.delivery_barrier`.
"""


class Running:
    """The event loop of the thread that made it, and the timers and jobs of one hub in it.

    :param kick: disconnects a client for a violation.
    """

    def __init__(self, limits: Limits, kick: Callable[[Receiver, Reason], None]) -> None:
        self.pid = os.getpid()
        """Of the process that serves; 0: none, any more."""
        self.credentials = Credentials(gid=os.getgid(), uid=os.getuid(), pid=self.pid)
        """This process as a sender and a receiver."""
        self.event_loop = gevent.get_hub()
        """gevent's hub, of the thread that serves."""
        self.loop: Any = self.event_loop.loop  # libev's, or libuv's
        self._counts_rounds = hasattr(self.loop, "iteration")  # libev does

        self.buffer = make_receive_buffer(limits.batch)
        """Where packets are received. Its content is good until the end of the turn that received it."""
        self.writer = PacketWriter()  # of packets that do not lie in the receive buffer
        self.scheduler = Scheduler(self.loop)  # which user has the next turn
        self.work = ChargedWork(self.scheduler, limits.turn_time)  # what a user's changes cause
        self.delivery_barrier = DeliveryBarrier(self.after, PASSED_WAIT)  # receivers for which messages wait
        self.emptied = Event()
        """Set whenever nothing waits for some receiver any more."""

        self._timers: set[Any] = set()  # that run
        self._kick = kick
        self._to_kick: list[tuple[Receiver, Reason]] = []  # when the turn at hand has ended

    def stop(self) -> None:
        self.pid = 0
        self.cancel_all()
        self.buffer.close()

    def leave_to_parent(self) -> None:
        """In the child of a fork: give the event loop descriptors of its own, before any watcher is stopped.

        libuv's loop would take the descriptors of what it stops out of the epoll that it shares with the parent's.
        """
        if self.pid != os.getpid():
            self.loop.reinit()

    def cancel_all(self) -> None:
        self.scheduler.close()
        self.work.clear()
        for timer in list(self._timers):
            self.cancel(timer)
        self.delivery_barrier.clear()

    def round(self) -> int:
        """The number of the event loop's round; always 0 where it does not count them."""
        number: int = self.loop.iteration if self._counts_rounds else 0
        return number

    def after(self, seconds: float, function: Callable[[], None]) -> Any:
        """Call a function later. Returns the timer, for :meth:`cancel`."""
        timer = self.loop.timer(seconds)
        self._timers.add(timer)

        def run() -> None:
            self.cancel(timer)
            function()

        timer.start(run)
        return timer

    def cancel(self, timer: Any) -> None:
        if timer in self._timers:
            self._timers.discard(timer)
            timer.stop()
            timer.close()

    def kick_later(self, client: Receiver, reason: Reason) -> None:
        """Kick a client as soon as the turn at hand has ended: the receive buffer may be in use."""
        if not self._to_kick:
            self.loop.run_callback(self.kick_noted)
        self._to_kick.append((client, reason))

    def kick_noted(self) -> None:
        while self._to_kick:
            self._kick(*self._to_kick.pop())
