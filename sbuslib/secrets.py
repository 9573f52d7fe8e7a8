"""Credentials, and the rules of the reserved token ``!``: which clients may subscribe to which secret keys.

A ``!`` that stands alone between separators is reserved. Its one use in a routing key is

    ``<prefix>!/cred/<gid>/<uid>/<pid>/<rest>``

a *secret* key. Every client may publish under it. A client may subscribe to it only if the ids in the key are its own
credentials, as the kernel gives them. An id may be left empty, by publisher and subscriber alike: every client of user
1000 may subscribe to ``!/cred//1000//x``. At the root of a tree of hubs ``<prefix>`` is empty; below, it is the
credential keys of all links on the way down. ``<rest>`` is free, and may have ``!/cred/`` in it.

This module relies on the kernel's report of a process when it connected; see ``docs/security.md`` for how far that can
be trusted. Source: the section on secret messages in sbus's README.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import lru_cache

import msgspec

from .errors import ReservedKeyError
from .matcher import SEPARATOR, check_separator
from .reasons import Reason

__all__ = [
    "OVERFLOW_ID",
    "RESERVED",
    "UNKNOWN",
    "Credentials",
    "Namespace",
    "answerable",
    "credentials_of",
    "process_of",
    "stranger",
    "user_of",
]

RESERVED = b"!"

OVERFLOW_ID = 65_534
"""The id that the kernel reports for a user or group that has none in our user namespace. It may be any user, so it has
no secret keys."""

_DEEPEST = 64
"""Most hubs in a sender's credential key: no tree is deeper, and longer keys would take long to check."""

_SEGMENTS = 5
"""Segments of ``!/cred/<gid>/<uid>/<pid>``. Known only here."""

_DIGITS, _LARGEST = 10, 2**32 - 1
"""Most digits of an id, and the largest: the kernel keeps it in 32 bits."""


class Credentials(msgspec.Struct, frozen=True, order=True):
    """Credentials of the process at the other end of a Unix-domain socket, by the kernel (``SO_PEERCRED``).

    ``gid`` is its effective group when it connected. A ``pid`` of 0 and an ``uid`` or ``gid`` of 65534 mean
    that the kernel could not say, because the peer is in another namespace.
    """

    gid: int
    uid: int
    pid: int

    def known(self) -> tuple[int | None, int | None, int | None]:
        """``(gid, uid, pid)``, with ``None`` for an id that the kernel could not say."""
        return (
            self.gid if self.gid != OVERFLOW_ID else None,
            self.uid if self.uid != OVERFLOW_ID else None,
            self.pid if self.pid > 0 else None,
        )


UNKNOWN = Credentials(gid=OVERFLOW_ID, uid=OVERFLOW_ID, pid=0)
"""An unknown process, in a credential key. Nobody may subscribe to its secrets."""


class Namespace:
    """The rules of one hub: its separator, and the prefix of its own clients' secret keys."""

    def __init__(self, separator: bytes = SEPARATOR, prefix: bytes = b"") -> None:
        self.separator = check_separator(separator)  # one byte
        self.prefix = prefix
        #: Beginning of credential keys, after the prefix.
        self.start = separator.join((RESERVED, b"cred", b""))
        #: Mark of a pattern that only monitors want, between hubs.
        self.mark = separator.join((RESERVED, b"monitor", b""))
        #: Mark of a pattern that a hub presumes somebody to want: it does not know.
        self.presumption = separator.join((RESERVED, b"presumed", b""))
        #: Mark of a secret key: the reserved segment, between separators.
        self._lone = separator + RESERVED + separator

    def credential_key(self, credentials: Credentials) -> bytes:
        """``<prefix>!/cred/<gid>/<uid>/<pid>``: the answer to a whoami."""
        ids = b"%d" % credentials.gid, b"%d" % credentials.uid, b"%d" % credentials.pid
        return self.prefix + self.start + self.separator.join(ids)

    @property
    def anybody(self) -> bytes:
        """``!/cred///``, which names no id: every client may subscribe to keys under it."""
        return self.start + 2 * self.separator

    def is_secret(self, key: bytes) -> bool:
        """Return whether a key that :meth:`check_key` accepted is secret, so that the second index has to be asked."""
        return key.startswith(self.start)

    def unmark(self, pattern: bytes) -> tuple[bytes, bytes]:
        """Return the mark of a pattern that only monitors want, or that is only presumed to be wanted; empty for any
        other. And return the pattern itself.
        """
        for mark in (self.mark, self.presumption):
            if pattern.startswith(mark):
                return mark, pattern[len(mark) :]
        return b"", pattern

    def chain(self, key: bytes) -> tuple[Credentials, ...]:
        """Return the credentials in a credential key, from the root of the tree on; none in any other key.

        A credential key is one ``!/cred/<gid>/<uid>/<pid>`` or several, one behind the other.
        """
        fields = key.split(self.separator, _SEGMENTS * _DEEPEST)
        if len(fields) % _SEGMENTS:
            return ()
        found = []
        for at in range(0, len(fields), _SEGMENTS):
            reserved, word, *ids = fields[at : at + _SEGMENTS]
            if (reserved, word) != (RESERVED, b"cred") or not all(len(i) <= _DIGITS and i.isdigit() for i in ids):
                return ()
            found.append(Credentials(*map(int, ids)))
            if max(found[-1].gid, found[-1].uid, found[-1].pid) > _LARGEST:
                return ()
        return tuple(found)

    def prefix_of(self, key: bytes) -> bytes:
        """Return the part before the last credentials of a credential key: the prefix of the hub that knows them."""
        fields = key.split(self.separator)
        return b"".join(field + self.separator for field in fields[:-_SEGMENTS])

    def uses_reserved(self, key: bytes) -> bool:
        """Return whether the reserved token is in a key or pattern: either it is a secret, or nobody may use it."""
        return RESERVED in key and self._lone in self.separator + key + self.separator

    def _ids(self, secret: bytes) -> list[bytes]:
        """Return the three id fields that follow ``!/cred/`` at the start of ``secret``."""
        fields = secret[len(self.start) :].split(self.separator, 3)
        if len(fields) < 4:
            raise ReservedKeyError(Reason.TRUNCATED_SECRET)
        return fields[:3]

    def holder(self, secret: bytes) -> tuple[int | None, int | None, int | None] | None:
        """Return the ids ``(gid, uid, pid)`` that a client needs to subscribe to a secret key or pattern of this hub.

        ``None`` for an id is any; ``None`` alone: no client can have such ids, as the kernel does not write them so.
        """
        if not secret.startswith(self.prefix + self.start):
            return None
        try:
            fields = self._ids(secret[len(self.prefix) :])
            ids = [int(field) if field.isdigit() and len(field) <= _DIGITS else None for field in fields]
            # As if the client had them: an id of another is one that is written in another way.
            gid, uid, pid = (id or 0 for id in ids)
            self.check_pattern(secret, Credentials(gid=gid, uid=uid, pid=pid))
        except ReservedKeyError:
            return None
        return (ids[0], ids[1], ids[2]) if max(gid, uid, pid) <= _LARGEST else None

    def check_key(self, key: bytes) -> bool:
        """Whether ``key``, under which a client wants to publish, is secret.

        Raises :exc:`~sbuslib.errors.ReservedKeyError` when it uses the reserved token in any other way.
        """
        if not self.uses_reserved(key):
            return False
        if not self.is_secret(key):
            raise ReservedKeyError(Reason.RESERVED_IN_KEY)
        if not all(not field or field.isdigit() for field in self._ids(key)):
            raise ReservedKeyError(Reason.MALFORMED_SECRET)
        return True

    def check_pattern(self, pattern: bytes, credentials: Credentials) -> bool:
        """Whether ``pattern``, to which a client with ``credentials`` wants to subscribe, is secret.

        Raises :exc:`~sbuslib.errors.ReservedKeyError` unless it is plain, or a secret pattern under our
        own prefix in which each id is the client's own or empty.
        """
        if not self.uses_reserved(pattern):
            return False
        if not pattern.startswith(self.prefix + self.start):
            raise ReservedKeyError(Reason.RESERVED_IN_PATTERN)
        # Compared as bytes, not as numbers: there is one way to write an id. With a sign, a leading zero or too many
        # digits it is the id of another.
        named = named_gid, named_uid, named_pid = self._ids(pattern[len(self.prefix) :])
        own_ids = gid, uid, pid = credentials.known()
        for field, own in zip(named, own_ids, strict=True):
            if field and own is not None and field != b"%d" % own:
                raise ReservedKeyError(Reason.SECRET_OF_ANOTHER)
        # The kernel cannot report an id without a number in the hub's namespaces, as of a client in a container.
        if named_pid and pid is None:
            raise ReservedKeyError(Reason.UNKNOWN_PROCESS)
        if (named_uid and uid is None) or (named_gid and gid is None):
            raise ReservedKeyError(Reason.UNKNOWN_USER)
        return True


def stranger(sender: bytes | None, own: bytes, separator: bytes, trusted: frozenset[int] = frozenset()) -> int | None:
    """Return the first user on the way from a sender to the process ``own`` who is not trusted; ``None`` if all are.

    Trusted are that process's own user, root, and some more. A child's claims about its clients are trusted as much as
    the user of that hub. A hub that names no senders is taken at its word. A service charges this user for the sender's
    messages.
    """
    who = credentials_of(sender, own, separator, trusted)
    return None if who is None or who.uid in _believed(own, separator, trusted) else who.uid


@lru_cache(1_024)
def credentials_of(
    sender: bytes | None, own: bytes, separator: bytes, trusted: frozenset[int] = frozenset()
) -> Credentials | None:
    """Return the process that answers to the process ``own`` for a message: its publisher, or a hub on the way.

    A hub could name anybody as the sender of what comes through it. So no chain is believed beyond the first hub of a
    user that is neither that process's own, nor root, nor ``trusted``. :data:`UNKNOWN` where no hub names a sender;
    *None* where none was asked to.
    """
    if sender is None:
        return None
    namespace = Namespace(separator)
    chain = namespace.chain(sender.removeprefix(namespace.prefix_of(own)))
    return answerable(chain, _believed(own, separator, trusted))


@lru_cache(1_024)
def _believed(own: bytes, separator: bytes, trusted: frozenset[int]) -> frozenset[int]:
    """Return the users whose hubs the process ``own`` believes."""
    return frozenset({0, Namespace(separator).chain(own)[-1].uid, *trusted} - {OVERFLOW_ID})


def answerable(chain: Sequence[Credentials], trusted: Container[int]) -> Credentials:
    """Return the first credentials of a chain whose user is not trusted, else the last; unknown if there are none."""
    last = UNKNOWN
    for last in chain:
        if last.uid not in trusted:
            break
    return last


def user_of(sender: bytes | None, own: bytes | None, separator: bytes) -> bytes:
    """Return a sender's credential key without the process: the part for which the kernel vouches.

    ``own`` is the key of this process on the same bus. Below the same prefix, the kernel vouches for the first
    credentials after the prefix. Of any other sender only the first are taken: the rest is the claim of some relay.
    """
    parts = (sender or b"").split(separator)
    prefix = (own or b"").split(separator)[:-_SEGMENTS]
    vouched = _SEGMENTS + (len(prefix) if parts[: len(prefix)] == prefix else 0)
    return separator.join(parts[:vouched][:-1])


def process_of(sender: bytes | None, own: bytes | None, separator: bytes) -> tuple[str, str]:
    """Return the user and the process of a sender: the numbers for which the kernel vouches, see :func:`user_of`."""
    user = user_of(sender, own, separator)
    uid = user.rpartition(separator)[2]
    pid = (sender or b"")[len(user) + 1 :].partition(separator)[0]
    return uid.decode("ascii", "replace"), pid.decode("ascii", "replace")
