"""The rows of a journal as Arrow record batches: out of segments and sealed files alike, with all gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..segments.reading import OnCorrupt
from .blocks import present
from .decode import Decoder
from .parquet import sealed_batches
from .pieces import Piece
from .places import Sealed
from .segment_rows import segment_rows
from .selection import Selection

__all__ = ["batches"]


def batches(pieces: Iterable[Piece], schema: Any, wanted: Selection, on_corrupt: OnCorrupt = "error") -> Iterator[Any]:
    """The wanted rows of some pieces, as record batches of ``schema``. Raises as :func:`.blocks.blocks`."""
    decoder = Decoder(schema, wanted)

    def read(piece: Piece) -> Iterator[Any]:
        if isinstance(piece.file, Sealed):
            yield from decoder.finish()
            yield from sealed_batches(piece, schema, wanted)
            return
        for header, path, block in segment_rows(piece, on_corrupt):
            yield from decoder.add(header, path, block)

    yield from present(pieces, read)
    yield from decoder.finish()
