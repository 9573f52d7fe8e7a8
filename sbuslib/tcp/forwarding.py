"""Forwarding convention: copies under ``//fwd/`` that pass from peer to peer, each message once.

When data comes under a configured ``//name``, a copy goes out under ``//fwd/name``, to every peer that wants it except
the one that the data came from. Each peer passes the copies on in the same way. Source: the forwarding convention on
the page of Simplest pubsub. It has no rule that stops a copy in a network with cycles. This module adds two, both pure:

**Numbers.** A peer that subscribes to ``//hop/`` understands numbered names. It gets ``//hop/<hops>/<id>//fwd/name``
instead of ``//fwd/name``, with the number of peers that the copy has passed, and an id from the publisher. The id
distinguishes a message from all others, also from equal ones, so each message is passed on once. A copy that has passed
too many peers is not passed on.

**Contents.** A peer that knows only the three commands sends no ids. Its messages are recognized by a digest of name
and data, and are counted. Data under ``//name`` comes from its publisher itself. The *n*-th equal message within a
short time gets an id made of the digest and *n*, which is the same at every peer that the publisher is connected to. A
copy without id is new if its peer has now sent more equal ones than are known here from any peer. This stops copies in
cycles also in a network with both kinds of peers. It may hold back a message with the same name and data from another
publisher. Messages that are held back are counted.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from hashlib import blake2b
from typing import Generic, TypeVar

from ..errors import UsageError
from .limits import TcpLimits

NUMBERED = "//hop/"
"""The substring whose subscribers understand numbered names."""

_FORWARD = "//fwd/"
_TAG = re.compile(r"//hop/([0-9]{1,3})/([0-9a-z.]{1,64})(?=//)")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def number(name: str, identity: str, hops: int) -> str:
    """Encode the numbered form of ``name``, which starts with ``//``."""
    return f"{NUMBERED}{hops}/{identity}{name}"


def unnumber(name: str) -> tuple[str, str, int] | None:
    """Decode a numbered name to name, id and hops; ``None`` for any other."""
    match = _TAG.match(name)
    return (name[match.end() :], match[2], int(match[1])) if match else None


class Forwarding:
    """Set of forwarded names: each of ``names``, and all names below it.

    >>> forwarding = Forwarding(["//myorg/chat"])
    >>> forwarding.copy_of("//myorg/chat/main"), forwarding.plain_of("//fwd/myorg/chat")
    ('//fwd/myorg/chat/main', '//myorg/chat')

    Raises :exc:`~sbuslib.errors.UsageError` for an empty name.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        if isinstance(names, str):
            raise UsageError("forward is a list of names")
        self._names: dict[str, None] = {}  # without slashes at either end
        for name in names:
            self.add(name)

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, name: str) -> None:
        """Forward ``name`` too, given with or without its leading slashes."""
        bare = name.removeprefix("//").rstrip("/")
        if not bare:
            raise UsageError("a name to forward is not empty")
        self._names[bare] = None

    def substrings(self) -> list[str]:
        """The substrings that a forwarding peer has to subscribe to."""
        return [prefix + name for name in self._names for prefix in ("//", _FORWARD)]

    def _covers(self, bare: str) -> bool:
        return any(bare == name or bare.startswith(name + "/") for name in self._names)

    def copy_of(self, name: str) -> str | None:
        """The name for the copy of data under ``name``; ``None`` if it is not forwarded, or is a copy itself."""
        if not self._names or not name.startswith("//") or name.startswith(_FORWARD):
            return None
        return _FORWARD + name[2:] if self._covers(name[2:]) else None

    def plain_of(self, name: str) -> str | None:
        """The original name of the copy under ``name``; ``None`` if it is no copy that this peer forwards."""
        if not self._names or not name.startswith(_FORWARD):
            return None
        bare = name[len(_FORWARD) :]
        return "//" + bare if self._covers(bare) else None


class _Generations(Generic[K, V]):
    """A table that forgets its older half when it is full, and with :meth:`turn`."""

    def __init__(self, capacity: int) -> None:
        self._half = max(1, capacity // 2)  # most entries of one generation
        self._new: dict[K, V] = {}  # the younger half
        self._old: dict[K, V] = {}  # the older, forgotten next

    def get(self, key: K) -> V | None:
        value = self._new.get(key)
        return value if value is not None else self._old.get(key)

    def put(self, key: K, value: V) -> None:
        if len(self._new) >= self._half and key not in self._new:
            self.turn()
        self._new[key] = value

    def turn(self) -> None:
        self._old, self._new = self._new, {}


def digest_of(name: str, data: bytes) -> str:
    """Digest that identifies a message without id: 128 bits of its plain name and data, in hexadecimal."""
    digest = blake2b(name.encode(), digest_size=16)
    digest.update(b" ")
    digest.update(data)
    return digest.hexdigest()


class Seen:
    """Duplicate detector: the messages that came before.

    A message's *trace* is the set of receivers at this end that have had it; the bool beside it is true for a new
    message. ``now`` is in seconds, from any clock that only goes forward.
    """

    def __init__(self, limits: TcpLimits) -> None:
        self._limits = limits
        # Traces of messages that their publisher numbered, by id.
        self._ids: _Generations[str, set[object]] = _Generations(limits.seen)
        # Traces of others, by the id made of their contents.
        self._recent_ids: _Generations[str, set[object]] = _Generations(limits.seen)
        # Equal messages from their publisher of late, by digest.
        self._recent: _Generations[str, int] = _Generations(limits.seen)
        self._known: _Generations[str, int] = _Generations(limits.seen)  # equal messages of all publishers, by digest
        # Equal copies over each link, by link and digest.
        self._came: _Generations[tuple[Hashable, str], int] = _Generations(limits.seen)
        self._turned = 0.0  # when recent messages were last turned over
        self.held_back = 0  # messages taken for repeats by their contents

    def numbered(self, identity: str, digest: str, now: float) -> tuple[set[object], bool]:
        """Look up a message that carries its id, or an own message, which gets one.

        Returns its trace, and if it is new.
        """
        self._advance(now)
        table = self._recent_ids if identity.startswith("x") else self._ids
        trace = table.get(identity)
        if trace is not None:
            return trace, False
        trace = set()
        table.put(identity, trace)
        self._known.put(digest, (self._known.get(digest) or 0) + 1)
        return trace, True

    def direct(self, digest: str, now: float) -> tuple[str, set[object], bool]:
        """Give a new id to data without one that came from its publisher, and look it up. The id comes first."""
        self._advance(now)
        count = (self._recent.get(digest) or 0) + 1
        self._recent.put(digest, count)
        identity = f"x{digest}.{count}"
        trace, first = self.numbered(identity, digest, now)
        self.held_back += not first
        return identity, trace, first

    def copy(self, digest: str, link: Hashable, now: float) -> tuple[str, set[object]] | None:
        """Give a new id to a copy without one that came over ``link``; ``None`` for a duplicate."""
        self._advance(now)
        count = (self._came.get((link, digest)) or 0) + 1
        self._came.put((link, digest), count)
        identity = f"x{digest}.{count}"
        if count <= (self._known.get(digest) or 0):
            self.held_back += 1
            return None
        return identity, self.numbered(identity, digest, now)[0]

    def _advance(self, now: float) -> None:
        if now - self._turned >= self._limits.same_seconds:
            self._turned = now
            self._recent.turn()
            self._recent_ids.turn()
