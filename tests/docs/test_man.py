"""The man pages: what the parsers give, and all of them installed."""

from __future__ import annotations

import configparser

from support import ROOT

from sbuslib.cli import manual

MAN = ROOT / "man"


def test_the_pages_are_what_the_parsers_give() -> None:
    """Else: ``python -m sbuslib.cli.manual man`` writes them anew."""
    assert {path.name: path.read_text("utf-8") for path in MAN.iterdir()} == manual.pages()


def test_every_page_is_installed() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    installed = settings["options.data_files"]["share/man/man1"].split()
    assert sorted(installed) == sorted(f"man/{name}" for name in manual.pages())
