"""``sbus completion``: a script that makes a shell complete commands and options. shtab writes it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .console import EXIT_SUCCESS, complain

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Print what makes a shell complete the commands and options of sbus. This needs the extra cli: "
        "pip install 'sbuslib[cli]'."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus completion bash > ~/.local/share/bash-completion/completions/sbus\n"
        "  sbus completion zsh > ~/.zfunc/_sbus        with ~/.zfunc in fpath"
    )
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "tcsh"), help="bash, zsh or tcsh")
    parser.set_defaults(run=_completion)


def _completion(arguments: Namespace) -> int:
    try:
        import shtab
    except ImportError:
        return complain("sbus", "shtab is missing: pip install 'sbuslib[cli]'")
    from .main import build_parser

    print(shtab.complete(build_parser(), shell=arguments.shell))
    return EXIT_SUCCESS
