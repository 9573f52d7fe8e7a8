"""``sbus completion``: scripts that make shells complete, by asking ``sbus`` itself at each Tab; and ``sbus help``.

So they know every command and option that is installed, of ``sbus``, ``sbusd`` and ``sbus-relay``.
"""

from __future__ import annotations

import sys
from argparse import REMAINDER, SUPPRESS, Namespace

from .arguments import Parser

__all__ = ["SCRIPTS", "add_completion", "add_help", "candidates"]

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
    parser.add_argument("shell", metavar="SHELL", choices=tuple(SCRIPTS), help="bash, zsh, fish or tcsh")
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
        if name in main.ALIASES:
            name = main.ALIASES[name][0].partition(" --")[0]
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
    parser.add_argument("words", metavar="COMMAND", nargs="*", help="the command, of one word or two")
    parser.set_defaults(run=_help)


def _help(arguments: Namespace) -> None:
    from .main import main

    main([*arguments.words, "--help"])
