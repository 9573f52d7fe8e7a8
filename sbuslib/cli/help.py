"""``sbus help``: the help of a command, as ``sbus COMMAND --help`` shows it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .console import EXIT_SUCCESS

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.epilog = "examples:\n  sbus help pub\n  sbus help lake ingest\n  sbus help                all commands"
    parser.add_argument("words", metavar="COMMAND", nargs="*", help="the command, and its verb if it has verbs")
    parser.set_defaults(run=_help)


def _help(arguments: Namespace) -> int:
    from .main import main

    main([*arguments.words, "--help"])
    return EXIT_SUCCESS
