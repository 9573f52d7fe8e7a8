"""Reads a journal by what ``docs/journal.md`` says of the format, and Parquet files as any program does.

It shares no code with the library: what both read alike is what the page promises.
"""

from __future__ import annotations

import re
import struct
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet

Row = tuple[int, str, bytes | None, bytes | None, str | None]
"""Number, kind, key, payload, and the cause of a gap."""


def rows_of_segment(data: bytes) -> list[Row]:
    """The rows of the whole blocks of a segment."""
    found: list[Row] = []
    if len(data) < 112 or data[:8] != b"sbusjrnl":
        return found
    assert zlib.crc32(data[:12] + bytes(4) + data[16:112]) == struct.unpack_from("<I", data, 12)[0]
    (salt,) = struct.unpack_from("<I", data, 32)
    at = 112
    while at + 32 <= len(data):
        kind, length, crc, rows, _, _ = struct.unpack_from("<4sIIIII", data, at)
        block = data[at : at + length]
        if kind == b"sBeB" or len(block) < length or zlib.crc32(block[:8] + bytes(4) + block[12:], salt) != crc:
            break
        found += _rows(block, kind == b"sBgB", rows)
        at += length
    return found


def _rows(block: bytes, is_gap: bool, rows: int) -> list[Row]:
    (names,) = struct.unpack_from("<I", block, 24)
    at = 32

    def column(count: int, form: str) -> tuple[int, ...]:
        nonlocal at
        values = struct.unpack_from(f"<{count}{form}", block, at)
        at += -(-struct.calcsize(f"<{count}{form}") // 8) * 8
        return values

    _, sequences, _, _, _ = (column(rows, "q") for _ in range(5))
    keys, _ = column(rows, "i"), column(rows, "i")
    payload_ends, name_ends = column(rows + 1, "i"), column(names + 1, "i")
    blob = block[at:]
    payloads = blob[-(-name_ends[-1] // 8) * 8 :]
    named = [blob[start:end] for start, end in pairwise(name_ends)]
    if is_gap:
        return [
            (sequence, "gap", None, None, named[key].decode()) for sequence, key in zip(sequences, keys, strict=True)
        ]
    return [
        (sequence, "message", named[key], payloads[start:end], None)
        for sequence, key, start, end in zip(sequences, keys, payload_ends, payload_ends[1:], strict=False)
    ]


def rows_of_journal(directory: str) -> list[Row]:
    """All rows, in the order of their numbers: those of sealed files, and those of segments that are not sealed."""
    found: dict[int, Row] = {}
    for path in Path(directory).glob("*.sbj"):
        if re.fullmatch(r"\d{20}\.sbj", path.name):
            found |= {row[0]: row for row in rows_of_segment(path.read_bytes())}
    for path in Path(directory, "sealed").glob("*.parquet"):
        table: Any = pyarrow.parquet.read_table(path, columns=["sequence", "kind", "key", "payload", "cause"])
        for row in table.to_pylist():
            mine = tuple(row.values())
            assert found.setdefault(mine[0], mine) == mine, "sealed as it was recorded"
    return [found[number] for number in sorted(found)]
