"""One end of a link between two hubs: the part that both ends share.

Each end announces the patterns that it wants, and treats those of the other end like any client's subscriptions.
Messages come over a link with their senders, and go to all receivers but the link itself. A wrong packet is dropped and
counted: a link with hundreds of clients behind it does not end for one packet.
:mod:`~sbuslib.tree.child_link` has the upper end, :mod:`~sbuslib.tree.parent_link` the lower one.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from ..core.protocols import Receiver, Routes
from ..core.publisher import Publisher
from ..core.router import CACHED_HEADER_BYTES
from ..errors import PacketError, ReservedKeyError
from ..limits import CONTROL_EXTRA, PACKET_BYTES
from ..reasons import Reason
from ..wire import control, presence
from ..wire.events import shown
from ..wire.packets import MSG, Control, Packet, encode_control, parse
from .interest import Changes, InterestCursor
from .link_context import LinkContext
from .open_questions import OnAnswer, OpenQuestions
from .presence_entries import PresenceCursor
from .pruning import PrunedKeys
from .remote_senders import ForgedError, RemoteSender, take_wrapped

Mode: TypeAlias = Literal["announce", "prune", "plain"]
MODES: Final[dict[bytes, Mode]] = {b"announce": "announce", b"prune": "prune", b"plain": "plain"}
"""Modes in which a parent serves a child, by their names on the wire."""

_SENDERS: Final = 4_096
"""Senders behind one link that are remembered. When one more comes, all are forgotten, and made again as they come."""


class Link:
    """The role of a connection to another hub. Implements :class:`~sbuslib.core.publisher.Role` and
    :class:`~sbuslib.tree.link_interfaces.Neighbour`.

    :param publisher: the connection.
    :param receiver: what routes hold for the other end.
    :param name: where the hub at the other end listens, for the log; empty: unknown.
    """

    is_link = True
    is_relay = True
    longest = PACKET_BYTES + CONTROL_EXTRA
    lagging = False
    keeps_bounds = False
    """Whether the keys that may come over it are the same until it ends."""

    def __init__(self, link_context: LinkContext, publisher: Publisher, receiver: Receiver, name: str) -> None:
        self.link_context = link_context
        self.context = link_context.context  # of the hub
        self.publisher = publisher
        self.outbound = publisher.outbound
        """Sends to the other end."""
        self.receiver = receiver
        self.name = name

        self.mode: Mode = "plain"
        """How the upper hub serves the lower one."""
        self.trusted = True
        """Whether syncs wait for the other end's answer: only if its user is trusted."""
        self.complete = False
        """Whether all interest was announced to it for the first time, or need not be."""
        self.cursor: InterestCursor | PrunedKeys | None = None
        """Patterns, or pruned keys, that the other end has still to be sent."""
        self.presence_cursor: PresenceCursor | None = None
        """Presences that it has still to be sent; ``None``: it takes no part in them."""
        self.questions = OpenQuestions()  # to the other end
        self.senders: dict[bytes, RemoteSender] = {}
        """Those behind it that have sent something, by what the other end calls them."""

        self._tuples: dict[Routes, Routes] = {}  # receivers of what comes over it, each tuple once
        self._to_log: list[str] = []  # why something was dropped for the first time, in this turn

    # -- for either end to say ----------------------------------------------------------------------

    def encode(self, changes: Changes) -> list[bytes]:
        """Encode changes of interest as control packets."""
        raise NotImplementedError

    @property
    def has_too_many_questions(self) -> bool:
        """Whether no more may wait for the other end."""
        raise NotImplementedError

    def say_question(self, token: bytes) -> None:
        """Ask the other end to answer when everything that it was sent is in force."""
        raise NotImplementedError

    def may_come(self, key: bytes, times: int) -> bool:
        """Whether messages may come over this link; else so many are counted as dropped."""
        return True

    def remote_sender(self, name: bytes) -> RemoteSender:
        """The sender that the other end calls so. Raises :exc:`~sbuslib.errors.PacketError`."""
        raise NotImplementedError

    def act_on(self, publisher: Publisher, packet: Packet) -> None:
        """Act on a packet that is no message. Raises :exc:`~sbuslib.errors.PacketError`."""
        raise NotImplementedError

    def violated(self, publisher: Publisher, reason: Reason) -> None:
        """End the link, for this reason."""
        raise NotImplementedError

    def forget(self, publisher: Publisher) -> None:
        """The connection was closed."""

    def note_dropped(self, reason: Reason, times: int) -> bool:
        """Count wrong packets. Returns whether that is to be logged."""
        raise NotImplementedError

    # -- what comes from the other end --------------------------------------------------------------

    def look_up(self, publisher: Publisher, header: bytes, times: int) -> Routes:
        """The receivers of ``times`` messages of this link: all but the link itself."""
        router, own = self.context.router, self.receiver
        try:
            receivers = router.routes.get(header)
            if receivers is None:
                receivers = router.route(header)
        except ReservedKeyError as error:
            self.drop(error.reason, times)
            return ()
        if not self.may_come(header[len(MSG) : -1], times):
            return ()

        # Each tuple once. Not of a longer header than the router remembers: it does not say when these change.
        cached = self.context.limits.cached_keys
        if len(self._tuples) >= cached:
            self._tuples.clear()
        others = tuple(receiver for receiver in receivers if receiver is not own)
        others = self._tuples.setdefault(others, others)
        if len(header) <= CACHED_HEADER_BYTES:
            if len(publisher.routes) >= cached:
                publisher.routes.clear()
            publisher.routes[header] = others
        return others

    def command(self, publisher: Publisher, data: bytes) -> None:
        """Act on a packet that is no message of an unknown sender. Raises :exc:`ForgedError` alone."""
        try:
            packet = parse(data)
            if isinstance(packet, Control) and packet.key == control.FROM:
                take_wrapped(publisher, packet.payload or b"", self._remote_sender_of)
            else:
                self.act_on(publisher, packet)
        except ForgedError:
            raise
        except PacketError as error:
            self.drop(error.reason)

    def _remote_sender_of(self, name: bytes) -> RemoteSender:
        """Return the sender to whom the other end gave this name."""
        sender = self.senders.get(name)
        if sender is None:
            sender = self.remote_sender(name)
            if len(self.senders) >= _SENDERS:
                self.senders.clear()
            self.senders[name] = sender
        return sender

    def drop(self, reason: Reason, times: int = 1) -> None:
        """Count wrong packets or messages of this link, which have no effect. The first is logged after the turn."""
        if self.note_dropped(reason, times):
            self._to_log.append(reason)

    def after_turn(self, publisher: Publisher) -> None:
        """Log each reason for dropped packets once, the first time."""
        while self._to_log:
            self.context.events.emit(
                "dropped", self.outbound.credentials, cause=self._to_log.pop(), key=shown(self.name)
            )

    def _take_presence(self, key: bytes, payload: bytes) -> bool:
        """Act on a packet about presences; ``False`` if it is another. Raises :exc:`~sbuslib.errors.PacketError`."""
        if self.presence_cursor is None:
            return False

        presences = self.link_context.presences
        match key:
            case presence.PRESENCE_BEGIN:
                presences.take_begin(self.receiver, payload)
            case presence.PRESENCE_ADD:
                said = presence.Added.decode(payload)
                is_allowed = self.may_be_present(said.key)
                if not is_allowed and self.keeps_bounds:
                    raise PacketError(Reason.PUBLISHING_REFUSED)
                who = self._remote_sender_of(said.sender)
                presences.take_added(self.receiver, said, who, is_allowed=is_allowed)
            case presence.PRESENCE_REMOVE:
                presences.take_removed(self.receiver, presence.Removed.decode(payload))
            case presence.PRESENCE_COMPLETE:
                presences.take_complete(self.receiver, payload)
            case _:
                return False
        return True

    def may_be_present(self, key: bytes) -> bool:
        """Whether the rules allow somebody behind this link to be present under a key."""
        return True

    # -- announcements to the other end -------------------------------------------------------------

    def say(self, *packets: bytes) -> None:
        """Send or queue control packets. They are never lost while the link is there."""
        self.outbound.answer(*packets)

    def mark(self) -> None:
        """Note that the hub itself has changed something that has to be announced."""
        self.link_context.propagation.mark([self.receiver])
        self.link_context.propagation.wake()

    @property
    def room(self) -> int:
        """How many more control packets may wait. Half of the room is kept for answers to the other end's questions."""
        return self.context.limits.queued_answers // 2 - self.outbound.answers

    @property
    def may_ask(self) -> bool:
        """Whether questions that wait may be asked, once everything is announced."""
        return True

    def ask(self, on_answer: OnAnswer) -> bytes:
        """Ask the other end about the rest of the tree, once everything is announced. Returns the token; empty: not
        asked.
        """
        if self.has_too_many_questions:
            return b""
        token = self.questions.put(on_answer)
        self.mark()
        return token

    def give_up(self) -> None:
        self.violated(self.publisher, Reason.ERROR_IN_THE_HUB)

    def announce(self, most: int) -> tuple[int, bool]:
        """Announce up to ``most`` changes, as far as there is room, then ask the questions that waited for that.

        Returns how many, and whether there is more to announce, now or when the other end has read.
        """
        if self.outbound.closed:
            return 0, False
        most, count, is_level = max(0, min(most, self.room)), 0, True
        if self.cursor is not None:
            changes, is_level = self.cursor.take(most)
            if changes:
                self.say(*self.encode(changes))
            count = len(changes) if is_level else most  # patterns that were examined but not announced count, too

        cursor = self.presence_cursor
        if is_level and cursor is not None and not cursor.is_level:
            packets, has_more = cursor.take(max(0, min(most - count, self.room)))
            self.say(*packets)
            count, is_level = count + len(packets), not has_more

        if not is_level:
            return count, True
        if not self.complete and self.link_context.has_settled:
            self.complete = True
            self.say(encode_control(control.INTEREST_COMPLETE))
        while self.questions.waiting and self.room > 0 and self.may_ask:
            self.say_question(self.questions.ask())
        return count, bool(self.questions.waiting and self.may_ask)
