"""Arrow arrays from buffers: the same as those that pyarrow makes of Python's values."""

from __future__ import annotations

import numpy
import pyarrow

from sbuslib.lake.arrays import binary, numbers, same, texts


def test_arrays_equal_those_of_pyarrow() -> None:
    made = [
        (numbers(numpy.array([1, -2, 3]), pyarrow.int64()), pyarrow.array([1, -2, 3])),
        (
            numbers(numpy.arange(10), pyarrow.int64(), numpy.arange(10) % 3 == 0),
            pyarrow.array([n if n % 3 else None for n in range(10)]),
        ),
        (binary(numpy.array([2, 0, 1]), [b"a", b"bc"]), pyarrow.array([b"ab", b"", b"c"])),
        (texts(["a", "", "é"]), pyarrow.array(["a", "", "é"])),
        (same("é", 3), pyarrow.array(["é"] * 3)),
    ]
    for array, expected in made:
        array.validate(full=True)
        assert array.equals(expected), expected
    assert numbers(numpy.array([1]), pyarrow.int64(), numpy.array([False])).null_count == 0
