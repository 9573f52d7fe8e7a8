"""What tells of the commands: man pages, ``sbus help``, and ``sbus completion`` for shells.

Shells ask ``sbus`` itself at each Tab, so they know every command and option that is installed.

Man pages are made of what ``--help`` is made of: ``python -m sbuslib.cli.manual FOLDER`` writes them, as ``setup.py``
does when the package is built; they are nowhere else. In a description or an epilog, a block of lines of which the
first ends in a colon and the others are indented becomes a section with that heading; other indented lines stay as they
are, and everything else is filled.
"""

from __future__ import annotations

import sys
from argparse import REMAINDER, SUPPRESS, Namespace

from .arguments import VERBOSITY, Parser, add

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["SCRIPTS", "add_completion", "add_help", "candidates", "files", "pages"]


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


_TCSH = """\
# Completion of sbus for tcsh: sbus itself says what may come next.
complete sbus 'p@*@`sbus completion tcsh -- $COMMAND_LINE ""`@'
complete sbusd 'p@*@`sbus completion tcsh -- $COMMAND_LINE ""`@'
complete sbus-relay 'p@*@`sbus completion tcsh -- $COMMAND_LINE ""`@'
"""


SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH, "tcsh": _TCSH}


"""What each shell reads."""


def add_completion(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Print what makes a shell complete the commands, options and their values of sbus, sbusd and sbus-relay."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus completion bash > ~/.local/share/bash-completion/completions/sbus\n"
        "  sbus completion zsh > ~/.zfunc/_sbus        with ~/.zfunc in fpath\n"
        "  sbus completion fish > ~/.config/fish/completions/sbus.fish\n"
        "  sbus completion tcsh >> ~/.tcshrc"
    )
    add(parser, "SHELL", "bash, zsh, fish or tcsh", choices=tuple(SCRIPTS))
    parser.add_argument("words", nargs=REMAINDER, help=SUPPRESS)  # a command line, for which candidates are printed
    parser.set_defaults(run=_completion)


def _completion(arguments: Namespace) -> None:
    if not arguments.words:
        sys.stdout.write(SCRIPTS[arguments.shell])
        return
    words = arguments.words[1:] if arguments.words[0] == "--" else arguments.words
    print("\n".join(candidates(words)))


def candidates(words: list[str]) -> list[str]:
    """What may stand in place of the last of these words, the first of which is a program."""
    from . import daemon, main, relay

    program, *before = words[:-1] or ["sbus"]
    begun = words[-1]
    if program.endswith("sbusd"):
        return _of_parser(daemon.build_parser(), before, begun)
    if program.endswith("sbus-relay"):
        return _of_parser(relay.build_parser(), before, begun)
    if before[:1] == ["help"]:
        before, begun = before[1:], begun if not begun.startswith("-") else "\0"

    # 1. The words of a command.
    names = {name: name.split() for name in main.COMMANDS}
    place = len(before)
    found = {name[place] for name in names.values() if name[:place] == before and len(name) > place}
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
    parser.set_defaults(run=_help)


def _help(arguments: Namespace) -> None:
    from .main import main

    main([*arguments.words, "--help"])


def files() -> dict[str, str]:
    """What is installed below ``share``: the man pages, and what makes shells complete, by path."""
    return {f"man/man1/{name}": text for name, text in pages().items()} | {
        "bash-completion/completions/sbus": SCRIPTS["bash"],
        "zsh/site-functions/_sbus": SCRIPTS["zsh"],
        "fish/vendor_completions.d/sbus.fish": SCRIPTS["fish"],
    }


def pages() -> dict[str, str]:
    """Every man page in roff, by the name of its file."""
    from . import daemon, main, relay

    sbus = main.build_parser()
    commands = dict(main.every_parser())
    programs = [(sbus, "publish and subscribe on this machine's message bus")]
    programs += [(daemon.build_parser(), "serve a message bus")]
    programs += [(relay.build_parser(), "serve a message bus that is joined to another one")]
    groups = {f"sbus-{group}": names for group, (_, names) in main.GROUPS.items()}
    others = {*groups, *(parser.prog for parser, _ in programs)}
    found = {}
    for parser, title in programs:
        body = [*_body(parser, ".SH", parser is not sbus), *_see(others - {parser.prog})]
        found[parser.prog] = [*_head(parser.prog, title), ".SH SYNOPSIS", *_synopsis(parser), *body]
    for page, names in groups.items():
        lines = _head(page, f"the commands {', '.join(names)} of sbus")
        for parser in (commands[name] for name in names):
            lines += [f".SH {_roff(parser.prog).upper()}", *_synopsis(parser), ".PP", *_body(parser, ".SS", True)]
        found[page] = lines + _see(others - {page})
    return {f"{name}.1": "\n".join(lines) + "\n" for name, lines in found.items()}


def _head(name: str, title: str) -> list[str]:
    return [f'.TH {name.upper()} 1 "" sbuslib "User Commands"', ".SH NAME", _roff(f"{name} - {title}")]


def _see(names: set[str]) -> list[str]:
    return [".SH SEE ALSO", ",\n".join(f"\\fB{_roff(name)}\\fR(1)" for name in sorted(names))]


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in escaped.split("\n"))


def _text(text: str, heading: str) -> Iterator[str]:
    """Paragraphs and blocks of a description or an epilog."""
    for block in text.split("\n\n"):
        first, _, rest = block.partition("\n")
        if first.endswith(":") and rest.startswith(" "):
            yield f"{heading} {_roff(first[:-1]).upper()}"
            block = rest
        else:
            yield ".PP"
        lines = block.split("\n")
        raw = [line for line in lines if line.startswith(" ")]
        if not raw:
            yield _roff(block)
            continue
        lead = lines[: len(lines) - len(raw)]  # such as: TOPOLOGY is a file in TOML:
        yield from [_roff("\n".join(lead))] if lead else []
        yield from (".nf", _roff("\n".join(raw)), ".fi")


def _body(parser: Parser, heading: str, with_options: bool) -> Iterator[str]:
    if heading == ".SH":
        yield ".SH DESCRIPTION"
    yield from _text(parser.description or "", heading)
    told = [action for action in _arguments(parser) if action.help]
    if told and with_options:
        yield f"{heading} OPTIONS"
        for action in told:
            help = action.help % {**vars(action), "prog": parser.prog}
            yield from (".TP", _tag(action), _roff(f"{help[0].upper()}{help[1:]}."))
    if parser.epilog:
        yield from _text(parser.epilog, heading)


def _arguments(parser: Parser) -> list[Any]:
    """Its arguments but for those that every command has, which ``sbus(1)`` tells of."""
    common = {"show this help message and exit", *(help for _, _, help in VERBOSITY)}
    return [one for one in parser._actions if one.help not in common and one.help != SUPPRESS]


def _values(action: Any) -> str:
    """The values of an option or argument, as a reader writes them."""
    if action.nargs == 0:
        return ""
    names = action.metavar if action.metavar is not None else action.dest.upper()
    if action.choices is not None and action.metavar is None:
        names = "{" + ",".join(action.choices) + "}"
    words = list(names) if isinstance(names, tuple) else [names]
    if action.nargs in ("+", "*"):
        words.append("...")
    text = " ".join(f"\\fI{_roff(word)}\\fR" if word != "..." else word for word in words)
    return f"[{text}]" if action.nargs in ("?", "*") else text


def _tag(action: Any) -> str:
    values = _values(action)
    options = [f"\\fB{_roff(option)}\\fR {values}".rstrip() for option in action.option_strings]
    return ", ".join(options) or values.strip("[]")


def _synopsis(parser: Parser) -> Iterator[str]:
    if parser.usage is not None:
        yield _roff(parser.usage)
        return
    one_of = {id(action): group for group in parser._mutually_exclusive_groups for action in group._group_actions}
    words: list[str] = []
    for action in _arguments(parser):
        group = one_of.get(id(action))
        together = group._group_actions if group is not None else [action]
        if action is not together[0]:
            continue
        text = " | ".join(
            f"\\fB{_roff(one.option_strings[0])}\\fR {_values(one)}".rstrip() if one.option_strings else _values(one)
            for one in together
        )
        needed = action.required or not action.option_strings or (group is not None and group.required)
        words.append(text if needed else f"[{text}]")
    # Arguments come after options, though help lists them first.
    words.sort(key=lambda word: not word.lstrip("[").startswith("\\fB"))
    yield " ".join([f"\\fB{_roff(parser.prog)}\\fR", *words])


if __name__ == "__main__":
    from pathlib import Path

    for name, text in files().items():
        path = Path(sys.argv[1], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
