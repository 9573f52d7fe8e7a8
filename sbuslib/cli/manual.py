"""Documentation of the commands: man pages, ``sbus help``, and ``sbus completion`` for shells.

Shells ask ``sbus`` itself at each Tab, so they know every command and option that is installed.

Man pages are made from the text of ``--help``: ``python -m sbuslib.cli.manual FOLDER`` writes them, as ``setup.py``
does when the package is built; they are nowhere else. A block whose first line ends in a colon, with the others
indented, becomes a section with that heading.
"""

from __future__ import annotations

import sys
from argparse import REMAINDER, SUPPRESS, Namespace
from functools import partial

from .arguments import Formatter, Parser, add

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from collections.abc import Iterator

_BASH = """\
# Completion of sbus for bash: sbus itself says what may come next.
_sbus() {
    local IFS=$'\\n'
    COMPREPLY=($(sbus completion bash -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null))
    [ "${COMPREPLY[0]}" != "$IFS" ] || COMPREPLY=()
}
complete -o default -F _sbus sbus sbusd sbus-relay
"""


_ZSH = """\
#compdef sbus sbusd sbus-relay
# Completion of sbus for zsh: sbus itself says what may come next.
_sbus() {
    local -a found
    found=(${(f)"$(sbus completion zsh -- "${(@)words[1,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
if [ "$funcstack[1]" = _sbus ]; then _sbus "$@"; else compdef _sbus sbus sbusd sbus-relay; fi
"""


_FISH = """\
# Completion of sbus for fish: sbus itself says what may come next.
for program in sbus sbusd sbus-relay
    complete -c $program -a '(sbus completion fish -- (commandline -opc) (commandline -ct) 2>/dev/null)'
end
"""


_WIDTH = 76
"""Columns of a man page, which man(1) indents."""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""The completion script of each shell."""


def add_completion(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Print a script that lets a shell complete commands, options and values of sbus, sbusd and sbus-relay."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus completion bash > ~/.local/share/bash-completion/completions/sbus\n"
        "  sbus completion zsh > ~/.zfunc/_sbus        with ~/.zfunc in fpath\n"
        "  sbus completion fish > ~/.config/fish/completions/sbus.fish"
    )
    add(parser, "SHELL", "bash, zsh or fish", choices=tuple(SCRIPTS))
    parser.add_argument("words", nargs=REMAINDER, help=SUPPRESS)  # a command line, for which candidates are printed


def run_completion(arguments: Namespace) -> None:
    if not arguments.words:
        sys.stdout.write(SCRIPTS[arguments.shell])
        return
    words = arguments.words[1:] if arguments.words[0] == "--" else arguments.words
    print("\n".join(candidates(words)))


def candidates(words: list[str]) -> list[str]:
    """Return the completions of the last of these words. The first one is the program."""
    from . import daemon, main, relay

    program, *before = words[:-1] or ["sbus"]
    begun = words[-1]
    for name, module in (("sbusd", daemon), ("sbus-relay", relay)):
        if program.endswith(name):
            return _of_parser(module.build_parser(), before, begun)
    if before[:1] == ["help"]:
        before, begun = before[1:], begun if not begun.startswith("-") else "\0"

    # 1. The words of a command.
    names = [name.split() for name in main.COMMANDS]
    found = {name[len(before)] for name in names if name[: len(before)] == before and len(name) > len(before)}
    if not begun.startswith("-") and (chosen := sorted(word for word in found if word.startswith(begun))):
        return chosen

    # 2. Its options, and their values.
    for length in (2, 1):
        name = " ".join(before[:length])
        name = main.ALIASES[name].partition(" --")[0] if name in main.ALIASES else name
        if name in main.COMMANDS:
            return _of_parser(main.command_parser(name), before[length:], begun)
    return _of_parser(main.build_parser(), before, begun)


def _of_parser(parser: Parser, before: list[str], begun: str) -> list[str]:
    options = parser._option_string_actions
    last = options.get(before[-1]) if before else None
    if last is not None and last.choices is not None:
        return [word for word in map(str, last.choices) if word.startswith(begun)]
    if last is not None and last.nargs != 0:
        return []  # a value that only the user knows
    if begun.startswith("-"):
        shown = (name for action in parser._actions if action.help != SUPPRESS for name in action.option_strings)
        return sorted(name for name in shown if name.startswith(begun) and name not in before)
    choices = (action.choices for action in parser._get_positional_actions() if action.choices is not None)
    return [word for words in choices for word in map(str, words) if word.startswith(begun) and word not in before]


def add_help(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.epilog = "examples:\n  sbus help pub\n  sbus help journal record\n  sbus help                all commands"
    add(parser, "[COMMAND...]", "the command, of one word or two", dest="words")


def run_help(arguments: Namespace) -> None:
    from .main import main

    main([*arguments.words, "--help"])


def files() -> dict[str, str]:
    """Return the files that are installed below ``share``, by path: man pages, and completion scripts of shells."""
    return {f"man/man1/{name}": text for name, text in pages().items()} | {
        "bash-completion/completions/sbus": SCRIPTS["bash"],
        "zsh/site-functions/_sbus": SCRIPTS["zsh"],
        "fish/vendor_completions.d/sbus.fish": SCRIPTS["fish"],
    }


def pages() -> dict[str, str]:
    """Return every man page in roff, by the name of its file."""
    from . import daemon, main, relay

    commands = dict(main.every_parser())
    programs = [(main.build_parser(), "publish and subscribe on this machine's message bus")]
    programs += [(daemon.build_parser(), "serve a message bus")]
    programs += [(relay.build_parser(), "serve a message bus that is joined to another one")]
    groups = {
        f"sbus-{group}": [name for name, row in main.COMMANDS.items() if row[0] == group] for group in main.GROUPS
    }
    others = {*groups, *(parser.prog for parser, _ in programs)}

    # A page of each program, and one of each group of commands.
    found = {parser.prog: [*_head(parser.prog, title), *_body(parser, ".SH")] for parser, title in programs}
    for page, names in groups.items():
        found[page] = _head(page, f"the commands {', '.join(names)} of sbus")
        for parser in (commands[name] for name in names):
            found[page] += [f".SH {_roff(parser.prog).upper()}", *_body(parser, ".SS")]
    return {f"{name}.1": "\n".join([*lines, *_see(others - {name})]) + "\n" for name, lines in found.items()}


def _head(name: str, title: str) -> list[str]:
    return [f'.TH {name.upper()} 1 "" sbuslib "User Commands"', ".SH NAME", _roff(f"{name} - {title}")]


def _see(names: set[str]) -> list[str]:
    return [".SH SEE ALSO", ",\n".join(f"\\fB{_roff(name)}\\fR(1)" for name in sorted(names))]


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in escaped.split("\n"))


def _body(parser: Parser, heading: str) -> Iterator[str]:
    """Yield the output of ``--help``, line by line, under headings."""
    parser.formatter_class = partial(Formatter, width=_WIDTH)
    for block in parser.format_help().rstrip().split("\n\n"):
        first, _, rest = block.partition("\n")
        if first.startswith("usage: "):
            title, block = "synopsis", block.replace("usage: ", "", 1).replace("\n       ", "\n")
        elif first.endswith(":") and rest.startswith(" "):
            title, block = first[:-1], rest
        else:
            title = ""
        yield f"{heading} {_roff(title).upper()}" if title else ".PP"
        yield from (".nf", _roff(block), ".fi")


if __name__ == "__main__":
    from pathlib import Path

    for name, text in files().items():
        path = Path(sys.argv[1], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
