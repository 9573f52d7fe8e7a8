"""Client of descriptor stores: keeps connections to them, and fetches descriptors.

Before it sends a request, it checks by ``SO_PEERCRED`` that the descriptor store belongs to the message's sender; see
:func:`user_behind`. The owner of a descriptor store may hand out any descriptor, or none, or never answer. So
descriptors that were not asked for are closed in another thread, as that may take for ever. :mod:`.strangers` decides
whether strangers are asked at all, and how long to wait for them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from time import monotonic
from typing import Final, TypeAlias

from ...errors import DescriptorError
from ...kernel.closers import is_behind
from ...kernel.descriptors import CONTROL_BYTES, close_elsewhere, descriptors_in
from ...kernel.forks import abandon_in_child
from ...kernel.peers import peer_credentials
from ...kernel.sockets import connect
from ...secrets import Namespace
from ...wire.offers import ASK, BUSY, GIVEN, MOST_TOKENS, TOKEN_BYTES, Offer
from .descriptor_store import store_address
from .strangers import Strangers

MOST_KEPT: Final = 64
"""Descriptor stores to which a connection is kept: one for each client that publishes frames here."""
ANSWER_SECONDS: Final = 2.0
"""Seconds that a descriptor store of our own user or root may take. One that computes in Python answers after some 5
ms.
"""
PAUSES: Final = (0.001, 0.016)
"""Seconds before asking again at a descriptor store that has too much in flight, or a full backlog, or closed the
connection: at first, and at most."""

_SILENT: Final = "descriptor store that does not answer"
_BUSY: Final = bytes([BUSY])
_SEND_BUFFER: Final = 4_096  # requests are short

WaitReadable: TypeAlias = Callable[[int, float], Awaitable[bool]]
Sleep: TypeAlias = Callable[[float], Awaitable[None]]


class DescriptorClient:
    """Fetches descriptors for one client. Any callers may use it at once: each takes a connection for itself.

    :param wait_readable: how the client waits until a descriptor can be read, or so many seconds.
    :param sleep: how it waits.
    :param folder: folder of descriptor stores that are not in the abstract namespace.
    """

    def __init__(self, wait_readable: WaitReadable, sleep: Sleep, folder: str | None) -> None:
        self._wait_readable = wait_readable
        self._sleep = sleep
        self._folder = folder
        # by descriptor store and user, the longest unused first
        self._kept: dict[tuple[bytes | None, int], socket.SocketType] = {}
        self._strangers = Strangers()  # by time.monotonic
        self._closed = False
        abandon_in_child(self, DescriptorClient.close)

    def close(self) -> None:
        """Close the connections. In the child of a fork, close its copies."""
        self._closed = True
        while self._kept:
            self._kept.popitem()[1].close()

    async def fetch(self, offers: Sequence[Offer], user: int) -> list[int | None]:
        """Fetch the descriptors of offers at one descriptor store, which has to be this user's; ``None`` for each that
        is gone.

        A descriptor store that hands out fewer at a time answers for the first offers only, at least for one. Raises
        :exc:`~sbuslib.errors.DescriptorError`.
        """
        sock, descriptors = await self._ask(offers, user)
        place = offers[0].store, user
        if self._closed or place in self._kept:
            sock.close()
        else:
            self._kept[place] = sock
            if len(self._kept) > MOST_KEPT:
                self._kept.pop(next(iter(self._kept))).close()
        return descriptors

    async def visit(self, offer: Offer, user: int) -> tuple[socket.SocketType, int]:
        """Fetch the descriptor of one offer, and keep the connection for reports. Raises as :meth:`fetch`."""
        sock, (descriptor,) = await self._ask([offer], user)
        if descriptor is None:
            sock.close()
            raise DescriptorError("gone")
        return sock, descriptor

    def refuse(self, user: int) -> None:
        """Note that a user handed out a descriptor that it did not offer. A stranger's descriptor stores are then not
        asked for a while.
        """
        if not _is_trusted(user):
            self._strangers.refuse(user, monotonic())

    async def _ask(self, offers: Sequence[Offer], user: int) -> tuple[socket.SocketType, list[int | None]]:
        """Ask, if this user may be asked, and keep count of the time that this takes."""
        began, strangers = monotonic(), None if _is_trusted(user) else self._strangers
        if is_behind(user):
            raise DescriptorError("user whose descriptors do not close")
        patience = ANSWER_SECONDS if strangers is None else strangers.patience(user, began)
        answered = False
        try:
            answer = await self._insist(offers, user, began + patience)
            answered = True
            return answer
        finally:  # also of a caller that gives up: it may come again for the same
            if strangers is not None:
                strangers.took(user, (now := monotonic()) - began, now, answered=answered)

    async def _insist(
        self, offers: Sequence[Offer], user: int, deadline: float
    ) -> tuple[socket.SocketType, list[int | None]]:
        """Ask until there is an answer."""
        request, why, pause = ASK + b"".join(offer.token for offer in offers), _SILENT, PAUSES[0]
        sock = self._kept.pop((offers[0].store, user), None)

        # A descriptor store that is busy or restarts is asked again, less and less often.
        while monotonic() < deadline:
            if sock is None:
                sock = self._connect(offers[0], user)
            if sock is not None:
                try:
                    words, found = await self._exchange(sock, request, user, deadline)
                    if words[0] != BUSY:
                        given = iter(found)
                        return sock, [next(given) if word == GIVEN else None for word in words.rstrip(_BUSY)]
                    why = "descriptor store that has too much in flight"
                except ConnectionError:  # perhaps closed by the other end, which does not matter
                    why = "descriptor store that closes"
                    sock.close()
                    sock = None
                except TimeoutError:
                    why = _SILENT
                    break
                except BaseException:  # an answer that comes later is nobody's
                    sock.close()
                    raise
            await self._sleep(pause)
            pause = min(2 * pause, PAUSES[1])

        if sock is not None:
            sock.close()
        raise DescriptorError(why)

    def _connect(self, offer: Offer, user: int) -> socket.SocketType | None:
        """Connect to a descriptor store of this user; ``None`` if its backlog is full."""
        assert offer.store is not None
        if offer.in_folder and self._folder is None:
            raise DescriptorError("descriptor store in a folder that this client was not given")
        try:
            sock = connect(
                store_address(offer.store, self._folder if offer.in_folder else None),
                _SEND_BUFFER,
                descriptors=True,
            )
        except BlockingIOError:
            return None
        except OSError:
            raise DescriptorError("no descriptor store") from None

        # Somebody else may have taken the name of a descriptor store that is gone.
        if peer_credentials(sock).uid != user:
            sock.close()
            raise DescriptorError("descriptor store of another user")
        return sock

    async def _exchange(
        self, sock: socket.SocketType, request: bytes, user: int, deadline: float
    ) -> tuple[bytes, list[int]]:
        """Send a request and receive the answer: a byte for each token, and the descriptors. Raises
        :exc:`TimeoutError`, and :exc:`ConnectionError` if the descriptor store ends it.
        """
        with suppress(BlockingIOError):  # a descriptor store that reads nothing does not answer either
            sock.send(request, socket.MSG_NOSIGNAL)
        while True:
            try:
                words, control, flags, _ = sock.recvmsg(MOST_TOKENS + 1, CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
                break
            except BlockingIOError:
                if not await self._wait_readable(sock.fileno(), max(0.0, deadline - monotonic())):
                    raise TimeoutError from None

        # Descriptors for the tokens that are granted, and surplus ones at the end.
        _, found = descriptors_in(control, flags)
        asked, is_cut = (len(request) - len(ASK)) // TOKEN_BYTES, bool(flags & socket.MSG_CTRUNC)
        is_answer = len(words) == asked and BUSY not in words.rstrip(_BUSY)
        if is_answer and words.count(GIVEN) == len(found) and not is_cut:
            return words, found
        close_elsewhere(found, user)
        if not words:
            raise ConnectionResetError
        if is_cut:
            raise DescriptorError("no descriptor left")
        self.refuse(user)
        raise DescriptorError("no such descriptor store")


def _is_trusted(user: int) -> bool:
    """Return whether a descriptor store is our own user's, or root's."""
    return user in (0, os.geteuid())


@lru_cache(maxsize=256)
def user_behind(separator: bytes, sender: bytes, own: bytes, trusted: frozenset[int]) -> int:
    """Return the user whose descriptor store a message may name.

    The end of the sender's credential key names its user. Before it come the hubs on the way. Each vouches for the
    next, so a stranger's hub could name anybody: all of them have to be that user's, or be ``trusted``. The parents of
    our own hub are trusted: our own credentials come from them.

    :param own: the credential key of the client.
    :param trusted: ids of users, for example root's and the hub's.

    Raises :exc:`~sbuslib.errors.DescriptorError` if the sender may not be the user that the message names.
    """
    namespace = Namespace(separator)
    chain = namespace.chain(sender.removeprefix(namespace.prefix_of(own)))
    *hubs, user = [one.uid for one in chain] or (-1,)
    if user < 0 or not all(hub == user or hub in trusted for hub in hubs):
        raise DescriptorError("sender behind a hub of another user")
    return user
