"""Every command line in the pages has options and arguments that the programs take, so it can be copied."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest
from docs.pages import PAGES, text_of

from sbuslib.cli import daemon, main, relay

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
    assert taken > 80
