"""Makes Arrow arrays from buffers, in the workers of Spark, without loading pandas.

``pyarrow.array`` and ``pyarrow.scalar`` load pandas to check for its types. That takes a worker longer than its first
task. It also makes each garbage collection several times as long, and Spark collects after every task. So code that
handles rows uses neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["binary", "numbers", "same", "texts"]


def numbers(values: NDArray[Any], kind: Any, missing: NDArray[numpy.bool_] | None = None) -> Any:
    """An array of the Arrow type ``kind``, which has the width of ``values``; null where ``missing`` is true."""
    valid = None
    if missing is not None and missing.any():
        valid = pyarrow.py_buffer(numpy.packbits(~missing, bitorder="little"))
    return pyarrow.Array.from_buffers(kind, len(values), [valid, pyarrow.py_buffer(values)])


def _strings(kind: Any, sizes: Any, data: bytes) -> Any:
    offsets = numpy.zeros(len(sizes) + 1, numpy.int32)
    numpy.cumsum(sizes, out=offsets[1:])
    return pyarrow.Array.from_buffers(kind, len(sizes), [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)])


def binary(sizes: NDArray[Any], blobs: Sequence[memoryview] | Sequence[bytes]) -> Any:
    """An array of the byte strings of these sizes that stand one after the other in ``blobs``."""
    return _strings(pyarrow.binary(), sizes, b"".join(blobs))


def texts(values: Sequence[str]) -> Any:
    data = [value.encode() for value in values]
    return _strings(pyarrow.string(), [*map(len, data)], b"".join(data))


def same(text: str, count: int) -> Any:
    """An array of one string, ``count`` times."""
    data = text.encode()
    return _strings(pyarrow.string(), numpy.full(count, len(data)), data * count)
