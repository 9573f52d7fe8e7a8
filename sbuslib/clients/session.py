"""State of one client, without input or output: its requests to the hub, and the answers.

The gevent, blocking and asyncio clients move the packets and wait; they all use this. A session remembers the client's
subscriptions and choices, so that a new connection can be brought to the same state.

Waiting for an answer relies on two facts. A hub acts on a client's packets in order: once it answers a question,
everything sent before is in force. And it answers questions of one kind in the order in which they were asked, so
counting answers finds the question of an answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet, WeakValueDictionary

from ..errors import DisconnectedError, KeyFormatError, PacketError, PeerError
from ..limits import KNOWN_KEY_BYTES, KNOWN_KEYS, PACKET_BYTES
from ..matcher import SEPARATOR
from ..reasons import Reason
from ..secrets import RESERVED, Namespace
from ..wire import control
from ..wire.batches import BATCH, Batch
from ..wire.packets import (
    CMSG,
    MSG,
    Control,
    Key,
    Message,
    as_key,
    check_key,
    encode_control,
    encode_message,
    encode_subscribe,
    encode_unsubscribe,
    parse,
)
from ..wire.presence import PRESENCE_ON
from ..wire.text import printable
from .hub_requests import HubQuestion, PatternRequest
from .mailboxes import Mailboxes
from .recipes.mailbox import Mailbox
from .watching import Watch, Watching

if TYPE_CHECKING:
    from mmap import mmap

MOST_NOTICES: Final = 256
"""Notices that wait for the application: four times as many as one receive call brings."""
MOST_CAUSES: Final = 32
"""Causes of loss that have their own counts. A hub knows seven."""
INTERRUPTED: Final = "interrupted"
"""Cause of a message to which an exception of a signal handler came, while the client sorted what it had received."""
OTHER_CAUSES: Final = "other"
"""The name under which losses of further causes are counted."""

_CONTROL: Final = CMSG[0]
_namespace = lru_cache(Namespace)  # to make one takes longer than to check a key


class Session:
    """One client's state. A client passes received packets to :meth:`take`, and sends the packets that the other
    methods return.
    """

    def __init__(
        self,
        modes: Iterable[bytes] = (),
        *,
        senders: bool = False,
        notices: bool = True,
        echo: bool = True,
        monitor: bool = False,
    ) -> None:
        self.inbox: deque[Message] = deque()
        """Messages received and not yet handed to the application, oldest first."""
        self.held: Counter[bytes] = Counter()
        """Patterns subscribed to, with their counts."""
        self.credentials = b""
        """The credential key that the last whoami answered."""
        self.features: control.Features | None = None
        """The hub's features; ``None`` for one that did not answer, for example the C daemon. Those of the last hub
        count until the hub of a new connection has said otherwise: see :meth:`knows_itself`."""
        self._has_said_features = False  # the hub of this connection
        self.lost: Counter[str] = Counter()
        """Messages for this client that the hub lost, by cause: as far as it was asked to report them.

        A hub has a handful of causes. Beyond :data:`MOST_CAUSES` they are counted as :data:`OTHER_CAUSES` together.
        """
        self.notices: deque[control.Notice] = deque(maxlen=MOST_NOTICES)
        """Notices received and not yet handed to the application, oldest first; only the newest are kept."""
        self.kicked: str | None = None
        """The reason for which the hub is about to close the connection, once it sent one."""
        self.refused = False
        """Whether it closes because of a subscription. The next connection then restores all others."""
        self.choices: dict[bytes, bytes] = {}
        """The choices of this client, by kind: the control messages that are in force."""
        options = {
            control.SENDERS_ON: senders,
            control.NOTICES_ON: notices,
            control.ECHO_OFF: not echo,
            control.MONITOR_ON: monitor,
        }
        self.choose(*modes, *(key for key, is_chosen in options.items() if is_chosen))
        self.headers: dict[Key, bytes] = {}
        """``MSG <key>NUL`` of keys that :meth:`encode` has checked, so that each is checked once for each hub."""
        self.batches = False
        """Whether many messages may be sent in one packet: announced to the hub on this connection."""
        self._held_as = b""  # the credentials under which secrets stand in held
        self.unconfirmed: list[PatternRequest] = []
        """Patterns requested and not yet confirmed by the hub."""
        self.mailboxes: Mailboxes | None = None
        """The mailboxes that messages go to, in place of the inbox; ``None`` until a first mailbox is opened."""
        self.named: WeakSet[Mailbox] = WeakSet()
        """All mailboxes, opened or not, whose patterns are to be kept true."""
        #: Of the last message: the bytes before its payload, its key, and its sender.
        self._last: tuple[bytes, bytes, bytes | None] = b"", b"", None
        self.rest: tuple[Iterator[tuple[int, int]], Iterator[Message]] | None = None
        """Places of packets, and messages of one, that were not sorted yet when an exception came in between."""
        self.watching = Watching()  # its watches and presences
        self._own = HubQuestion(b"")  # for our credentials: the first question of each connection
        self._asked: defaultdict[bytes, deque[HubQuestion]] = defaultdict(deque)  # on this connection, by key, in order
        self._by_token: WeakValueDictionary[bytes, HubQuestion] = WeakValueDictionary()  # those that somebody waits for
        self._token = 0  # the newest

    # -- packets to send ----------------------------------------------------------------------------

    def hello(self) -> list[bytes]:
        """Return the first packets of a connection. Once :meth:`knows_itself`, the features are known as well.

        A hub that knows no features does not answer that question. So whoami is asked second, which every hub answers.
        """
        self._has_said_features = False
        self.kicked = None
        self.batches = False
        self.headers.clear()  # the reserved keys depend on the hub
        self._asked.clear()
        self._by_token.clear()
        if self.mailboxes is not None:
            self.mailboxes.nothing_is_on_its_way()
        self._own = self.ask(control.WHOAMI)
        self.expect(self._own)
        return [encode_control(control.FEATURES), self._own.packet]

    def opening(self) -> list[bytes]:
        """Return the packets to send next on a new connection. The caller sets :attr:`batches` after sending them.

        Batches are always asked for, as the application does not notice: each message of a batch goes into
        :attr:`inbox` as if it had come alone.
        """
        return [encode_control(control.BATCH_ON)] if self.can(control.BATCH_ON) else []

    def restore(self) -> list[bytes]:
        """Return the packets that bring a new connection, which knows itself, to the state of the old one.

        Secrets under the old credentials are moved to the new ones, in :attr:`held` too. With notices, errors can name
        the reason for a kick, and a client that reconnects does not subscribe again to the pattern that it was kicked
        for.

        Choices come first: a client that asked for senders receives no message without its sender.
        """
        self.refused = False
        self._move_secrets()
        packets = [encode_control(key) for key in self.choices.values() if self.has_chosen(key)]
        packets += [encode_subscribe(pattern) for pattern in self.held.elements()]
        return packets + (self.watching.restore() if self.can(PRESENCE_ON) else self.watching.forget())

    @property
    def has_to_renew(self) -> bool:
        """Whether the hub gave this client new credentials, and so ended its subscriptions to secrets."""
        return self._held_as != self.credentials

    def renew(self) -> list[bytes]:
        """Move secrets to the new credentials, if there are any; return the packets that subscribe to them."""
        return [encode_subscribe(pattern) for pattern in self._move_secrets() for _ in range(self.held[pattern])]

    def _move_secrets(self) -> list[bytes]:
        """Bring :attr:`held` in line with the present credentials; return the secrets that this renamed."""
        old, new = self._held_as, self.credentials
        self._held_as = new
        if not old or old == new:
            return []
        # First keys that name this client; then keys with an empty id under the prefix of the hub, for others too.
        namespace = _namespace(self.separator)
        starts = [
            (old + self.separator, new + self.separator),
            (namespace.prefix_of(old) + namespace.start, namespace.prefix_of(new) + namespace.start),
        ]
        moved: list[bytes] = []
        held, self.held = self.held, Counter()
        for pattern, count in held.items():
            renamed = next((to + pattern[len(of) :] for of, to in starts if pattern.startswith(of)), pattern)
            self.held[renamed] += count
            if renamed != pattern:
                moved.append(renamed)
                for mailbox in list(self.named):
                    mailbox.rename(pattern, renamed)
        if moved:
            self.forget_places()
        return moved

    @property
    def separator(self) -> bytes:
        """The byte between the segments of a key on this hub."""
        return self.features.separator if self.features is not None else SEPARATOR

    @property
    def _hub_id(self) -> bytes:
        return self.features.hub_id if self.features is not None else b""

    def choose(self, *keys: bytes) -> list[bytes]:
        """Choose by control messages; of those that differ in the last word alone, the newest is in force. Returns the
        packets to send.
        """
        self.choices.update((key.rpartition(b"/")[0], key) for key in keys)
        return [encode_control(key) for key in keys if self.has_chosen(key)]

    def has_chosen(self, key: bytes) -> bool:
        """Return whether a choice is in force, and the hub knows it: senders and notices are extensions."""
        is_extension = key in (control.SENDERS_ON, control.NOTICES_ON, control.MONITOR_ON)
        return key in self.choices.values() and (not is_extension or self.can(key))

    def ask(self, key: bytes, payload: bytes = b"") -> HubQuestion:
        """Return the packet of a question that the hub answers under the same key, in order: see :meth:`expect`."""
        return HubQuestion(encode_control(key, payload), key)

    def expect(self, question: HubQuestion) -> None:
        """Note that a question is about to be sent, before any other."""
        if question.key is not None:
            self._asked[question.key].append(question)

    def expect_no_more(self, question: HubQuestion) -> None:
        """Note that the question could not be sent."""
        if question.key is not None:
            with suppress(ValueError):  # of an earlier connection
                self._asked[question.key].remove(question)

    def ask_by_token(self, key: bytes, rest: bytes) -> HubQuestion:
        """Return the packet of a question that the hub answers with the question's token; ``rest`` is the payload after
        it.
        """
        self._token += 1
        token = b"%x" % self._token
        self._by_token[token] = question = HubQuestion(encode_control(key, token + rest))
        return question

    def knows_itself(self) -> bool:
        """Return whether the hub of this connection has sent our credentials."""
        return self._own.answer is not None

    def can(self, feature: bytes) -> bool:
        """Return whether the hub offers an extension."""
        return self.features is not None and feature in self.features.words

    def check_publishable(self, key: bytes) -> None:
        """Raise :exc:`~sbuslib.errors.KeyFormatError` for a key under which nobody may publish."""
        check_key(key)
        if RESERVED not in key:
            return
        try:
            _namespace(self.separator).check_key(key)
        except PacketError as error:
            raise KeyFormatError(f"nobody may publish under {printable(key)}: {error.reason}") from None

    def encode(self, key: Key, payload: bytes) -> bytes:
        """Return the packet that publishes ``payload`` under ``key``.

        Raises :exc:`~sbuslib.errors.KeyFormatError` and :exc:`~sbuslib.errors.PayloadError`.
        """
        if type(payload) is bytes:
            try:
                packet = self.headers[key] + payload
            except (KeyError, TypeError):
                pass
            else:
                if len(packet) <= PACKET_BYTES:
                    return packet

        name, key = key, as_key(key)
        packet = encode_message(key, payload)
        self.check_publishable(key)
        if len(key) <= KNOWN_KEY_BYTES:
            if len(self.headers) >= KNOWN_KEYS:
                self.headers.clear()
            self.headers[name] = packet[: packet.index(b"\0") + 1]
        return packet

    def subscribe(self, request: PatternRequest) -> list[bytes]:
        """Note patterns as held, and as not confirmed until :meth:`confirm`; return the packets to send."""
        self.held.update(request.patterns)
        if request.mailbox is not None:
            self.open(request.mailbox)
        self.forget_places()
        self.unconfirmed.append(request)
        return [*map(encode_subscribe, request.patterns)]

    def confirm(self, request: PatternRequest) -> None:
        """Note that the patterns are in force, or that no caller waits for them any more. A hub that refused them has
        sent that before.
        """
        if request in self.unconfirmed:
            self.unconfirmed.remove(request)

    def unsubscribe(self, patterns: Iterable[bytes]) -> list[bytes]:
        """End one subscription to each; return the packets to send."""
        patterns = list(patterns)
        packets = [encode_unsubscribe(pattern) for pattern in patterns]
        self.held.subtract(patterns)
        self.held = +self.held
        self.forget_places()
        return packets

    def watch(self, watch: Watch[Any]) -> list[bytes]:
        """Watch something from now on; return the packets to send: none to a hub that knows no watches."""
        packets = self.watching.begin(watch)
        return packets if self.can(PRESENCE_ON) else []

    def unwatch(self, watch: Watch[Any]) -> list[bytes]:
        """Watch it no more; return the packets to send."""
        packets = self.watching.end(watch)
        return packets if self.can(PRESENCE_ON) else []

    # -- mailboxes ----------------------------------------------------------------------------------

    def open(self, mailbox: Mailbox) -> None:
        """Have messages that match go into a mailbox from now on."""
        mailbox.closed = False
        self.named.add(mailbox)
        self.bound_inbox().add(mailbox)

    def bound_inbox(self) -> Mailboxes:
        """Drop messages for the application, and count them, that are too many: others than it read from now on."""
        if self.mailboxes is None:
            self.mailboxes = Mailboxes(self.separator, self.inbox, lambda: self.held, self.lost)
        return self.mailboxes

    def take_over(self, mailbox: Mailbox) -> None:
        """As :meth:`open`, for patterns whose messages came into the inbox until now: those go there, too."""
        self.open(mailbox)
        assert self.mailboxes is not None
        self.mailboxes.move_from_inbox(mailbox)

    def shut(self, mailbox: Mailbox, *, is_over: bool = True) -> None:
        """Let no more messages go into a mailbox. Unless it ``is_over``, some may still be on their way there."""
        if self.mailboxes is not None:
            self.mailboxes.remove(mailbox, is_over=is_over)
        mailbox.closed = True

    def forget_places(self) -> None:
        """Look up anew which messages go where, after a change of subscriptions."""
        if self.mailboxes is not None:
            self.mailboxes.forget()

    def _put_all(self, messages: Iterable[Message]) -> None:
        if self.mailboxes is None:
            self.inbox.extend(messages)
        else:
            for message in messages:
                self.mailboxes.put(message)

    def abandon(self) -> None:
        """Forget received messages in the child of a fork: they are the parent's."""
        self.rest = None
        self.inbox.clear()
        self.notices.clear()
        self.mailboxes = None
        for mailbox in self.named:
            mailbox.clear()

    @property
    def has_unread(self) -> bool:
        """Return whether messages wait for the application: in the inbox, in the queue of a subscription or of a
        worker.
        """
        here = bool(self.inbox) or self.rest is not None
        return here or any((box.messages or box.opened) and not box.is_worked for box in list(self.named))

    # -- received packets ---------------------------------------------------------------------------

    def disconnected(self, address: str) -> DisconnectedError:
        """Return the error for a connection that the hub ended."""
        why = f" ({self.kicked})" if self.kicked is not None else ""
        return DisconnectedError(f"{address}: the hub closed the connection{why}", self.kicked)

    def take(self, data: mmap, offsets: Sequence[int], lengths: Sequence[int]) -> bool:
        """Sort packets that lie in ``data`` into messages and answers; ``True`` when the connection ended.

        Raises :exc:`~sbuslib.errors.PeerError` for a packet that no hub sends. After any other exception, which is one
        of a signal handler, :meth:`take_rest` goes on: ``data`` has to stay as it is until then.
        """
        self.note(offsets, lengths)
        return self.take_rest(data)

    def note(self, offsets: Sequence[int], lengths: Sequence[int]) -> None:
        """Note packets as received, for :meth:`take_rest` to sort them."""
        self.rest = zip(offsets, lengths, strict=False), iter(())

    def take_rest(self, data: mmap) -> bool:
        """Sort what is left of the packets of the last :meth:`take`: nothing, if it came to its end.

        A handler runs after a call, or at the start of a function of Python. So what is noted before a call of C, such
        as ``append``, is true after it, whether an exception comes or not.
        """
        assert self.rest is not None
        places, messages = self.rest
        offset = done = -1  # the packet at hand, and the last that is not to be sorted again
        is_open = True  # whether a message may be on its way to its place
        try:
            self._put_all(messages)
            header, key, sender = self._last
            size, is_open, put = len(header), False, None if self.mailboxes is None else self.mailboxes.put
            append = self.inbox.append
            for offset, length in places:
                # 1. The key and the sender of the message before: most messages, and nothing is parsed.
                if size and length >= size and data[offset : offset + size] == header:
                    message = Message(key, data[offset + size : offset + length], sender)
                    done = offset
                    if put is None:
                        append(message)
                    else:
                        is_open = True
                        put(message)
                        is_open = False
                    continue

                # 2. The end, or an answer, a notice, or messages that have to be parsed.
                if not length:
                    return True
                found = self._parse(data, offset, length)
                done, is_open = offset, True
                if isinstance(found, Control):
                    self._take_control(found)
                else:
                    messages = found
                    self._put_all(messages)
                header, key, sender = self._last
                size, is_open, put = len(header), False, None if self.mailboxes is None else self.mailboxes.put
            return False
        except PeerError:
            raise
        except BaseException:
            if is_open:
                self._count_lost(INTERRUPTED, 1)
            self.rest = (places if done == offset else chain([(offset, length)], places)), messages
            raise

    def _parse(self, data: mmap, offset: int, length: int) -> Iterator[Message] | Control:
        """Parse the packet there. Raises :exc:`~sbuslib.errors.PeerError`."""
        if data[offset] == _CONTROL and data[offset : offset + len(BATCH)] == BATCH:
            try:
                return Batch.parse(data, offset, length).messages()
            except PacketError as error:
                raise PeerError(f"the hub sent a packet that no hub sends: {error.reason}") from error

        packet = data[offset : offset + length]
        if not packet.startswith(MSG):
            found = self.read(packet)
            return found if isinstance(found, Control) else iter(found)
        key, nul, payload = packet[len(MSG) :].partition(b"\0")
        if not nul:
            raise PeerError("the hub sent a packet that no hub sends: a message without NUL")
        self._last = b"MSG %b\0" % key, key, None
        return iter((Message(key, payload),))

    def read(self, packet: bytes) -> list[Message] | Control:
        """Return the messages that a packet from the hub carries, or the answer or notice that it is.

        Raises :exc:`~sbuslib.errors.PeerError` for a packet that no hub sends.
        """
        try:
            if packet.startswith(BATCH):
                return list(Batch.parse(packet).messages())
            value = parse(packet)
            if isinstance(value, Message):
                return [value]

            # Not a message, so it is an answer, a notice, or a message in a wrapper that names its sender.
            if not isinstance(value, Control) or value.payload is None:
                raise PacketError(Reason.NOT_FOR_A_CLIENT)
            if value.key != control.FROM:
                return value

            sender, inner = control.unwrap_from(value.payload)
            if inner.startswith(BATCH):
                return list(Batch.parse(inner).messages(sender))
            message = parse(inner)
            if not isinstance(message, Message):
                raise PacketError(Reason.NO_MESSAGE_INSIDE)
            self._last = packet[: len(packet) - len(message.payload)], message.key, sender
            return [Message(message.key, message.payload, sender)]
        except PacketError as error:
            raise PeerError(f"the hub sent a packet that no hub sends: {error.reason}") from error

    def _count_lost(self, cause: str, count: int) -> None:
        """Count messages as lost; for a subscription, too, if it is the only one."""
        cause = cause if cause in self.lost or len(self.lost) < MOST_CAUSES else OTHER_CAUSES
        self.lost[cause] += count
        for mailbox in list(self.named):
            if not mailbox.closed and self.held and self.held.keys() <= set(mailbox.patterns):
                mailbox.lost[cause] += count

    def _take_notice(self, notice: control.Notice) -> None:
        self.notices.append(notice)
        if isinstance(notice, control.Lost):
            self._count_lost(notice.cause, notice.count)
        elif isinstance(notice, control.Away):
            self._count_lost("away", 1)  # how many messages that were is unknown
        elif isinstance(notice, control.Kicked):
            self.kicked, self.refused = notice.reason, bool(self.unconfirmed)
            for asked in self.unconfirmed:
                asked.refused = notice.reason
                self.held.subtract(asked.patterns)
            self.held = +self.held
            self.unconfirmed.clear()
            self.forget_places()
        elif isinstance(notice, control.Withdrawn):
            for pattern in notice.patterns:
                self.held.pop(pattern, None)  # or a reconnection would ask for it, and be refused
            self.forget_places()
        elif isinstance(notice, control.NewCredentials):
            self.credentials = notice.credentials

    def _know(self, features: control.Features | None) -> None:
        """Take what the hub of this connection can do."""
        self.features, self._has_said_features = features, True
        self.headers.clear()  # the reserved keys depend on the separator

    def _take_control(self, found: Control) -> None:
        try:
            self._take_answer(found.key, found.payload or b"")
        except PacketError as error:
            raise PeerError(f"the hub sent an answer that no hub gives: {error.reason}") from error

    def _take_answer(self, key: bytes, payload: bytes) -> None:
        if key == control.FEATURES:
            self._know(control.Features.decode(payload))
        elif key in (control.SYNC, control.WANTED, control.WHY, PRESENCE_ON):
            token, _, answer = payload.partition(b"\0")
            if (question := self._by_token.get(token)) is not None:
                question.answer = answer
        elif asked := self._asked.get(key):
            question = asked.popleft()
            question.answer = payload
            if key == control.WHOAMI:
                self.credentials = payload
            if question is self._own and not self._has_said_features:  # or it would have done so before
                self._know(None)
        elif self.watching.take(key, payload, self._hub_id, self.separator):
            pass
        elif (notice := control.decode_notice(key, payload)) is not None:  # None: unknown, from a newer hub
            self._take_notice(notice)
