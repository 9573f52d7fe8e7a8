"""Asking at doors: connections that are kept, and the descriptors that are handed out there.

Nothing is said at a door before the kernel has said that it is the message's sender's; see :func:`user_behind`. Whoever
has a door may hand out any descriptor, or none, or never answer. So what was not asked for is closed in another thread,
as that may take seconds; and a stranger whose door is silent costs half a second, and is then not asked for a while.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from time import monotonic
from typing import Final, TypeAlias

from ..errors import DoorError
from ..kernel.descriptors import CONTROL_BYTES, close_elsewhere, descriptors_in
from ..kernel.forks import abandon_in_child
from ..kernel.sockets import connect, peer_credentials
from ..secrets import Namespace
from ..wire.offers import ASK, BUSY, GIVEN, MOST_TOKENS, TOKEN_BYTES, Offer
from .door import door_address

__all__ = ["Asker", "Sleep", "WaitReadable", "user_behind"]

MOST_KEPT: Final = 64
"""Doors to which a connection is kept: one for each client that publishes frames here."""
ANSWER_SECONDS: Final = 2.0
"""Seconds that a door of our own user or root may take. One that computes in Python answers after some 5 ms."""
STRANGER_SECONDS: Final = 0.5
"""Seconds that a door of another user may take, while everything else that was offered here waits."""
SILENCE: Final = 10.0
"""Seconds for which a user is not asked after its door took longer. So a silent user costs 5 % of the time."""
MOST_SILENT: Final = 64
"""Most users that are remembered as silent."""
PAUSE: Final = 0.01
"""Seconds before asking again at a door that has too much under way, or a full backlog, or cut the connection off."""

_SILENT: Final = "door that does not answer"
_SEND_BUFFER: Final = 4_096  # requests are short

WaitReadable: TypeAlias = Callable[[int, float], Awaitable[bool]]
Sleep: TypeAlias = Callable[[float], Awaitable[None]]


class Asker:
    """Asks at doors for one client. Any callers may use it at once: each takes a connection for itself.

    :param wait_readable: how the client waits until a descriptor can be read, or so many seconds. :param sleep: how it
        waits. :param folder: where doors are that are not in the abstract namespace.
    """

    def __init__(self, wait_readable: WaitReadable, sleep: Sleep, folder: str | None) -> None:
        self._wait_readable = wait_readable
        self._sleep = sleep
        self._folder = folder
        self._kept: dict[tuple[bytes | None, int], socket.SocketType] = {}  # by door and user, the longest unused first
        self._silent: dict[int, float] = {}  # until when a user is not asked, by time.monotonic
        self._closed = False
        abandon_in_child(self, Asker.close)

    def close(self) -> None:
        """Close what is kept. In the child of a fork, close its copies."""
        self._closed = True
        while self._kept:
            self._kept.popitem()[1].close()

    async def fetch(self, offers: Sequence[Offer], user: int) -> list[int | None]:
        """The descriptors of offers at one door, which has to be this user's; ``None`` for each that is gone.

        Raises :exc:`~sbuslib.errors.DoorError`.
        """
        sock, descriptors = await self._ask(offers, user)
        place = offers[0].door, user
        if self._closed or place in self._kept:
            sock.close()
        else:
            self._kept[place] = sock
            if len(self._kept) > MOST_KEPT:
                self._kept.pop(next(iter(self._kept))).close()
        return descriptors

    async def visit(self, offer: Offer, user: int) -> tuple[socket.SocketType, int]:
        """The descriptor of one offer, and the connection, for more to be said. Raises as :meth:`fetch`."""
        sock, (descriptor,) = await self._ask([offer], user)
        if descriptor is None:
            sock.close()
            raise DoorError("gone")
        return sock, descriptor

    async def _ask(self, offers: Sequence[Offer], user: int) -> tuple[socket.SocketType, list[int | None]]:
        """Ask until there is an answer."""
        now, is_ours = monotonic(), user in (0, os.geteuid())
        if self._silent.get(user, now) > now:
            raise DoorError(_SILENT)
        deadline = now + (ANSWER_SECONDS if is_ours else STRANGER_SECONDS)
        request, why = ASK + b"".join(offer.token for offer in offers), _SILENT
        while monotonic() < deadline:
            sock = self._kept.pop((offers[0].door, user), None) or self._connect(offers[0], user)
            if sock is not None:
                try:
                    words, found = await self._exchange(sock, request, deadline)
                    if BUSY not in words:
                        given = iter(found)
                        return sock, [next(given) if word == GIVEN else None for word in words]
                    why = "door that has too much under way"
                except TimeoutError:
                    why = _SILENT
                except ConnectionError:  # perhaps cut off, which is no matter
                    why = "door that closes"
                except BaseException:  # an answer that comes later is nobody's
                    sock.close()
                    raise
                sock.close()
            await self._sleep(PAUSE)

        # Nobody else is to wait for this user as long again.
        if not is_ours:
            if len(self._silent) >= MOST_SILENT:
                del self._silent[next(iter(self._silent))]
            self._silent[user] = monotonic() + SILENCE
        raise DoorError(why)

    def _connect(self, offer: Offer, user: int) -> socket.SocketType | None:
        """A connection to a door of this user; ``None`` if its backlog is full."""
        assert offer.door is not None
        if offer.in_folder and self._folder is None:
            raise DoorError("door in a folder that this client was not given")
        try:
            sock = connect(
                door_address(offer.door, self._folder if offer.in_folder else None), _SEND_BUFFER, descriptors=True
            )
        except BlockingIOError:
            return None
        except OSError:
            raise DoorError("no door") from None

        # Somebody else may have taken the name of a door that is gone.
        if peer_credentials(sock).uid != user:
            sock.close()
            raise DoorError("door of another user")
        return sock

    async def _exchange(self, sock: socket.SocketType, request: bytes, deadline: float) -> tuple[bytes, list[int]]:
        """Ask: a byte for each token, and the descriptors. Raises :exc:`TimeoutError`, and
        :exc:`ConnectionError` if the door ends it.
        """
        with suppress(BlockingIOError):  # a door that reads nothing does not answer either
            sock.send(request, socket.MSG_NOSIGNAL)
        while True:
            try:
                words, control, flags, _ = sock.recvmsg(MOST_TOKENS + 1, CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
                break
            except BlockingIOError:
                if not await self._wait_readable(sock.fileno(), max(0.0, deadline - monotonic())):
                    raise TimeoutError from None

        _, found = descriptors_in(control, flags)
        asked = (len(request) - len(ASK)) // TOKEN_BYTES
        if len(words) == asked and words.count(GIVEN) == len(found) and not flags & socket.MSG_CTRUNC:
            return words, found
        close_elsewhere(found)
        if not words:
            raise ConnectionResetError
        raise DoorError("no descriptor left" if flags & socket.MSG_CTRUNC else "no such door")


@lru_cache(maxsize=256)
def user_behind(separator: bytes, sender: bytes, own: bytes, trusted: frozenset[int]) -> int:
    """The user whose door a message may send us to.

    The end of the sender's credential key names its user. What comes before are hubs on the way, each of which vouches
    for the next, so a stranger's hub could name anybody: all of them have to be that user's, or be ``trusted``. Those
    that are above our own hub are: they told us who we are.

    :param own: the credential key of the client. :param trusted: ids of users, such as root's and the hub's.

    Raises :exc:`~sbuslib.errors.DoorError` if the sender may not be who it is said to be.
    """
    namespace = Namespace(separator)
    chain = namespace.chain(sender.removeprefix(namespace.prefix_of(own)))
    *hubs, user = [one.uid for one in chain] or (-1,)
    if user < 0 or not all(hub == user or hub in trusted for hub in hubs):
        raise DoorError("sender behind a hub of another user")
    return user
