"""Receiver that a recorder attaches to its hub: copies messages for the writer, and pauses publishers.

Publishers of a user below its share of the queue are never paused, and their messages always have room. This is the
rule of a client's queue, see :mod:`sbuslib.core.outbox`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from time import time_ns
from typing import TYPE_CHECKING

from gevent.event import Event

from ..core.backpressure import Backpressure
from ..core.quotas import Room
from ..secrets import answerable
from ..statistics import ClientStatistics
from ..wire.control import MOST_LOST, Away
from .chunks import Chunk, own_users
from .limits import JournalLimits
from .writer import Gap, Writer

if TYPE_CHECKING:
    from ..core.clients import Clients
    from ..core.context import Context
    from ..core.messages import Messages
    from ..core.protocols import Pausable, Sender
    from ..wire.control import Lost


class _Portion:
    """Amounts of each user in one portion for the writer."""

    __slots__ = ("by_user", "count", "end", "size")

    def __init__(self) -> None:
        #: Messages and bytes of each user.
        self.by_user: dict[int, tuple[int, int]] = {}
        #: The sums of both.
        self.count = self.size = 0
        self.end = 0  # how many messages the writer has taken once it has taken this portion


class Intake:
    """Receives messages in the turns of the hub, and hands them to the writer in portions.

    Implements :class:`~sbuslib.core.protocols.LocalReceiver` and :class:`~sbuslib.core.protocols.Pauser`.

    :param hold: pause publishers when the writer does not keep up.
    :param run: runs the callbacks of timers, and handles their errors.
    """

    takes_batches = False

    def __init__(
        self,
        context: Context,
        clients: Clients,
        writer: Writer,
        limits: JournalLimits,
        *,
        hold: bool,
        run: Callable[[Callable[[], None]], None],
    ) -> None:
        self.credentials = context.running.credentials  # this process
        self.account = context.quotas.account(self.credentials.uid)  # of the hub's own user
        self.closed = False  # whether nothing more comes
        self.routed = 0  # messages that were to come here, ever
        self.lost: dict[str, int] = {}  # those of them that are not in the journal, by cause
        #: Messages that wait to be handed to the writer, and their bytes.
        self.waiting = self.waiting_bytes = 0
        #: Set once the writer has ended.
        self.ended = Event()
        #: Called when the hub or the recorder closes this.
        self.on_close: Callable[[], None] = lambda: None
        self._context = context
        #: Those of the hub.
        self._clients = clients
        #: Prefix and separator of the hub, which may change when it joins a tree.
        self._namespace = context.router.namespace
        self._writer = writer
        self._bounds = limits
        self._hold = hold
        self._run = run

        #: Most messages that the writer had not written.
        self._peak = 0
        #: The messages that wait.
        self._chunks: list[Chunk] = []
        #: Losses without a gap row yet, by cause.
        self._gaps: dict[str, Gap] = {}
        #: Hands over what waits, once in ``block_seconds``.
        self._timer = context.running.loop.timer(limits.block_seconds, limits.block_seconds)
        #: Whether that timer runs.
        self._is_timing = False
        #: The publishers that are paused.
        self._backpressure = Backpressure(self, context, lambda: run(self._on_block_timeout))
        #: Whether the writer's queue has been full, and is not yet half empty.
        self._is_full = False
        #: Whether publishers were paused for as long as they may be. None is, until the queue is half empty.
        self._held_too_long = False
        #: Room in the queue that each user takes.
        self._by_user = Room(limits.queued_records, limits.queued_bytes)
        #: Portions that the writer has not written, the oldest first.
        self._portions: deque[_Portion] = deque()
        #: The one that is being filled.
        self._portion = _Portion()
        #: The last sender; ``None`` if that may be gone.
        self._sender: Sender | None = None
        #: Its user.
        self._uid = 0
        #: The hub's prefix when it sent.
        self._prefix = b""
        #: Its credential key, and the gid, uid and pid of the process that answers for it.
        self._ids: tuple[bytes, int | None, int | None, int | None] = (b"", None, None, None)

    def attach(self, *, tap: bool) -> None:
        """Receive everything but secrets from now on: as a tap, or as a subscriber to everything."""
        self._clients.add_inbox(self)
        if tap:
            self._context.router.add_tap(self, False)
        else:
            self._context.router.subscribe(self._context.router.cut(b""), self, self.credentials, self.account)

    # -- messages -----------------------------------------------------------------------------------

    def deliver(self, sender: Sender, messages: Messages) -> None:
        """Keep copies of messages, or the batch that they are in."""
        if self.closed:
            return
        count, size = messages.count, messages.size
        self.routed += count
        if self._is_full and not self._has_room_for(sender, count, size):
            return

        # The ids are looked up once for a run of messages of one sender.
        if sender is not self._sender or self._namespace.prefix is not self._prefix:
            self._charge()
            self._sender, self._prefix, self._uid = sender, self._namespace.prefix, sender.credentials.uid
            key = sender.key
            self._ids = (key, *self._answerable_ids(key))

        # Those that wait are handed over by a timer at the latest.
        self._chunks.append(Chunk(time_ns(), *self._ids, messages.columns()))
        if not self._is_timing:
            self._is_timing = True
            self._timer.start(self._run, self._on_time)
        self.waiting += count
        self.waiting_bytes += size
        if self.waiting >= self._bounds.block_records or self.waiting_bytes >= self._bounds.block_bytes:
            self.hand_over()

    def _answerable_ids(self, key: bytes) -> tuple[int | None, int | None, int | None]:
        """Ids of the process that is responsible for a sender's messages; unknown for a sender above this hub."""
        namespace = self._namespace
        if not key.startswith(namespace.prefix + namespace.start):
            return None, None, None
        return answerable(namespace.chain(key[len(namespace.prefix) :]), own_users()).known()

    def _on_time(self) -> None:
        """Hand over waiting messages, once in ``block_seconds``; stop the timer when nothing has come in that time."""
        if self.waiting:
            self.hand_over()
        else:
            self._timer.stop()
            self._is_timing = False

    def _charge(self) -> None:
        """Charge the messages since the last charge to the user of their sender, which is still the last one."""
        portion = self._portion
        count, size = self.waiting - portion.count, self.waiting_bytes - portion.size
        if count:
            before = portion.by_user.get(self._uid, (0, 0))
            portion.by_user[self._uid] = before[0] + count, before[1] + size
            portion.count, portion.size = self.waiting, self.waiting_bytes
            self._by_user.force_room(self._uid, count, size)

    def _release(self) -> None:
        """Release the room of portions that the writer has written."""
        while self._portions and self._portions[0].end <= self._writer.taken_records:
            for uid, (count, size) in self._portions.popleft().by_user.items():
                self._by_user.give_room(uid, count, size)

    def hand_over(self) -> None:
        """Hand waiting messages to the writer."""
        self._peak = max(self._peak, self.queued)
        gaps = [*self._gaps.values()] if not self._is_full else []
        if self.waiting or gaps:
            self._writer.put(self._chunks, gaps, self.waiting, self.waiting_bytes)
        if self.waiting:
            self._charge()
            self._portion.end = self._writer.put_records
            self._portions.append(self._portion)
            self._portion = _Portion()
            self._release()

        # All of that is the writer's now.
        if gaps:
            self._gaps.clear()
        self._chunks = []
        self.waiting = self.waiting_bytes = 0
        self._sender = None  # it may be gone when the next message comes
        if self._writer.fill > 1:
            self._is_full = self._writer.wakes = True

    def notify(self, notice: Lost | Away) -> None:
        """Note that messages were lost between two hubs of the tree, so that the journal lacks them."""
        if isinstance(notice, Away):
            self._gaps.setdefault("away", Gap(int(notice.since * 1e9), "away", None))
        else:
            self._note_gap(notice.cause, notice.count, int(notice.since * 1e9))
        if not self._is_full:
            self.hand_over()

    def _note_gap(self, cause: str, count: int, since: int) -> None:
        gap = self._gaps.get(cause)
        if gap is not None:
            since, count = min(gap.time_ns, since), (gap.lost or 0) + count
        self._gaps[cause] = Gap(since, cause, min(count, MOST_LOST))

    # -- when the writer does not keep up -----------------------------------------------------------

    def _has_room_for(self, sender: Sender, count: int, size: int) -> bool:
        """Whether to keep messages though the queue is full.

        They are kept if their user is below its share, or if their publisher is held back from now on.
        """
        # 1. There is room again, or there is for this user.
        self.relieve()
        if not self._is_full:
            return True
        self._charge()
        if self._by_user.is_below_share(sender.credentials.uid, count, size):
            return True

        # 2. A paused publisher sends only what the hub has read already. A hub that stops reads all the rest.
        publisher = sender.holdable_by(self) if self._hold and not self._held_too_long else None
        if publisher is not None and not (self._writer.fill >= 2 and publisher in self.held):
            self._backpressure.pause(publisher)
            return True

        # 3. Else they are lost, which a gap row records.
        cause = "timeout" if self._held_too_long else "overflow"
        self.lost[cause] = self.lost.get(cause, 0) + count
        self._note_gap(cause, count, time_ns())
        return False

    def _on_block_timeout(self) -> None:
        self._held_too_long = True
        self._release_all()

    def relieve(self) -> None:
        """Release publishers whose user is below its share; release all when the queue is at most half full."""
        self._release()
        if self._is_full and self._writer.fill <= 0.5:
            self._is_full = self._held_too_long = self._writer.wakes = False
            self.hand_over()
            self._release_all()
        elif self.held:
            self._charge()
            self._backpressure.resume(lambda publisher: self._by_user.is_below_share(publisher.credentials.uid))

    def _release_all(self) -> None:
        self._backpressure.resume(lambda _: True)

    @property
    def held(self) -> Set[Pausable]:
        """The publishers that are paused."""
        return self._backpressure.publishers.keys()

    def forget_paused(self, publisher: Pausable) -> None:
        """Forget a publisher that was paused and is gone. Implements :class:`~sbuslib.core.protocols.Pauser`."""
        self._backpressure.forget(publisher)

    # -- the end ------------------------------------------------------------------------------------

    def unsubscribe(self) -> None:
        """Stop receiving, and return once the writer has ended."""
        if not self.closed:
            try:
                self._leave()
            finally:
                self.on_close()
                self._clients.forget_inbox(self)
        elif not self._writer.is_abandoned:
            self.ended.wait()

    def give_up(self) -> int:
        """Stop receiving, since the writer has ended. Returns the number of messages that are not in the journal."""
        was_closed = self.closed
        if not was_closed:
            self._leave()
        if stopped := self._writer.queued_records:
            self.lost["stopped"] = stopped
        if not was_closed:
            self._clients.forget_inbox(self)
        return sum(self.lost.values())

    def end(self) -> None:
        """Stop receiving after a take-over of the hub. Returns, as :meth:`unsubscribe`, once the writer has ended."""
        self._leave()
        self.on_close()

    def _leave(self) -> None:
        if self._context.is_serving:
            self._context.check_here()
        self._is_full = False
        self.closed = True
        try:
            self.hand_over()
        finally:
            self._timer.close()
            self._release_all()

    # -- statistics ---------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Messages that are neither written nor lost."""
        return self.waiting + self._writer.queued_records if not self._writer.finished else 0

    @property
    def delivered(self) -> int:
        """Messages taken by the writer; once closed, all that were not lost."""
        return self.routed - sum(self.lost.values()) - (0 if self.closed else self.queued)

    def statistics(self) -> ClientStatistics:
        """Return the statistics of this recorder as a receiver, at this instant."""
        waiting, router = self.queued, self._context.router

        return ClientStatistics(
            credentials=router.namespace.credential_key(self.credentials).decode(),
            patterns=router.count(self),
            routed=self.routed,
            delivered=self.routed - sum(self.lost.values()) - waiting,
            waiting=waiting,
            waiting_peak=max(self._peak, waiting),
            full=round(self._writer.fill, 3),
            lost=dict(self.lost),
            soft="queue",
            hard="block" if self._hold else "discard",
            order="queue",
        )
