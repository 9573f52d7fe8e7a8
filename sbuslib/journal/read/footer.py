"""Footer of a sealed file: journal, hub and separator of its rows, and their number.

Which rows a file holds is in its name, and each number there is one of these:

* a row of the file;
* covered by a gap row of the cause ``damaged``, which has the last of the numbers that were skipped;
* left out after a crash: :data:`~sbuslib.journal.format.recovery.NUMBERS_LEFT_OUT` numbers, more than any file has
rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import pyarrow
import pyarrow.parquet

from ...errors import CorruptJournalError
from ..format.layout import SegmentHeader
from .journal_files import Sealed, VanishedError, filesystem_of


class Footer(NamedTuple):
    """``header`` has the journal, the hub and the separator of all rows. ``rows`` is their number, gaps included."""

    header: SegmentHeader
    rows: int


@contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Convert errors of Arrow to ours, with the path."""
    try:
        yield
    except FileNotFoundError:
        raise VanishedError(f"{path}: this file was deleted before it was read") from None
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise CorruptJournalError(" ".join(str(error).split()), 0, path) from None


@lru_cache(65_536)
def footer_of(file: Sealed) -> Footer:
    """Read the footer of a sealed file, once in a process: sealed files never change.

    Raises :exc:`~sbuslib.errors.CorruptJournalError`, also for more rows than its name says, and
    :exc:`.journal_files.VanishedError`.
    """
    with named_errors(file.path):
        filesystem, inside = filesystem_of(file.path)
        metadata = pyarrow.parquet.read_metadata(inside, filesystem=filesystem)
    if metadata.num_rows > file.last - file.first + 1:
        raise CorruptJournalError("it has rows that its name does not say, or has them twice", 0, file.path)
    texts = metadata.metadata or {}
    hub = texts.get(b"sbus.hub", b"").decode(errors="replace")
    header = SegmentHeader(file.journal, hub, texts.get(b"sbus.separator", b"/"), file.start_ns, file.first, 0)
    return Footer(header, metadata.num_rows)
