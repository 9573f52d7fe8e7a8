"""The man pages, made of what ``--help`` is made of: ``python -m sbuslib.cli.manual FOLDER`` writes them.

``setup.py`` writes them so when the package is built; they are nowhere else. In a description or an epilog, a block of
lines of which the first ends in a colon and the others are indented becomes a section with that heading; other indented
lines stay as they are, and everything else is filled.
"""

from __future__ import annotations

import sys
from argparse import SUPPRESS
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .arguments import VERBOSITY, Parser

__all__ = ["files", "pages"]


def files() -> dict[str, str]:
    """What is installed below ``share``: the man pages, and what makes shells complete, by path."""
    from .completion import SCRIPTS

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
    for name, text in files().items():
        path = Path(sys.argv[1], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
