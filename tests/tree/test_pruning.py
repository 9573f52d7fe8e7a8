"""Tables of the keys that a hub below was told not to send."""

from __future__ import annotations

import pytest

from sbuslib.tree.pruning import KeyTable


@pytest.mark.parametrize(("most", "most_bytes"), [(3, 1_000), (1_000, 3)])
def test_the_table_of_keys_forgets_the_oldest(most: int, most_bytes: int) -> None:
    table = KeyTable(most, most_bytes)
    assert [table.add(key) for key in (b"a", b"b", b"a", b"c")] == [[], [], [], []]
    assert table.add(b"d") == [b"a"]
    assert table.keys() == [b"b", b"c", b"d"]
    assert table.discard(b"c")
    assert not table.discard(b"c")
    assert len(table) == table.bytes == 2
    assert b"d" in table
