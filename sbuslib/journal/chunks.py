"""Chunks of messages for the writer, and their conversion to the columns of a block."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain, groupby
from typing import Literal, NamedTuple

from ..secrets import OVERFLOW_ID, RESERVED
from ..wire.batches import take_apart
from ..wire.columns import Columns, merge_keys
from .format.encoding import widened
from .format.layout import NULL, Buffer, pack


class Chunk(NamedTuple):
    """Messages of one sender that came at one time: as columns, or as packets, ``MSG <key>NUL<payload>`` each.

    The ids are those of the process that answers for them: see :func:`~sbuslib.secrets.answerable`.
    """

    time_ns: int
    sender: bytes
    gid: int | None
    uid: int | None
    pid: int | None
    messages: Columns | Sequence[bytes]


def own_users() -> set[int]:
    """The users whose hubs are trusted to name senders: root, and the user of this process."""
    return {0, os.getuid()} - {OVERFLOW_ID}


def columns_of(chunks: list[Chunk]) -> tuple[list[bytes], Buffer, bytes, Sequence[Buffer]]:
    """Make the columns of a block: distinct keys, each message's key, the payloads' lengths, and the payloads."""
    # 1. Packets alone, as a client recorder has them, are split all at once.
    numbers: bytes | list[int] | None
    packets: list[bytes] = []
    for chunk in chunks:
        if isinstance(chunk.messages, Columns):
            break
        packets += chunk.messages
    else:
        names, numbers, payloads = take_apart(packets)
        return names, _column(numbers, len(packets)), pack("i", [*map(len, payloads)]), payloads

    # 2. Columns are joined; each part has numbered its own keys.
    parts = parts_of(chunks)
    rows = sum(map(len, parts))
    merged = merge_keys(parts)
    if merged is not None:
        names, numbers = merged
    else:
        names = [*dict.fromkeys(chain.from_iterable(part.keys for part in parts))]
        of = {name: number for number, name in enumerate(names)}
        numbers = []
        for part in parts:
            own = part.numbers if part.numbers is not None else bytes(len(part))
            numbers += map([of[key] for key in part.keys].__getitem__, own)
    sizes = b"".join([part.sizes for part in parts])
    return names, _column(numbers, rows), sizes, [part.payloads for part in parts]


def _column(numbers: bytes | list[int] | None, rows: int) -> Buffer:
    """Make a column of numbers of 4 bytes."""
    if numbers is None:
        return bytes(4 * rows)
    return pack("i", numbers) if isinstance(numbers, list) else widened(numbers)


def parts_of(chunks: list[Chunk]) -> list[Columns]:
    """Convert the messages of chunks to columns. Packets of neighbouring chunks are split together."""
    parts: list[Columns] = []
    for _, run in groupby(chunks, key=lambda chunk: isinstance(chunk.messages, Columns)):
        packets: list[bytes] = []
        for chunk in run:
            if isinstance(chunk.messages, Columns):
                parts.append(chunk.messages)
            else:
                packets += chunk.messages
        if packets:
            parts += Columns.of_packets(packets)
    return parts


def without_secrets(chunks: list[Chunk], separator: bytes) -> list[Chunk]:
    """Remove messages that are secret, at this hub or another. A second check: hubs send a recorder no secrets."""
    secret, plain = separator + RESERVED + separator, list[Chunk]()
    for chunk in chunks:
        for part in parts_of([chunk]):
            table = bytes(secret not in separator + key + separator for key in part.keys).ljust(256, b"\0")
            public = part.select((part.numbers or bytes(len(part))).translate(table))
            if public:
                plain.append(chunk._replace(messages=public))
    return plain


def spread(kind: Literal["i", "q"], values: Sequence[int | None], counts: list[int], rows: int) -> bytes:
    """Make a column in which each value is repeated by its count; ``None`` becomes ``NULL``."""
    packed = {value: pack(kind, [NULL if value is None else value]) for value in set(values)}
    if len(packed) == 1:
        return packed[values[0]] * rows
    return b"".join([packed[value] * count for value, count in zip(values, counts, strict=True)])
