"""Messages to the parent: :class:`Uplink`, a receiver of the hub, which remains one while the link is broken.

It keeps messages that it cannot send: during an outage, until the parent has announced its interest, and while the
socket is full. Beyond a bound the new message is lost. The parent is asked now and then which messages it has passed
on; its answer *acknowledges* all that were sent before the question. A message that was sent and not acknowledged when
the connection breaks is *uncertain*: the parent may have passed it on, or not. It is never sent again.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from time import time
from typing import Final

from ..core.context import Context
from ..core.messages import COALESCED_BYTES, Copied, Messages
from ..core.outbound import Outbound
from ..core.protocols import Sender
from ..core.quotas import Account
from ..core.send_watcher import SendWatcher
from ..errors import ReservedKeyError
from ..secrets import Credentials
from ..wire import control
from ..wire.packets import MSG
from .link_losses import LinkLosses
from .loss_reports import LossReports
from .open_questions import OnAnswer
from .states import Event, State

ACK_MESSAGES: Final = 256
"""Messages sent to the parent before it is asked to acknowledge that it passed them on. When the link breaks, those
that were not acknowledged count as uncertain; an acknowledgement costs about as much as a message."""

ACK_PAUSE: Final = 0.02
"""Seconds after which an acknowledgement of fewer messages is asked for."""

_OPEN_ACKS: Final = 64
"""Questions for an acknowledgement that may be open at a time. While there are so many, the next question waits, and is
about more messages."""

_TAKEN: Final = 512
"""Messages that are taken at once to be sent on, if they have no more bytes than go into one packet."""


class Uplink:
    """The parent as a receiver. Implements :class:`~sbuslib.core.protocols.Receiver` and
    :class:`~sbuslib.core.delivery_barrier.Pending`.

    The messages of a child count as passed on, or as lost, once the parent has acknowledged or this hub has lost
    them.

    :param reports: reports lost messages to others.
    :param state: that of the link, by the table.
    """

    closed = False
    hands_on = False  # the parent acknowledges messages that it has handed on
    is_hub = True  # so it is waited for however long it takes
    in_order = True  # messages that wait are sent oldest first

    def __init__(self, context: Context, reports: LossReports, state: Callable[[], State]) -> None:
        self._context = context
        self._reports = reports
        self._state = state
        self.account = Account(os.getuid(), context.limits)
        """The parent's own account: neither it nor the clients here take the other's room."""

        self.offered = 0
        """Messages that were routed to it."""
        self.forwarded = 0
        """Messages that the kernel took."""
        self.acknowledged = 0
        """Messages that the parent has passed on, or that are uncertain."""
        self.waiting: deque[tuple[Sender, bytes]] = deque()
        """Messages that are kept, with their senders, oldest first."""
        self.waiting_bytes = 0
        """Bytes of all of them."""
        self.losses = LinkLosses(context, self._note_loss)
        """Messages that were lost on their way up, or may have been."""

        self._outbound: Outbound | None = None  # of the connection, while messages may be sent over it
        self._ask: Callable[[OnAnswer], None] = lambda answer: None  # asks the parent which messages it has passed on
        self._on: Callable[[Event], None] = lambda event: None  # has the link do what the table says
        self._watcher: SendWatcher | None = None  # while anything waits that may be sent
        self._asked = 0  # messages about which the parent was asked
        self._open_acks = 0  # questions that it has not answered
        self._asks_later = False  # whether it will be asked after a pause
        self._too_long = False  # whether the kernel refused the last message as too long

    @property
    def credentials(self) -> Credentials:
        """Those of this process."""
        return self._context.running.credentials

    @property
    def is_open(self) -> bool:
        """Whether messages may be sent."""
        return self._outbound is not None

    @property
    def takes_batches(self) -> bool:
        """Whether batches were announced to the parent."""
        return self._outbound is not None and self._outbound.takes_batches

    @property
    def _wraps(self) -> bool:
        """Whether the parent wants messages with their sender."""
        return self._outbound is not None and self._outbound.wants_senders

    # -- messages -----------------------------------------------------------------------------------

    def deliver(self, sender: Sender, messages: Messages) -> None:
        """Send messages up, or keep them."""
        if self.takes_batches:
            messages = messages.as_batch() or messages
        elif messages.is_batch:
            messages = messages.as_packets()
        self.offered += messages.count
        sent = 0 if self.waiting else self._send(sender, messages)
        if sent < messages.count:
            self._keep(sender, (messages.after(sent) if sent else messages).packets())

    def _keep(self, sender: Sender, packets: list[bytes]) -> None:
        lost = 0
        for packet in packets:
            if not self.has_room(len(packet)):
                lost += 1
            else:
                self.waiting.append((sender, packet))
                self.waiting_bytes += len(packet)
        if lost:
            self.losses.note("upstream", lost, time())
        self._update()

    def has_room(self, size: int) -> bool:
        """Whether another message of so many bytes may be kept."""
        limits = self._context.limits
        return self.waiting_bytes + size <= limits.link_buffer and len(self.waiting) < limits.link_packets

    def _send(self, sender: Sender, messages: Messages) -> int:
        """Send what the kernel takes. Returns how many messages it took."""
        outbound = self._outbound
        self._too_long = False
        if outbound is None or outbound.answers:
            return 0  # what this hub says goes before later messages
        sent = 0
        try:
            if outbound.wants_senders:
                sent = messages.send_wrapped(outbound.socket, sender.wrapper)
            else:
                sent = messages.send(outbound.socket)
        except OSError as error:  # the reading half learns of the end
            self._too_long = error.errno == errno.EMSGSIZE

        # While the parent has not acknowledged it, not all is passed on.
        if sent:
            first = self.forwarded == self.acknowledged
            self.forwarded += sent
            if first:
                self._context.running.delivery_barrier.note(self, True)
            self._consider_asking()
        return sent

    def _take(self) -> list[tuple[Sender, bytes]]:
        """Take the next kept messages: as many as go into one packet, of one sender where senders are sent."""
        items: list[tuple[Sender, bytes]] = []
        size = 0
        while self.waiting and len(items) < _TAKEN:
            sender, packet = self.waiting[0]
            size += len(packet)
            if items and (size > COALESCED_BYTES or (self._wraps and sender is not items[0][0])):
                break
            items.append(self.waiting.popleft())
            self.waiting_bytes -= len(packet)
        return items

    def _send_kept(self) -> None:
        """Send kept messages, until the kernel takes no more. Those that nobody above wants any more are left out."""
        while self._outbound is not None and self.waiting:
            items = [item for item in self._take() if self._is_wanted(item[1])]
            if not items:
                continue
            messages: Messages = Copied(self._context.running.writer, [packet for _, packet in items])
            if self.takes_batches:
                messages = messages.as_batch() or messages
            sent = self._send(items[0][0], messages)
            if sent == len(items):
                continue

            # Not all of it: the rest waits. A packet that is too long for the connection would wait for ever.
            if self._too_long and messages.is_batch:
                self._outbound.set_batches(False)  # each alone may fit
            elif self._too_long:
                sent += 1
                self.losses.note("upstream", 1, time())
            self.waiting.extendleft(reversed(items[sent:]))
            self.waiting_bytes += sum(len(packet) for _, packet in items[sent:])
            if not self._too_long:
                break
        self._update()

    def _is_wanted(self, packet: bytes) -> bool:
        """Whether the parent still wants a message that was kept. If not, and that is a loss, it is counted."""
        header = packet[: packet.find(b"\0") + 1]
        try:
            if self in self._context.router.route(header):
                return True
        except ReservedKeyError:
            pass
        if self._state() != "open" and not header[len(MSG) :].startswith(self._context.router.namespace.start):
            self.losses.note("unwanted", 1, time())  # it may have been for somebody who has not come back
        return False

    def _update(self) -> None:
        """Watch the socket if anything waits that may be sent."""
        self._context.running.delivery_barrier.note(self, bool(self.queued))
        outbound = self._outbound
        if outbound is None:
            return
        if not self.waiting:
            self._stop_watching()
            self._on("empty")
        elif self._watcher is None:
            self._watcher = SendWatcher(self._context.running, outbound.account.uid, outbound.socket, self._send_on)

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def _send_on(self) -> None:
        before = self.forwarded
        self._send_kept()
        self._context.running.delivery_barrier.check()
        if not self.waiting:
            self._context.running.emptied.set()
        elif self.forwarded == before and self._watcher is not None:
            self._watcher.wait_for_memory()  # the kernel calls the socket writable and takes nothing

    # -- the connection -----------------------------------------------------------------------------

    def connect(self, ask: Callable[[OnAnswer], None], on: Callable[[Event], None]) -> None:
        """There is a link to the parent. Messages wait until :meth:`open`."""
        self._ask, self._on = ask, on

    def open(self, outbound: Outbound) -> None:
        """The parent has announced its interest: send kept messages, and new ones."""
        self._outbound = outbound
        self._send_kept()

    def empty(self) -> None:
        """Send what waits, and say when that is done."""
        self._update()

    def hold(self) -> None:
        """Keep what comes, and have all acknowledged that was sent or lost."""
        self._outbound = None
        self.losses.report()
        self._reports.pass_on()
        self._consider_asking(waited=True)
        self.check_passed()

    def disconnect(self) -> None:
        """The connection has ended."""
        self._stop_watching()
        self._outbound = None
        self.losses.add(control.UNCERTAIN, self.forwarded - self.acknowledged, time())
        self._asked = self.acknowledged = self.forwarded
        self._open_acks = 0
        self.losses.report()
        self.check_passed()

    # -- acknowledgements ---------------------------------------------------------------------------

    def _consider_asking(self, waited: bool = False) -> None:
        """Ask for an acknowledgement, now or in a while, if there is anything to acknowledge."""
        count = self.forwarded - self._asked
        if not count or self._open_acks >= _OPEN_ACKS:
            return
        if waited or count >= ACK_MESSAGES:
            asked = self._asked = self.forwarded
            self._open_acks += 1
            self._ask(lambda says: self._acknowledge(asked) if says is not None else None)
        elif not self._asks_later:
            self._asks_later = True
            self._context.running.after(ACK_PAUSE, self._on_pause_over)

    def _on_pause_over(self) -> None:
        self._asks_later = False
        self._consider_asking(waited=True)

    def _acknowledge(self, count: int) -> None:
        """The parent has passed on the first ``count`` messages."""
        self._open_acks -= 1
        self.acknowledged = max(self.acknowledged, count)
        self._consider_asking(waited=self._outbound is None)
        self.check_passed()

    def _note_loss(self, lost: control.Lost) -> None:
        if self._state() != "stopped":  # in the child of a fork, the clients are the parent's
            self._reports.note(lost)

    def check_passed(self) -> None:
        """Messages or losses were acknowledged: so questions of children may be answered."""
        self._context.running.delivery_barrier.note(self, bool(self.queued))
        self._context.running.delivery_barrier.check()
        if self.acknowledged == self.forwarded and not self._reports.queued:
            self._on("acknowledged")

    @property
    def queued(self) -> int:
        """Messages that wait or were not acknowledged, and lost ones that the parent may not know of."""
        return (
            len(self.waiting) + self.forwarded - self.acknowledged + self.losses.certain_unreported + self._reports.own
        )

    @property
    def delivered(self) -> int:
        """Messages that are none of these any more."""
        return self.offered - self.queued
