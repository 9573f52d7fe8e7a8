"""Journals that are made straight from the format, and what they hold."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sbuslib.lake.blocks import read_records
from sbuslib.segments.encoding import encode_block, encode_end, encode_gaps
from sbuslib.segments.layout import NULL, Record, SegmentHeader, pack, segment_name

SALT = 0x1BADB002
SENDER = b"!/cred/100/1000/4711"


def message(sequence: int, key: bytes, payload: bytes, ids: tuple[int | None, ...] = (100, 1000, 4711)) -> Record:
    gid, uid, pid = ids
    return Record(1_750_000_000_000_000_000 + sequence, sequence, "message", key, payload, SENDER, gid, uid, pid)


def gap(sequence: int, cause: str, lost: int | None) -> Record:
    time = 1_750_000_000_000_000_000 + sequence
    return Record(time, sequence, "gap", None, None, None, None, None, None, lost, cause)


def _ids(values: list[int | None]) -> bytes:
    return pack("q", [NULL if value is None else value for value in values])


def block(records: Sequence[Record], salt: int = SALT) -> bytearray:
    """One block of messages, or one of gaps."""
    first = records[0].sequence
    if records[0].kind == "gap":
        return encode_gaps(salt, first, [(one.time_ns, one.cause or "", one.lost) for one in records])
    senders = [one.sender for one in records]
    names = list(dict.fromkeys([one.key or b"" for one in records] + [one for one in senders if one is not None]))
    return encode_block(
        salt,
        first,
        pack("q", [one.time_ns for one in records]),
        _ids([one.gid for one in records]),
        _ids([one.uid for one in records]),
        _ids([one.pid for one in records]),
        pack("i", [names.index(one.key or b"") for one in records]),
        pack("i", [NULL if one is None else names.index(one) for one in senders]),
        names,
        [one.payload or b"" for one in records],
    )


def segment(
    blocks: Sequence[Sequence[Record]],
    *,
    ended: bool = True,
    journal: str = "0123456789abcdef",
    boot: bytes = bytes(16),
) -> bytes:
    """A whole segment."""
    first = blocks[0][0].sequence
    header = SegmentHeader(journal, "fedcba9876543210", b"/", 1_750_000_000_000_000_000, first, SALT, boot)
    parts: list[bytes | bytearray] = [header.encode(), *map(block, blocks)]
    if ended:
        parts.append(encode_end(SALT, blocks[-1][-1].sequence + 1))
    return b"".join(parts)


def write(directory: str, *segments: Sequence[Sequence[Record]], boot: bytes = bytes(16)) -> list[str]:
    """A journal of these segments; the paths of their files."""
    os.makedirs(directory, exist_ok=True)
    paths = []
    for blocks in segments:
        path = os.path.join(directory, segment_name(blocks[0][0].sequence))
        with open(path, "wb") as file:
            file.write(segment(blocks, boot=boot))
        paths.append(path)
    return paths


EXAMPLE = [
    [[message(1, b"room/1/temp", b"21.5"), message(2, b"log/a", b""), message(3, b"room/1/temp", b"\0\xff" * 20)]],
    [
        [message(4, b"room/2/temp", b"19", ids=(None, 1000, None))],
        [gap(5, "overflow", 7), gap(6, "outage", None), gap(7, "overflow", 1)],
        [message(8, b"room/2/temp", b"x" * 9), message(9, b"k", b"y")],
    ],
]
"""Two segments, of one block and of three."""


def records_of(directory: str) -> list[Record]:
    """All rows of a journal, in order; an error where anything is wrong with it."""
    return list(read_records(directory))
