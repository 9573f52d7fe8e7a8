"""Last values: a service keeps the newest message of each key, and a subscription begins with these.

A client asks the service for the values of a pattern, page by page, each page under ``sbus/last/<pattern>``. Such a
subscription misses no message and gets none twice, for these reasons:

1. A client subscribes, and waits until that is in force in the whole tree; call this moment T. From T on, every message
   that any hub takes comes to the client. The application gets its messages from T on.
2. There is one way between two hubs, and what goes over a connection stays in order, answers to sync included. So when
   the client asks the service, after T, the service already has all messages that came to the client before T; and it
   waits for a sync before it answers. Its answer stands for those messages, and the client drops them.
3. Let m be the message that the answer has under a key. Either m does not come to the client after T; or it does. Then
   it is there after another sync: hubs had passed it on before the service could answer.
4. If a message came under the key since T, the client gets that, and not m. It is m itself, or it was published later,
   or by somebody who did not know of m: else m would have been published after a message that came after T, and come.
5. If none came since T, m comes no more, and the client gets m. So each key's newest message comes, and once.

Publishers of one key that do not know of each other may be seen in another order by the service: as by any client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from ...errors import NoServerError, PeerError
from ...keys.own_keys import LAST
from ...malformed import MALFORMED
from ...matcher import matches
from ...wire.packets import Message
from ...wire.text import printable
from .mailbox import ClientPort, Mailbox

MOST_BYTES: Final = 268_435_456
"""Bytes of values that a client takes from a service: four times the default maximum of a service."""
TRIES: Final = 5
"""How often a client begins anew when its connection broke meanwhile, or more came than it holds."""

Ask: TypeAlias = Callable[[bytes, bytes, float | None], Awaitable[bytes]]
"""Sends a request under a key, and returns the reply, until a time of ``time.monotonic``."""


class CaughtUp(Message, frozen=True, gc=False):
    """The marker after the last values: ``key`` is the pattern. Messages after it are new ones."""


class KeptPage(msgspec.Struct, frozen=True, array_like=True):
    """One page of the last values of a pattern, in MessagePack: keys in order, and whether there are ``more``."""

    more: bool
    kept: list[tuple[bytes, bytes]]


def question_key(pattern: bytes, separator: bytes) -> bytes:
    """Return the key under which the last values of a pattern are requested.

    Taken as a key, the pattern is matched by exactly those patterns that cover it. So a request reaches the services
    that keep all of these values, and no others.
    """
    return separator.join((*LAST, pattern))


async def fetch(ask: Ask, patterns: Sequence[bytes], separator: bytes, until: float | None) -> dict[bytes, bytes]:
    """Return the last value of each key that matches. Raises :exc:`~sbuslib.errors.PeerError` if no service answers."""
    kept: dict[bytes, bytes] = {}
    for pattern in patterns:
        after: bytes | None = None
        more, size = True, 0
        while more:
            try:
                answer = await ask(question_key(pattern, separator), msgspec.msgpack.encode(after), until)
            except NoServerError:
                raise _nobody_keeps(pattern) from None

            # The reply may come from anybody: in order, so that this ends, and no more than fits in memory.
            try:
                page = msgspec.msgpack.decode(answer, type=KeptPage)
            except MALFORMED as error:
                raise PeerError(f"no last values of {printable(pattern)}: {error}") from None
            for key, payload in page.kept:
                size += len(key) + len(payload)
                if (after is not None and key <= after) or not matches(pattern, key, separator) or size > MOST_BYTES:
                    raise PeerError(f"these are no last values of {printable(pattern)}")
                kept[key], after = payload, key
            more = page.more and bool(page.kept)
    return kept


def _nobody_keeps(pattern: bytes) -> NoServerError:
    return NoServerError(f"nobody keeps {printable(pattern)}: start sbus retain with this pattern")


async def subscribe(port: ClientPort, mailbox: Mailbox, ask: Ask, separator: bytes, until: float | None) -> None:
    """Subscribe for a mailbox, which gets the last values first, then a :class:`CaughtUp` for each pattern.

    Messages from an earlier connection are not complete.
    """
    for pattern in mailbox.patterns:  # before this client receives these requests itself, as with b""
        if await port.is_wanted(question_key(pattern, separator), until=until) is False:
            raise _nobody_keeps(pattern)
    await port.open_mailbox(mailbox, until=until)
    try:
        # A message that comes between the two syncs is newer than the value fetched under its key.
        for _ in range(TRIES):
            began = port.epoch
            await port.confirm("tree", until)
            mailbox.clear()
            kept = await fetch(ask, mailbox.patterns, separator, until)
            await port.confirm("tree", until)
            if port.epoch == began and not mailbox.lost:
                came = {message.key for message in list(mailbox.messages)}
                mailbox.put_first([Message(key, payload) for key, payload in kept.items() if key not in came])
                mailbox.messages.extend(CaughtUp(pattern, b"") for pattern in mailbox.patterns)
                return
        raise TimeoutError(f"the connection broke {TRIES} times, or more came than fits")
    except BaseException:
        await port.close_mailbox(mailbox, until=until)
        raise
