"""The packets that publish many messages: as few as a hub takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TypeAlias, cast

from ..wire.batches import BATCH, Batch, pack
from ..wire.packets import Key
from .session import Session

__all__ = ["Pair", "encode_many", "in_parts", "plain"]

Pair: TypeAlias = tuple[Key, bytes]
"""Key and payload."""


def encode_many(session: Session, pairs: list[Pair], most: int) -> Iterator[bytes]:
    """The packets that publish ``pairs`` in order.

    To a hub that takes batches, ``most`` bytes of payload go in one packet. Raises as :meth:`.session.Session.encode`
    at a pair that cannot be published, after the packets of those before it.
    """
    done = 0
    if session.batches and len(pairs) > 1:
        if any(type(key) is str for key, _ in pairs):
            pairs = [(key.encode() if isinstance(key, str) else key, payload) for key, payload in pairs]
        packed = pack(cast("list[tuple[bytes, bytes]]", pairs), session.check_publishable, most)
        while done < len(pairs):
            try:
                packet, count = next(packed)
            except (TypeError, ValueError):
                break  # the pair at fault is found below
            yield packet
            done += count
    for key, payload in islice(pairs, done, None):
        yield session.encode(key, payload)


def plain(packets: list[bytes]) -> list[bytes]:
    """The same messages for a hub that takes no batches."""
    return [*chain.from_iterable(Batch.parse(one).plain if one.startswith(BATCH) else (one,) for one in packets)]


def in_parts(messages: Iterable[Pair], most: int) -> Iterator[list[Pair]]:
    """``messages``, up to ``most`` at a time. Those that come before an error are yielded before it is raised."""
    pairs = iter(messages)
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
