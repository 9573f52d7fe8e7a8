"""The mailboxes of one client: which messages go into them in place of the inbox, or besides."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from ..limits import KNOWN_KEY_BYTES, KNOWN_KEYS
from ..matcher import matches
from ..secrets import RESERVED
from ..wire.packets import Message
from .recipes.mailbox import Mailbox

MOST_UNREAD: Final = 65_536
"""Messages in the inbox while others read for mailboxes. An application that never reads them loses further ones."""
MOST_UNREAD_BYTES: Final = 268_435_456
"""Bytes of payload in that inbox."""


class _Places(dict[bytes, list[Callable[[Message], None]]]):
    """Where messages go, by key, as long as nothing is subscribed to or taken back."""

    wanted: list[bytes] | None = None
    """The patterns of the application itself, once they were looked for."""


class Mailboxes:
    """Sorts messages into mailboxes and the inbox. A client that never opens a mailbox has no object of this kind.

    One caller puts messages in while others open mailboxes and subscribe: so the tables are replaced as a whole.

    :param held: the client's subscriptions, for mailboxes and for the application together.
    :param lost: counts losses, by cause.
    """

    def __init__(
        self, separator: bytes, inbox: deque[Message], held: Callable[[], Counter[bytes]], lost: Counter[str]
    ) -> None:
        self._separator = separator  # of keys
        self._reserved = RESERVED + separator  # how secret keys begin
        self._inbox = inbox
        self._held = held
        self._lost = lost  # by cause
        self._open: tuple[Mailbox, ...] = ()  # replaced as a whole
        self._places = _Places()  # replaced as a whole
        self._late: frozenset[bytes] = frozenset()  # ended patterns whose messages may be on their way
        self._unread = 0  # bytes in the inbox, or more
        self._full_at = 0  # how many messages were in the inbox when it was found full

    def add(self, mailbox: Mailbox) -> None:
        """From now on, what matches goes there."""
        self._open = (*self._open, mailbox)
        self.forget()

    def move_from_inbox(self, mailbox: Mailbox) -> None:
        """Sort the messages in the inbox anew."""
        for _ in range(len(self._inbox)):
            try:
                message = self._inbox.popleft()
            except IndexError:  # another thread takes them, too
                break
            places = self._look_up(message.key)
            if mailbox.put in places:
                mailbox.put(message)
            if mailbox.put not in places or self._put_into_inbox in places:
                self._inbox.append(message)

    def remove(self, mailbox: Mailbox, *, is_over: bool = True) -> None:
        """Nothing more goes there. Unless it ``is_over``, something may still be on its way, which nobody wants."""
        self._open = tuple(other for other in self._open if other is not mailbox)
        if not is_over:
            self._late |= frozenset(mailbox.patterns)
        self.forget()

    def nothing_is_on_its_way(self) -> None:
        """No message of an ended pattern comes any more: there is a new connection."""
        self._late = frozenset()
        self.forget()

    def forget(self) -> None:
        """Forget where keys go: the client has subscribed or unsubscribed."""
        self._places = _Places()

    def put(self, message: Message) -> None:
        """Put a message where it belongs."""
        places = self._places.get(message.key)
        if places is None:
            places = self._look_up(message.key)
        for place in places:
            place(message)

    def _look_up(self, key: bytes) -> list[Callable[[Message], None]]:
        known = self._places  # another object than this one's successor, when something is subscribed to meanwhile
        mailboxes = self._open
        secret = key.startswith(self._reserved)
        places: list[Callable[[Message], None]] = [
            mailbox.put for mailbox in mailboxes if mailbox.matching(key, self._separator)
        ]
        if known.wanted is None:
            known.wanted = self.wanted(mailboxes)
        wanted = any(self._matches(pattern, key, secret) for pattern in known.wanted)
        is_late = any(self._matches(pattern, key, secret) for pattern in self._late)
        if wanted or not (places or is_late):  # without a mailbox it was the application's until just now
            places.append(self._put_into_inbox)

        # It is remembered, but for keys that would take much memory.
        if len(known) >= KNOWN_KEYS:
            known.clear()
        if len(key) <= KNOWN_KEY_BYTES:
            known[key] = places
        return places

    def _matches(self, pattern: bytes, key: bytes, secret: bool) -> bool:
        """As on a hub: no wildcard reaches a secret key."""
        return pattern.startswith(self._reserved) == secret and matches(pattern, key, self._separator)

    def wanted(self, mailboxes: tuple[Mailbox, ...] | None = None) -> list[bytes]:
        """The patterns that the application itself subscribed to: those held for none of the mailboxes."""
        own = Counter(self._held())
        for mailbox in self._open if mailboxes is None else mailboxes:
            own.subtract(list(mailbox.patterns))
        return [pattern for pattern, count in own.items() if count > 0]

    def _put_into_inbox(self, message: Message) -> None:
        inbox = self._inbox
        self._unread = self._unread + len(message.payload) if inbox else len(message.payload)
        if self._unread > MOST_UNREAD_BYTES or len(inbox) >= MOST_UNREAD:
            if len(inbox) < self._full_at or not self._full_at:  # the application has read some meanwhile
                self._unread = len(message.payload) + sum(len(other.payload) for other in list(inbox))
            if self._unread > MOST_UNREAD_BYTES or len(inbox) >= MOST_UNREAD:
                self._full_at = len(inbox)
                self._unread -= len(message.payload)
                self._lost["unread"] += 1
                return
            self._full_at = 0
        inbox.append(message)
