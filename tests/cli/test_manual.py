"""The man pages tell of exactly the options that the programs take, and groff has no complaint."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from support import PATIENCE, ROOT

from sbuslib.cli import daemon, main, relay

PAGES = {"sbus": main.build_parser, "sbusd": daemon.build_parser, "sbus-relay": relay.build_parser}


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from options(command)


def page(name: str) -> str:
    return (ROOT / "man" / f"{name}.1").read_text()


@pytest.mark.parametrize("name", PAGES)
def test_the_page_has_every_option_and_no_other(name: str) -> None:
    section = page(name).split(".SH OPTIONS\n")[1].split(".SH ")[0].replace("\\-", "-")
    tags = re.findall(r"^\.T[PQ]\n(.*)$", section, re.MULTILINE)
    documented = re.findall(r"(?<![\w-])--?[\w-]+", "\n".join(tags))
    assert sorted(documented) == sorted(set(options(PAGES[name]())))


@pytest.mark.parametrize("name", PAGES)
def test_the_page_has_the_defaults(name: str) -> None:
    for default in ("/run/sbus.socket", *([daemon.PID_FILE] if name == "sbusd" else [])):
        assert default in page(name)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.skipif(not shutil.which("groff"), reason="needs groff: apt-get install groff")
def test_the_page_is_well_formed(name: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", ROOT / "man" / f"{name}.1"],
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stderr == b""
