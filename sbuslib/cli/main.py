"""``sbus``: the command line of the bus.

A command ``NAME`` is the module ``cli/NAME.py``. Its ``add_arguments`` completes a parser, sets the description and the
end of its help, and names with ``set_defaults(run=...)`` the function that runs it. Only the module of the command that
is run is loaded: a shell script that publishes must not pay for all the others.
"""

from __future__ import annotations

import io
import sys
from argparse import SUPPRESS
from importlib import import_module

from .arguments import ADDRESSES, Parser, add_verbosity, nearest
from .console import complain, set_verbosity

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

__all__ = ["GROUPS", "build_parser", "main"]

GROUPS: dict[str, tuple[str, dict[str, str]]] = {
    "messages": (
        "messages",
        {
            "hub": "serve a bus in the foreground until Ctrl-C",
            "pub": "publish messages",
            "sub": "show the messages whose keys match a pattern",
            "retain": "keep the newest message of each key, for those that come later",
            "get": "show the newest message of a key",
            "send": "send files of any size",
            "receive": "receive files that are sent",
            "request": "ask who serves a key, and show the answer",
            "serve": "answer questions by running a command for each",
            "whoami": "show this process's credentials as the hub sees them",
        },
    ),
    "state": (
        "what goes on",
        {
            "stat": "what a hub does, and what was lost and why",
            "clients": "every client of a hub",
            "tree": "the hubs from one of them downwards, and what passes between them",
            "top": "what a hub and its clients, users and links do, live",
            "hz": "how often messages come, by key",
            "doctor": "what keeps a client from its hub, or a hub from its work, and what to do",
            "ping": "how long a hub, or a tree of hubs, takes to answer",
        },
    ),
    "recordings": (
        "recordings",
        {
            "record": "record what a bus carries into a journal",
            "seal": "rewrite the ended segments of a journal as Parquet files",
            "replay": "publish again what was recorded",
            "journal": "what a journal holds, and whether it is whole",
            "consume": "messages of a journal from where you stopped, as they come",
            "lake": "keep journals as Parquet files, for reports",
            "report": "pages and tables about what was recorded: traffic, subscriptions, losses",
            "watch": "rates of a bus or of what is being recorded, and alerts",
        },
    ),
    "patterns": (
        "patterns of use",
        {
            "queue": "share jobs out among workers, and keep them until they are done",
        },
    ),
    "networks": (
        "other machines",
        {
            "peer": "pass messages between programs and machines over TCP, as a peer of Simplest pubsub",
            "gateway": "join this machine's bus to those of other machines over TCP",
            "bridge": "join this machine's bus to a NATS, MQTT or Redis server",
        },
    ),
    "service": (
        "this machine",
        {
            "reload": "have a hub read its configuration file again",
            "explain": "what a configuration file allows a user, and by which rule",
            "web": "show the bus on a live page, for a browser on this machine",
            "bench": "measure what a hub costs on this machine",
            "units": "print or install systemd units",
            "completion": "print what makes a shell complete the commands and options of sbus",
            "help": "show the help of a command",
        },
    ),
}
"""The groups of commands, each with a title and the commands in it. The man page of a group is ``sbus-GROUP(1)``."""


_COMMON = """\
Each command has -h for its help, -v to tell more on standard error and -q to tell errors alone. Wherever there is \
-a, --address and --bus are the same. The commands are told in the man pages of their groups.

environment:
  SBUS_ADDRESS        where the hub listens
  XDG_RUNTIME_DIR     the folder in which a user's own hub is looked for
  SBUS_SPARK_LOG      what commands that run Spark show of its log: warn, info
  JAVA_HOME           the Java that Spark runs in; else the one in the path

exit status:
  0   done
  1   no hub, or it closed the connection, or something else went wrong: a
      line on standard error tells what, after a traceback if nobody foresaw it
  2   the arguments are wrong

Ctrl-C and a closed pipe end pub, sub and whoami by the signal, which a shell shows as 130 and 141; hub ends with \
status 0 on Ctrl-C."""


def build_parser(only: str | None = None) -> ArgumentParser:
    """The arguments of ``sbus``: of all commands, or of ``only`` one, for which only its module is loaded."""
    from .. import __version__

    parser = Parser(
        prog="sbus",
        usage="sbus [-h] [--version] COMMAND ...",
        description="Publish and subscribe on this machine's message bus.",
        epilog="\n\n".join(
            [
                *(_listed(title, commands) for title, commands in GROUPS.values()),
                "examples:\n"
                "  sbus hub -a /tmp/bus &                      a bus\n"
                "  export SBUS_ADDRESS=/tmp/bus\n"
                "  sbus sub 'room/*/temp' &                    show what is published\n"
                "  sbus pub room/1/temp 21.5                   publish",
                ADDRESSES,
                _COMMON,
            ]
        ),
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    # They are listed by group above; completion leaves out what is suppressed.
    commands = parser.add_subparsers(metavar="COMMAND", prog="sbus", help=None if only is None else SUPPRESS)
    for _, names in GROUPS.values():
        for name, help in names.items():
            if name == only or only is None:
                command = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
                import_module(f"{__package__}.{name}").add_arguments(command)
                add_verbosity(command)
    return parser


def _listed(title: str, commands: dict[str, str]) -> str:
    return "\n".join([f"{title}:", *(f"  {name:<12}{help}" for name, help in commands.items())])


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``sbus``; its exit status. An unforeseen error ends any command with a traceback and its name."""
    words = sys.argv[1:] if argv is None else list(argv)
    name = words[0] if words and not words[0].startswith("-") else ""
    parser = build_parser(name)
    known = [name for _, names in GROUPS.values() for name in names]
    if not name and (command := next((word for word in words if word in known), None)):
        parser.error(f"options stand after the command: sbus {command} {words[0]} ...")
    if name and name not in known:
        parser.error(f"there is no command {name}{nearest(name, known)}")
    arguments = parser.parse_args(words)
    if not name:
        parser.error("a command is missing")
    set_verbosity(verbose=getattr(arguments, "verbose", False), quiet=getattr(arguments, "quiet", False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
    run: Callable[[Namespace], int] = arguments.run
    try:
        return run(arguments)
    except Exception as error:
        import traceback

        traceback.print_exc()
        return complain("sbus", f"{name} ended by an unforeseen error: {type(error).__name__}: {error}")
