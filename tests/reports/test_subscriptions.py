"""What each pattern would have received, as a page, and the file of patterns."""

from __future__ import annotations

from pathlib import Path

import pytest
from reports.rows import in_memory, message
from reports.test_traffic import tiles

from sbuslib.errors import UsageError
from sbuslib.reports.subscriptions import read_patterns, subscriptions


def test_the_report_lists_idle_and_covered_patterns() -> None:
    with in_memory([message(b"a/b", b"xyz")]) as recorded:
        report = subscriptions(recorded, [b"a/", b"a/b", b"idle"])
    assert report.tables["patterns"].rows == [
        (b"a/", 1, 3, 1, []),
        (b"a/b", 1, 3, 1, [b"a/"]),
        (b"idle", 0, 0, 0, []),
    ]
    html = report.page()
    assert tiles(html) == {"patterns": "3", "match nothing": "1", "are covered by others": "1"}
    assert html.count("<code>idle</code>") == 1


def test_patterns_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "patterns"
    path.write_bytes(b'# rooms\nroom/*/temp\n\n""\nroom/*/temp\n\xff/\r\n')
    assert read_patterns(str(path)) == [b"room/*/temp", b"", b"\xff/"]
    path.write_bytes(b"a\nb\0c\n")
    with pytest.raises(UsageError, match=r"patterns, line 2: .*NUL"):
        read_patterns(str(path))
