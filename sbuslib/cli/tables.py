"""How counts are shown by ``sbus stat``, ``sbus clients`` and ``sbus tree``."""

from __future__ import annotations

import json
import pwd
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ..errors import SbusError
from ..wire.text import escape
from .console import EXIT_SUCCESS, complain, explain, yield_to_signals

__all__ = ["columns", "losses", "name_of_user", "plain", "run", "show_json"]


def run(command: Callable[[], object], address: str | None) -> int:
    """Call ``command``, and tell an error in one line; the exit status."""
    yield_to_signals()
    try:
        if sys.stdout is None:
            raise OSError("standard output is closed")
        command()
    except (SbusError, OSError) as error:
        return complain("sbus", explain(error, address))
    return EXIT_SUCCESS


def show_json(value: object) -> None:
    """Print a value as JSON in one line, in ASCII, so that it cannot steer a terminal either."""
    print(json.dumps(msgspec.to_builtins(value)))


def plain(text: str) -> str:
    """Text of a stranger, such that it cannot steer a terminal."""
    return "".join(map(escape, text))


def columns(table: Sequence[Sequence[object]], left: int = 1) -> list[str]:
    """The lines of a table, of which the first row is the head. The first ``left`` columns and the last are text."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else plain(str(cell)) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if n < left or n == len(row) - 1 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def losses(lost: Mapping[str, int]) -> str:
    """How much was lost, and why."""
    causes = ", ".join(f"{plain(cause)} {count:,}" for cause, count in lost.items() if count)
    return f"{sum(lost.values()):,}" + (f" ({causes})" if causes else "")


def name_of_user(uid: int) -> str:
    """The name of a user, or its id where there is no name."""
    try:
        return plain(pwd.getpwuid(uid).pw_name)
    except (KeyError, OverflowError):
        return str(uid)
