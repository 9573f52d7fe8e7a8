"""Argument parser of all programs: layout of help, errors that name the nearest option, and shared options."""

from __future__ import annotations

import os
from argparse import ArgumentParser, HelpFormatter

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Sequence
    from typing import Any, NoReturn

ADDRESSES = (
    "Without -a, the address is SBUS_ADDRESS from the environment, else $XDG_RUNTIME_DIR/sbus/bus if you own that "
    "folder, else /run/sbus.socket. The forms of an address are in sbusd(1)."
)
"""The end of the help of each command that asks a hub."""

NAMES = ("-a", "--address", "--bus")
"""The names of the option that says where the hub listens."""

_LIKE = 0.7
"""Similarity from which on a known word is suggested for a wrong one; 1: they are the same."""


class Formatter(HelpFormatter):
    """Fills paragraphs, and leaves blocks with indented lines as they are: examples, for one."""

    def __init__(self, prog: str, **options: Any) -> None:
        # Without a width, argparse loads shutil and with it every way to compress files.
        super().__init__(prog, **{"width": _columns() - 2, **options})

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        blocks = text.split("\n\n")
        return "\n\n".join(one if "\n " in f"\n{one}" else fill(one, width, indent) for one in blocks)


def _columns() -> int:
    try:
        return int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        try:
            return os.get_terminal_size(1).columns or 80
        except OSError:
            return 80


class Parser(ArgumentParser):
    """A parser that names the nearest option in place of a wrong one, under the usage of the command at fault."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **options})
        self.late: str | None = None
        """An argument that may be left out, and may come after options: argparse gives it up at the first option."""

    def hide(self, option: str, *more: str) -> None:
        """Let an option have more names, which help does not show."""
        for name in more:
            self._option_string_actions[name] = self._option_string_actions[option]

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Namespace, list[str]]:
        """Parse as the base class does, but report an unknown argument as an error of this very command."""
        arguments, unknown = super().parse_known_args(args, namespace)
        if self.late and len(unknown) == 1 and getattr(arguments, self.late) is None and unknown[0][:1] != "-":
            setattr(arguments, self.late, os.fsencode(unknown.pop()))
        if unknown:
            self._refuse(unknown)
        return arguments, unknown

    def error(self, message: str) -> NoReturn:
        """Exit as the base class does. A missing argument may have been taken for the value of an option."""
        options = [one.option_strings[0] for one in self._actions if one.option_strings and one.nargs == "+"]
        if options and any(message.endswith(f": {one.metavar}") for one in self._get_positional_actions()):
            message += f"; it comes before options that take several words, such as {options[0]}"
        super().error(message)

    def _refuse(self, unknown: list[str]) -> NoReturn:
        word = next((one for one in unknown if one.startswith("-")), None)
        if word is None:
            self.error(f"unexpected argument: {unknown[0]}")
        option = word.partition("=")[0]
        known = {name: action.option_strings[-1] for name, action in self._option_string_actions.items()}
        self.error(f"there is no option {option}{nearest(option, known)}")


def nearest(word: str, known: Iterable[str] | dict[str, str]) -> str:
    """Return a clause with the known word that is most like ``word``; empty if none is like it.

    ``known`` may map words to the ones that the clause names in their place.
    """
    from difflib import get_close_matches

    stands_for: dict[str, str] = dict(known) if isinstance(known, dict) else {one: one for one in known}
    bare = {name.lstrip("-"): name for name in stands_for}  # two hyphens alone make words alike
    wanted = word.lstrip("-")
    found = get_close_matches(wanted, bare, 1, _LIKE) or [
        one for one in bare if len(one) > 2 and wanted.startswith(one)
    ]
    return f": did you mean {stands_for[bare[found[0]]]}?" if found else ""


def add(container: Any, form: str, help: str, **options: Any) -> None:
    """Add an option or argument to a parser or group, by the form in which help shows it.

    ``-n --count N``, ``--json``, ``--export PATTERN...``, ``KEY``, ``[PAYLOAD]``, ``FILE...``. The name of a
    value decides how it is parsed. ``options`` are argparse's.
    """
    from . import values

    # 1. The names, and what the value is called.
    *names, last = form.split()
    value, are_many = last.strip("[]."), "..." in last
    if last.startswith("-"):
        names.append(last)
        if "choices" not in options:
            options["action"] = "store_true"
    else:
        options["metavar"] = value

    # 2. How it is read, and how many there may be.
    if value in _READ:
        options["type"] = getattr(values, _READ[value])
    if last != value:
        options["nargs"] = "*" if are_many and last[0] == "[" else "+" if are_many else "?"
    if names and are_many:
        options["action"] = "extend"
    if not names:
        names = [options.pop("dest", value.lower() + "s" * are_many)]
    container.add_argument(*names, help=help, **options)


_READ = {
    "N": "count",
    "TIME": "seconds",
    "SIZE": "size",
    "WHEN": "moment",
    "FACTOR": "speed",
    "BYTE": "separator",
    "OLD=NEW": "prefixes",
    "KEY": "encoded",
    "PATTERN": "encoded",
    "PAYLOAD": "encoded",
}
"""The function of :mod:`.values` that reads a value of this name. All other values are texts."""


def add_address(parser: Parser, *names: str, help: str = "where the hub listens", **options: Any) -> None:
    """Add the option that names the hub; ``names`` and ``options`` are for a command that shows it in another way.

    Every command takes it under all of its names, so none has to be remembered with the command.
    """
    parser.add_argument(*(names or NAMES[:2]), dest="address", **{"metavar": "ADDRESS", "help": help, **options})
    parser.hide((names or NAMES)[0], *NAMES)


def add_descriptor_folder(parser: Parser) -> None:
    """Add the option that names the folder of descriptor stores."""
    add(parser, "--descriptor-folder DIR", "a folder that both ends see, for the socket at which files are handed out")


def add_patterns(parser: Parser, option: str, help: str, *, file_may_have: bool = False) -> None:
    """Add an option that takes patterns, several at a time and again; they are in ``<option>_patterns``.

    Where it is not given, that is empty; or ``None`` if a file may have them.
    """
    dest = f"{option.replace('-', '_')}_patterns"
    add(parser, f"--{option} PATTERN...", help, dest=dest, default=None if file_may_have else [])


def add_verbosity(parser: Parser) -> None:
    """Add the options that choose how much goes to standard error."""
    add(parser, "-v --verbose", "more on standard error: the log of the client and of services")
    add(parser, "-q --quiet", "only errors on standard error")


def add_program_options(parser: Parser) -> None:
    """Add the options that every program has, ``sbus`` itself aside."""
    from .. import __version__

    add_verbosity(parser)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
