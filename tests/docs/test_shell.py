"""The page on the shell, the options of all commands, and all command lines of the pages, against the parsers."""

from __future__ import annotations

import re
import shlex
from argparse import SUPPRESS
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from docs.pages import DOCS, PAGES, named, tables, text_of

from sbuslib.cli import daemon, main, relay
from sbuslib.cli.arguments import Parser

# -- The page on the shell against the parsers: each option means one thing wherever it is

PAGE = DOCS / "shell.md"

Option = tuple[tuple[str, ...], str]
"""The names of an option, and what its value is called."""

OF_THE_C_DAEMON = {"-p"}
"""Letters that mean something else in ``sbusd``."""


@cache
def parsers() -> dict[str, Parser]:
    programs = {"sbusd": daemon.build_parser(), "sbus-relay": relay.build_parser(), "sbus": main.build_parser()}
    return dict(main.every_parser()) | programs


def actions() -> Iterator[tuple[str, Any]]:
    for name, parser in parsers().items():
        for action in parser._actions:
            if action.option_strings and action.help != SUPPRESS:
                yield name, action


def value_of(action: Any) -> str:
    value = action.metavar
    if value is None and action.choices is not None:
        value = f"{{{','.join(action.choices)}}}"
    return " ".join(value) if isinstance(value, tuple) else value or ""


def test_every_command_is_in_its_family() -> None:
    (rows,) = [rows[1:] for rows in tables(PAGE) if rows[0] == ["family", "commands"]]
    told = {family: named([commands]) for family, commands in rows}
    families = {family: [name for name, row in main.COMMANDS.items() if row[0] == family] for family in main.GROUPS}
    assert told == families


def test_a_name_of_an_option_is_of_one_option() -> None:
    options: dict[str, set[Option]] = defaultdict(set)
    for _, action in actions():
        for name in action.option_strings:
            options[name].add((tuple(action.option_strings), value_of(action)))
    assert {name for name, several in options.items() if len(several) > 1} == OF_THE_C_DAEMON


def test_a_value_is_read_in_one_way() -> None:
    """Spans by one function, sizes by one, and so on."""
    read = {(value_of(a), a.type) for _, a in actions() if value_of(a) in ("TIME", "WHEN", "SIZE", "N", "RATE", "BYTE")}
    assert sorted(value for value, _ in read) == ["BYTE", "N", "SIZE", "TIME", "WHEN"]


@pytest.mark.parametrize("name", parsers())
def test_every_command_has_what_all_have(name: str) -> None:
    if name != "sbus":
        assert {"-h", "-v", "-q"} <= parsers()[name]._option_string_actions.keys()


# -- Every command line in the pages has options and arguments that the programs take, so it can be copied

LINE = re.compile(r"^(?:    |\$ )(?:sudo )?((?:sbus|sbusd|sbus-relay) .*)$", re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """The words of each command of this package, without what the shell makes of them."""
    found = []
    for line in LINE.findall(text.replace("\\\n", "")):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&>")
        lexer.commenters = "#"
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, "|"]:
            if not set(word) <= set("|&>"):
                words.append(word)
            elif words:
                found.append(words)
                words = []
    return [words for words in found if words[0] in ("sbus", "sbusd", "sbus-relay")]


def test_command_lines_of_the_pages_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    parse: dict[str, Callable[[list[str]], object]] = {
        "sbus": main.parse,
        "sbusd": daemon.build_parser().parse_args,
        "sbus-relay": relay.build_parser().parse_args,
    }
    taken, refused = 0, []
    for page in PAGES:
        for words in commands(text_of(page)):
            try:
                parse[words[0]](words[1:])
                taken += 1
            except SystemExit as end:
                if end.code:
                    refused.append(f"{page.name}: {shlex.join(words)}: {capsys.readouterr().err.splitlines()[-1]}")
    assert not refused, "\n".join(refused)
    assert taken > 60
