"""What the embedder of a hub receives: subscriptions and taps, which are clients without a socket.

Both are queues inside the process, bounded as any client's, with the default rule: when full, the message
that came last is lost and counted. They belong to the thread of the hub's event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from gevent.event import Event
from gevent.timeout import Timeout

from ..errors import DisconnectedError
from ..limits import check_count
from ..statistics import ClientStatistics
from ..wire.control import Away, Lost
from ..wire.packets import Message, parse
from .context import Context
from .messages import Messages
from .protocols import Sender

__all__ = ["Inbox"]


class Inbox:
    """What an embedder subscribed to: a :class:`~sbuslib.Subscription`. ``hub.subscribe`` and ``hub.tap`` return it.

    Its queue is the hub's, as for any client: ``lost`` counts all that was lost there. Each message carries its sender.
    """

    takes_batches = False

    def __init__(self, context: Context, *patterns: bytes) -> None:
        self._context = context
        self.patterns = patterns  # what is subscribed to; none for a tap
        self.credentials = context.credentials  # this process
        self.account = context.quotas.account(self.credentials.uid)  # of the hub's own user
        self._limits = context.limits  # the hub's
        self._waiting: deque[tuple[bytes, bytes]] = deque()  # credential key of the sender, and packet
        self._bytes = 0  # of the packets that wait
        self._ready = Event()  # set when a message comes, or the end
        self.closed = False  # it receives nothing more
        self.routed = 0  # messages that were to come here, ever
        self.taken = 0  # messages that the application has taken
        self.peak = 0  # most messages that waited
        self.lost: dict[str, int] = {}  # messages without room, by cause

    def __enter__(self) -> Inbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.unsubscribe()

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    def deliver(self, sender: Sender, messages: Messages) -> None:
        """Keep copies of messages: the hub's side."""
        if self.closed:
            return
        for packet in messages.packets():
            self.routed += 1
            size = self._bytes + len(packet)
            if len(self._waiting) >= self._limits.queued_packets or size > self._limits.queued_bytes:
                self.lost["overflow"] = self.lost.get("overflow", 0) + 1
                continue
            self._bytes = size
            self._waiting.append((sender.key, packet))
        self.peak = max(self.peak, len(self._waiting))
        self._ready.set()

    def notify(self, notice: Lost | Away) -> None:
        """Messages were lost between two hubs of the tree. Nothing that a plain inbox could do about it."""

    @property
    def delivered(self) -> int:
        """Messages taken by the application."""
        return self.taken if not self.closed else self.taken + len(self._waiting)

    def statistics(self) -> ClientStatistics:
        """This inbox at this instant."""
        return ClientStatistics(
            number=0,
            credentials=self._context.router.namespace.credential_key(self.credentials).decode(),
            patterns=self._context.router.count(self),
            published=0,
            routed=self.routed,
            delivered=self.taken,
            waiting=len(self._waiting),
            waiting_peak=self.peak,
            lost=dict(self.lost),
            soft="queue",
            hard="discard",
            order="queue",
        )

    def receive(self, *, timeout: float | None = None) -> Message:
        """The next message, oldest first.

        Raises :exc:`TimeoutError` after ``timeout`` seconds, and
        :exc:`~sbuslib.errors.DisconnectedError` when this inbox or its hub was closed and nothing is left.
        """
        while not self._waiting:
            if not self.closed:
                self._context.check_here()
            else:
                raise DisconnectedError("the subscription was taken back")
            self._ready.clear()
            with Timeout(timeout, TimeoutError(f"no message within {timeout} s")):
                self._ready.wait()
        sender, packet = self._waiting.popleft()
        self._bytes -= len(packet)
        self.taken += 1
        message = parse(packet)
        assert isinstance(message, Message)
        return Message(message.key, message.payload, sender)

    def receive_many(self, *, most: int | None = None, timeout: float | None = None) -> list[Message]:
        """At least one message, and all others that are here, up to ``most``. Raises as :meth:`receive`."""
        check_count(most, "most")
        messages = [self.receive(timeout=timeout)]
        while self._waiting and (most is None or len(messages) < most):
            messages.append(self.receive())
        return messages

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until this inbox or its hub is closed."""
        while True:
            try:
                message = self.receive()
            except DisconnectedError:
                return
            yield message

    def unsubscribe(self) -> None:
        """Receive no more. Messages that wait can still be taken."""
        if not self.closed:
            if self._context.is_serving:
                self._context.check_here()
            self._context.members.forget_inbox(self)
            self.end()

    def end(self) -> None:
        """Nothing more comes."""
        self.closed = True
        self._ready.set()
