"""``sbus replay``: a journal or a lake, published again. It blocks, and never loads gevent."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .arguments import add_address
from .console import EXIT_SUCCESS, advise, complain, explain, progress, tell, yield_to_signals
from .journal import add_selection, is_sealed, tell_skipped
from .values import prefixes, speed

if TYPE_CHECKING:
    from ..journal.replay import Publisher, Run, Selection
    from ..segments.directory import OnCorrupt, Piece
    from ..wire.columns import Columns

__all__ = ["add_arguments", "from_lake"]

_ROWS = 8_192
"""Rows of a lake that are taken at once."""

_DAY_NS = 86_400_000_000_000
_FOREVER = 2**63 - 1


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Publish again what was recorded, in a journal or a lake: in order, and at the pace at which it came."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus replay journal --to /tmp/bus\n"
        "  sbus replay journal --to /tmp/bus --speed 10 --pattern 'room/*/temp'\n"
        "  sbus replay lake --to /tmp/bus --flat-out --start 2026-01-31T12:00 --end 2026-01-31T13:00\n"
        "  sbus replay journal --to /tmp/bus --loop --remap room/=demo/room/\n"
        "\n"
        "A time is as in ISO 8601, local unless it says, or @ and seconds since the epoch."
    )
    parser.add_argument("recording", metavar="JOURNAL|LAKE", help="directory of a journal, or of a lake")
    add_address(parser, "--to", required=True)
    add_selection(parser, "publish")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--speed", type=speed, default=1.0, metavar="N", help="N times as fast as it was recorded")
    pace.add_argument("--flat-out", action="store_true", help="as fast as the hub takes it")
    parser.add_argument("--skip-corrupt", action="store_true", help="go on after what is damaged, and count it")
    parser.add_argument(
        "--remap",
        type=prefixes,
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="let keys begin with NEW that begin with OLD; may be repeated, the first that fits counts",
    )
    parser.add_argument("--loop", action="store_true", help="begin again at the end, until Ctrl-C")
    parser.set_defaults(run=_replay)


def _replay(arguments: Namespace) -> int:
    from ..blocking import Client
    from ..errors import SbusError
    from ..journal.replay import Renaming, Selection, replay
    from ..matcher import SEPARATOR

    yield_to_signals()
    count = _Count()
    selection = Selection(map(os.fsencode, arguments.pattern or [""]), arguments.start, arguments.end)
    try:
        with Client(arguments.address) as client, progress(count.tell):
            count.publisher = client
            separator = client.features.separator if client.features is not None else SEPARATOR
            publisher = Renaming(count, arguments.remap, separator) if arguments.remap else count
            while True:
                before = count.published
                runs = _runs(arguments, selection, count)
                count.lost += replay(runs, publisher, speed=None if arguments.flat_out else arguments.speed).lost
                if not arguments.loop or count.published == before:
                    break
            client.sync()
    except (SbusError, OSError) as error:
        before_it = f"; {count.published:,} messages were published before" if count.published else ""
        return complain("sbus", explain(error) + before_it + advise(error, arguments))
    tell(count.tell())
    return EXIT_SUCCESS


def _runs(arguments: Namespace, selection: Selection, count: _Count) -> Iterator[Run]:
    from ..journal.replay import from_journal
    from ..segments.directory import list_segments

    if list_segments(arguments.recording) and not is_sealed(arguments.recording):
        on_corrupt: OnCorrupt = "skip" if arguments.skip_corrupt else "error"
        return from_journal(arguments.recording, selection, on_corrupt=on_corrupt, on_skip=count.skip)
    return from_lake(arguments.recording, selection, "skip" if arguments.skip_corrupt else "error")


class _Count:
    """Hands messages on to a client, and counts what that took and what the recording does not have."""

    publisher: Publisher

    def __init__(self) -> None:
        self.published = self.lost = self._rows = self._bytes = 0

    def send_columns(self, columns: Columns) -> None:
        """Send messages in order, waiting for room."""
        self.publisher.send_columns(columns)
        self.published += len(columns)

    def skip(self, piece: Piece) -> None:
        """Tell and count a piece of the journal that is damaged."""
        tell_skipped(piece)
        self._rows += getattr(piece.block, "rows", None) or 0
        self._bytes += piece.block.length

    def tell(self) -> str:
        """What was done so far."""
        more = f"; {self.lost:,} were lost when it was recorded" if self.lost else ""
        more += f"; {self._rows:,} rows and more, of {self._bytes:,} bytes, were damaged" if self._bytes else ""
        return f"{self.published:,} messages published{more}"


def from_lake(lake: str | os.PathLike[str], selection: Selection, on_corrupt: OnCorrupt = "error") -> Iterator[Run]:
    """The messages of a lake or a sealed journal, a day at a time, each sorted by time, journal and number.

    A day has to fit the memory.

    Raises :exc:`~sbuslib.errors.StateError` when there is no pyarrow to read it with, and
    :exc:`~sbuslib.errors.JournalError`.
    """
    from ..errors import JournalError
    from ..journal.replay import Run
    from ..reading import read
    from ..wire.columns import Columns

    found = read(lake, columns=["time_ns"], start=selection.start, end=selection.end, on_corrupt=on_corrupt)
    times = found.column("time_ns")
    if not os.listdir(lake):
        raise JournalError(f"{os.fspath(lake)}: there is no journal and no lake here")
    import pyarrow.compute

    columns = ["time_ns", "journal", "sequence", "kind", "key", "payload", "lost"]
    days = pyarrow.compute.unique(pyarrow.compute.divide(times, _DAY_NS)).to_pylist()
    for day in sorted(day for day in days if day is not None):
        start = max(day * _DAY_NS, selection.start or 0)
        end = min((day + 1) * _DAY_NS, selection.end if selection.end is not None else _FOREVER)
        order = [("time_ns", "ascending"), ("journal", "ascending"), ("sequence", "ascending")]
        table = read(lake, columns=columns, start=start, end=end, on_corrupt=on_corrupt).sort_by(order)
        for batch in table.to_batches(max_chunksize=_ROWS):
            lost = pyarrow.compute.sum(batch["lost"]).as_py() or 0
            yield Run((), Columns([], None, b""), lost)
            batch = batch.filter(pyarrow.compute.is_valid(batch["key"]))  # the others are gaps
            keys = batch["key"].dictionary_encode()
            numbers = keys.indices.cast(pyarrow.int32()).to_numpy().astype("<i4").tobytes()
            sizes = pyarrow.compute.binary_length(batch["payload"]).cast(pyarrow.int32()).to_numpy().astype("<i4")
            payloads = b"".join(batch["payload"].to_pylist())
            start = 0
            times = memoryview(batch["time_ns"].to_numpy())
            for part in Columns.grouped(keys.dictionary.to_pylist(), numbers, sizes.tobytes(), payloads):
                stop = start + len(part)
                yield selection.choose(times[start:stop], part)
                start = stop
