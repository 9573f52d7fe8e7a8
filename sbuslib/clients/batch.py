"""The packets that publish many messages: as few as a hub takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any, TypeAlias, cast

from ..errors import UsageError
from ..wire.batches import BATCH, Batch, pack
from ..wire.packets import Key, as_key
from .session import Session

Pair: TypeAlias = tuple[Key, bytes]
"""Key and payload."""


def check_pair(pair: Any) -> tuple[bytes, Any]:
    """Return key and payload. Raises :exc:`~sbuslib.errors.UsageError` for anything but a pair with a key."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UsageError(f"a message is a pair of key and payload, not {pair!r}")
    return as_key(pair[0]), pair[1]


def encode_many(session: Session, pairs: list[Pair], most: int) -> Iterator[bytes]:
    """The packets that publish ``pairs`` in order.

    To a hub that takes batches, ``most`` bytes of payload go in one packet. Raises as :meth:`.session.Session.encode`
    at a pair that cannot be published, after the packets of those before it.
    """
    done = 0
    with suppress(TypeError, ValueError):  # the pair at fault is found below
        if session.batches and len(pairs) > 1:
            if any(type(key) is str for key, _ in pairs):
                pairs = [(key.encode() if isinstance(key, str) else key, payload) for key, payload in pairs]
            for packet, count in pack(cast("list[tuple[bytes, bytes]]", pairs), session.check_publishable, most):
                yield packet
                done += count
    for pair in islice(pairs, done, None):
        yield session.encode(*check_pair(pair))


def plain(packets: list[bytes]) -> list[bytes]:
    """The same messages for a hub that takes no batches."""
    return [*chain.from_iterable(Batch.parse(one).plain if one.startswith(BATCH) else (one,) for one in packets)]


def in_parts(messages: Iterable[Pair], most: int) -> Iterator[list[Pair]]:
    """``messages``, up to ``most`` at a time. Those that come before an error are yielded before it is raised."""
    try:
        pairs = iter(messages)
    except TypeError:
        raise UsageError(f"messages are pairs of key and payload, not {messages!r}") from None
    while True:
        part: list[Pair] = []
        try:
            part.extend(islice(pairs, most))
        except BaseException:
            yield part
            raise
        yield part
        if len(part) < most:
            return
