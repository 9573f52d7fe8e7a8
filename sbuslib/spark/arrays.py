"""Arrow arrays over bytes that are there already, in a process that starts and ends with little else in mind.

What belongs here is how the workers of Spark make arrays. ``pyarrow.array`` and ``pyarrow.scalar`` look whether what
they are given is of pandas, and load it for that: this takes a worker longer than its first task, and each collection
of garbage, of which Spark has one after every task, several times as long from then on. So neither is used where rows
go through.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["binary", "integers", "lists", "numbers", "same", "texts"]


def numbers(values: NDArray[Any], kind: Any, missing: NDArray[numpy.bool_] | None = None) -> Any:
    """An array of the Arrow type ``kind``, which is as wide as the type of ``values``; null where ``missing``."""
    valid = None
    if missing is not None and missing.any():
        valid = pyarrow.py_buffer(numpy.packbits(~missing, bitorder="little"))
    return pyarrow.Array.from_buffers(kind, len(values), [valid, pyarrow.py_buffer(values)])


def _laid(kind: Any, sizes: Any, data: bytes) -> Any:
    offsets = numpy.zeros(len(sizes) + 1, numpy.int32)
    numpy.cumsum(sizes, out=offsets[1:])
    return pyarrow.Array.from_buffers(kind, len(sizes), [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)])


def binary(sizes: NDArray[Any], blobs: Sequence[memoryview] | Sequence[bytes]) -> Any:
    """An array of byte strings that lie one after the other in ``blobs``. The sizes add up to what is in there."""
    return _laid(pyarrow.binary(), sizes, b"".join(blobs))


def texts(values: Sequence[str]) -> Any:
    """An array of these strings."""
    data = [value.encode() for value in values]
    return _laid(pyarrow.string(), [*map(len, data)], b"".join(data))


def same(text: str, count: int) -> Any:
    """An array of one string over and over."""
    data = text.encode()
    return _laid(pyarrow.string(), numpy.full(count, len(data)), data * count)


def integers(values: Iterable[int]) -> Any:
    """An array of numbers of 32 bits."""
    column = array("i", values)
    return pyarrow.Array.from_buffers(pyarrow.int32(), len(column), [None, pyarrow.py_buffer(column)])


def lists(ends: Iterable[int], values: Any) -> Any:
    """An array of lists: each from where the one before it ended in ``values`` to its own end, the first from 0."""
    return pyarrow.ListArray.from_arrays(integers([0, *ends]), values)
