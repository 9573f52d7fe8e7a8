"""Journals that are made straight from the format, and what they hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sbuslib.journal.format.encoding import encode_block, encode_end, encode_gaps
from sbuslib.journal.format.layout import NULL, Record, SegmentHeader, pack, segment_name
from sbuslib.journal.read.blocks import read_records
from sbuslib.reading import Engine

SALT = 0x1BADB002
START_NS = 1_750_000_000_000_000_000  # 2025-06-15T15:06:40Z
SENDER = b"!/cred/100/1000/4711"

READERS: dict[Engine, Callable[[Any], list[dict[str, Any]]]] = {
    "arrow": lambda found: found.to_pylist(),
    "pandas": lambda found: found.astype(object).where(found.notna(), None).to_dict("records"),
    "polars": lambda found: found.collect().to_dicts(),
    "duckdb": lambda found: [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()],
}
"""The rows of what ``sbuslib.read`` gives, for each engine of Python."""


def message(sequence: int, key: bytes, payload: bytes, ids: tuple[int | None, ...] = (100, 1000, 4711)) -> Record:
    gid, uid, pid = ids
    return Record(START_NS + sequence, sequence, "message", key, payload, SENDER, gid, uid, pid)


def gap(sequence: int, cause: str, lost: int | None) -> Record:
    time = START_NS + sequence
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
        {
            "times": pack("q", [one.time_ns for one in records]),
            "gids": _ids([one.gid for one in records]),
            "uids": _ids([one.uid for one in records]),
            "pids": _ids([one.pid for one in records]),
            "keys": pack("i", [names.index(one.key or b"") for one in records]),
            "senders": pack("i", [NULL if one is None else names.index(one) for one in senders]),
        },
        names,
        [one.payload or b"" for one in records],
    )


def segment_of(
    blocks: Sequence[Sequence[Record]],
    *,
    ended: bool = True,
    journal: str = "0123456789abcdef",
    boot: bytes = bytes(16),
    hub: str = "fedcba9876543210",
    separator: bytes = b"/",
) -> bytes:
    """A whole segment."""
    header = SegmentHeader(journal, hub, separator, START_NS, blocks[0][0].sequence, SALT, boot)
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
            file.write(segment_of(blocks, boot=boot))
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


def flip(path: str | os.PathLike[str], at: int, bits: int = 1) -> bytes:
    """Change a byte of a file; counted from the end if ``at`` is negative. Returns what the file has then."""
    data = bytearray(Path(path).read_bytes())
    data[at] ^= bits
    Path(path).write_bytes(data)
    return bytes(data)


class Row(NamedTuple):
    """A message in a test's journal."""

    key: bytes
    payload: bytes
    time_ns: int
    sender: bytes | None = SENDER
    ids: tuple[int, int, int] = (100, 1000, 4711)


def rows(count: int, first: int = 1, keys: int = 7) -> list[Row]:
    """``count`` messages, one a second. Their payloads are their numbers, from ``first`` on."""
    return [
        Row(b"room/%d/temp" % (number % keys), b"%d" % number, START_NS + number * 1_000_000_000)
        for number in range(first, first + count)
    ]


def numbered(first: int, messages: Sequence[Row]) -> list[Record]:
    """Messages as rows, numbered from ``first`` on."""
    rows = enumerate(messages, first)
    return [Record(row.time_ns, n, "message", row.key, row.payload, row.sender, *row.ids) for n, row in rows]


def message_block(first: int, messages: Sequence[Row]) -> bytearray:
    """A block of messages numbered from ``first`` on."""
    return block(numbered(first, messages))


def segment(
    directory: Path,
    first: int,
    *blocks: Sequence[Row] | tuple[int, str, int | None],
    sealed: bool = True,
    hub: str = "hub-1",
    **header: Any,
) -> Path:
    """Write a segment whose first row is numbered ``first``: each block a list of messages, or one gap.

    A gap is a time, a cause and a count, ``None`` where nobody knows it.
    """
    rows, number = list[list[Record]](), first
    for one in blocks:
        if isinstance(one, tuple):
            rows.append([gap(number, *one[1:])._replace(time_ns=one[0])])
        else:
            rows.append(numbered(number, one))
        number += len(rows[-1])
    directory.mkdir(exist_ok=True)
    path = directory / segment_name(first)
    path.write_bytes(segment_of(rows, ended=sealed, hub=hub, **header))
    return path
