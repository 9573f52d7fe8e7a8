"""``sbus journal replay``: a journal or a lake, published again. It blocks, and never loads gevent."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from .arguments import Parser, add_address
from .console import progress, tell, yield_to_signals
from .journal import add_selection, selection, tell_skipped
from .values import prefixes, speed

if TYPE_CHECKING:
    from ..journal.replay import Publisher
    from ..segments.layout import Skipped
    from ..wire.columns import Columns

__all__ = ["add_journal_replay"]


def add_journal_replay(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Publish again what was recorded, in a journal or a lake: in order, and at the pace at which it came."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus journal replay journal -a /tmp/bus\n"
        "  sbus journal replay journal -a /tmp/bus --speed 10 --pattern 'room/*/temp'\n"
        "  sbus journal replay lake -a /tmp/bus --flat-out --start 2026-01-31T12:00 --end 2026-01-31T13:00\n"
        "  sbus journal replay journal -a /tmp/bus --loop --remap room/=demo/room/\n"
        "\n"
        "A time is as in ISO 8601, local unless it says, or @ and seconds since the epoch."
    )
    parser.add_argument("recording", metavar="JOURNAL|LAKE", help="directory of a journal, or of a lake")
    add_address(parser, required=True)
    parser.hide("--address", "--to")
    add_selection(parser, "publish")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument(
        "--speed", type=speed, default=1.0, metavar="FACTOR", help="so many times as fast as it was recorded"
    )
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


def _replay(arguments: Namespace) -> None:
    from ..blocking import Client
    from ..journal.replay import Renaming, from_journal, replay
    from ..matcher import SEPARATOR

    yield_to_signals()
    count = _Count()
    wanted = selection(arguments)
    try:
        with Client(arguments.address) as client, progress(count.tell):
            count.publisher = client
            separator = client.features.separator if client.features is not None else SEPARATOR
            publisher = Renaming(count, arguments.remap, separator) if arguments.remap else count
            while True:
                before = count.published
                runs = from_journal(
                    arguments.recording,
                    wanted,
                    on_corrupt="skip" if arguments.skip_corrupt else "error",
                    on_skip=count.skip,
                )
                count.lost += replay(runs, publisher, speed=None if arguments.flat_out else arguments.speed).lost
                if not arguments.loop or count.published == before:
                    break
            client.sync()
    except BaseException:
        if count.published:
            tell(count.tell())  # and then the error
        raise
    tell(count.tell())


class _Count:
    """Hands messages on to a client, and counts what that took and what the recording does not have."""

    publisher: Publisher

    def __init__(self) -> None:
        self.published = self.lost = self._rows = self._bytes = 0

    def send_columns(self, columns: Columns) -> None:
        """Send messages in order, waiting for room."""
        self.publisher.send_columns(columns)
        self.published += len(columns)

    def skip(self, path: str, skipped: Skipped) -> None:
        """Tell and count what of the journal is damaged."""
        tell_skipped(path, skipped)
        self._rows += skipped.rows or 0
        self._bytes += skipped.length

    def tell(self) -> str:
        """What was done so far."""
        more = f"; {self.lost:,} were lost when it was recorded" if self.lost else ""
        more += f"; {self._rows:,} rows and more, of {self._bytes:,} bytes, were damaged" if self._bytes else ""
        return f"{self.published:,} messages published{more}"
