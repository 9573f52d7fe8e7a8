"""``sbus``: the command line of the bus.

A command is one word, or two: ``pub``, ``journal record``. In the module that :data:`COMMANDS` names, ``add_pub`` and
``add_journal_record`` complete its parser, and ``run_pub`` and ``run_journal_record`` run it. Only the module of the
command that is run is loaded: a shell script that publishes must not pay for all the others. ``docs/shell.md`` has the
families and the table of options.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from .arguments import Parser

GROUPS = {
    "messages": "messages",
    "bus": "a bus, and what goes on there",
    "recordings": "recordings",
    "services": "services",
    "networks": "other machines",
    "tools": "tools",
}
"""The groups of commands with their titles. The man page of a group is ``sbus-GROUP(1)``."""

COMMANDS = {
    "pub": ("messages", "pub", "publish messages"),
    "sub": ("messages", "sub", "show the messages whose keys match a pattern"),
    "request": ("messages", "services", "ask who serves a key, and show the reply"),
    "serve": ("messages", "services", "reply to requests by running a command for each"),
    "send": ("messages", "files", "send files of any size"),
    "receive": ("messages", "files", "receive files that are sent"),
    "get": ("messages", "sub", "show the newest message of a key"),
    "hub": ("bus", "hub", "serve a bus in the foreground until Ctrl-C"),
    "hub reload": ("bus", "hub", "have a hub read its configuration file again"),
    "hub explain": ("bus", "explain", "what a configuration file allows a user, and by which rule"),
    "hub units": ("bus", "hub", "print or install systemd units"),
    "config check": ("bus", "rehearse", "check a configuration file, and try its rules on what was recorded"),
    "stat": ("bus", "stat", "what a hub does, and what was lost and why; its clients, or its tree"),
    "top": ("bus", "top", "what a hub and its clients, users and links do, live"),
    "why": ("bus", "why", "whether a message would arrive, and why not, without sending it"),
    "present": ("bus", "present", "who is there, and who comes and goes"),
    "events": ("bus", "events", "what happens at a hub, as it happens: losses, links, clients that are disconnected"),
    "web": ("bus", "top", "show the bus on a live page, for a browser on this machine"),
    "watch": ("bus", "report", "rates of a bus, and alerts"),
    "hz": ("bus", "health", "how often messages come, by key"),
    "ping": ("bus", "health", "how long a hub, or a tree of hubs, takes to answer"),
    "doctor": ("bus", "health", "what keeps a client from its hub, or a hub from its work, and what to do"),
    "whoami": ("bus", "health", "show this process's credentials as the hub sees them"),
    "journal record": ("recordings", "record", "record what a bus carries into a journal"),
    "journal replay": ("recordings", "record", "publish again what was recorded"),
    "journal info": ("recordings", "journal", "what journals hold, from when to when, and their files"),
    "journal cat": ("recordings", "journal", "show the recorded messages, as sbus sub shows those of a bus"),
    "journal verify": ("recordings", "journal", "read all of journals, and list damaged, missing and lost messages"),
    "journal query": ("recordings", "journal", "answer a question in SQL about what was recorded, with DuckDB"),
    "journal consume": ("recordings", "journal", "messages of a journal from where you stopped, as they come"),
    "journal seal": ("recordings", "record", "rewrite the ended segments of a journal as Parquet files"),
    "journal compact": ("recordings", "record", "join the small files of a lake"),
    "journal ingest": ("recordings", "record", "take what journals hold into a lake, each record once"),
    "report traffic": ("recordings", "report", "volume by time, key, sender, user and size, and what was lost"),
    "report night": ("recordings", "report", "what happened, in order: outages, hubs, links, losses, floods, refusals"),
    "report subscriptions": ("recordings", "report", "what each pattern would have received, and which match nothing"),
    "broker": ("services", "broker", "serve a bus with queues and last values, all that a host needs at once"),
    "retain": ("services", "services", "keep the newest message of each key, for those that come later"),
    "queue": ("services", "services", "share jobs out among workers, and keep them until they are done"),
    "peer": ("networks", "networks", "pass messages between programs and machines over TCP"),
    "gateway": ("networks", "networks", "join this machine's bus to those of other machines over TCP"),
    "bridge": ("networks", "bridge", "join this machine's bus to a NATS, MQTT or Redis server"),
    "bench": ("tools", "health", "measure what a hub costs on this machine"),
    "completion": ("tools", "manual", "print what makes a shell complete the commands and options of sbus"),
    "help": ("tools", "manual", "show the help of a command"),
}
"""Each command with its group, its module, and its summary."""

ALIASES = {
    "clients": "stat --clients",
    "tree": "stat --tree",
    "reload": "hub reload",
    "explain": "hub explain",
    "units": "hub units",
    "record": "journal record",
    "replay": "journal replay",
    "seal": "journal seal",
    "consume": "journal consume",
    "lake ingest": "journal ingest",
    "journal list": "journal info",
    "report completeness": "journal verify",
}
"""Names that commands had, and what each stands for."""

_MEANT = {"publish": "pub", "subscribe": "sub", "listen": "sub", "monitor": "top", "status": "stat", "call": "request"}
"""Words for a command that other programs have."""

_FLAGS = ("-v", "--verbose", "-q", "--quiet")

_COMMON = """\
Each command has -h for its help, -v for more on standard error and -q for errors alone. Wherever there is \
-a, --address and --bus are the same. The man page of a group describes its commands.

environment:
  SBUS_ADDRESS        where the hub listens
  XDG_RUNTIME_DIR     the folder in which a user's own hub is looked for, if the user owns it

exit status:
  0   done; or a signal has stopped a command that runs until then, such as hub
  1   no hub, or it closed the connection, or something else went wrong, such as
      a file that cannot be read: a line on standard error says which
  2   the arguments are wrong, or a file or line that they name

Ctrl-C and a closed pipe end commands that only show or publish by the signal, which a shell shows as 130 and 141."""


def build_parser() -> Parser:
    """Build the parser of ``sbus`` itself, whose help lists all commands."""
    from .. import __version__
    from .arguments import ADDRESSES, Parser

    parser = Parser(
        prog="sbus",
        usage="sbus [-h] [--version] COMMAND ...",
        description="Publish and subscribe on this machine's message bus.",
        epilog="\n\n".join(
            [
                *(_listed(group, title) for group, title in GROUPS.items()),
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
    return parser


def command_parser(name: str) -> Parser:
    """Build the parser of one command. Loads its module."""
    from .arguments import ADDRESSES, Parser, add_verbosity

    _, module, help = COMMANDS[name]
    parser = Parser(prog=f"sbus {name}", description=f"{help[0].upper()}{help[1:]}.")
    functions, of = import_module(f"{__package__}.{module}"), name.replace(" ", "_")
    getattr(functions, f"add_{of}")(parser)
    parser.set_defaults(run=getattr(functions, f"run_{of}"), parser=parser)
    add_verbosity(parser)
    if "--address" in parser._option_string_actions:
        parser.epilog = f"{parser.epilog}\n\n{ADDRESSES}"
    return parser


def parse(words: Sequence[str]) -> Namespace:
    """Parse a command line; ``command`` is its name. Ends the process where it is wrong."""
    from argparse import Namespace

    flags, rest = _flags(words)
    if not rest or rest[0].startswith("-"):
        _refuse(words)
    name, rest = _command(rest, flags)
    if name not in COMMANDS:
        _refuse_command(name, rest)
    return command_parser(name).parse_args(rest, Namespace(command=name))


def _flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options of all commands that stand before the next word, and what follows them."""
    many = next((place for place, word in enumerate(words) if word not in _FLAGS), len(words))
    return list(words[:many]), list(words[many:])


def _command(words: list[str], flags: list[str]) -> tuple[str, list[str]]:
    """Split a command line into the name of the command, and its other words."""
    first, (more, rest) = words[0], _flags(words[1:])
    pair = f"{first} {rest[0]}" if rest else first
    name, rest = (pair, rest[1:]) if pair in COMMANDS or pair in ALIASES else (first, rest)
    name, dashes, preset = ALIASES.get(name, name).partition(" --")
    return name, [*flags, *more, *([f"--{preset}"] if dashes else []), *rest]


def _refuse(words: Sequence[str]) -> None:
    """Act on a command line without a command: it asks for help or the version, or is wrong."""
    parser = build_parser()
    known = {*COMMANDS, *ALIASES}
    if (command := next((word for word in words if word in known), None)) and words[0] not in ("-h", "--help"):
        parser.error(f"options stand after the command: sbus {command} {words[0]} ...")
    parser.parse_args(words)
    parser.error("a command is missing")


def _refuse_command(name: str, rest: list[str]) -> None:
    """Say what stands in place of a command that there is not; the verbs of a family, where only a verb is missing."""
    from .arguments import Parser, add_verbosity, nearest

    verbs = {word.split()[1]: row[2] for word, row in COMMANDS.items() if word.startswith(f"{name} ")}
    if verbs:
        listed = "\n".join(["verbs:", *(f"  {verb:<10}{help}" for verb, help in verbs.items())])
        parser = Parser(prog=f"sbus {name}", usage=f"sbus {name} VERB ...", epilog=listed)
        add_verbosity(parser)
        verb = next((word for word in rest if not word.startswith("-")), None)
        if verb is not None:
            parser.error(f"there is no verb {verb}{nearest(verb, [*verbs])}")
        parser.parse_args([word for word in rest if word in ("-h", "--help")])
        parser.error("a verb is missing")

    # A word that others use for a command, or one that looks like it.
    meant = _MEANT.get(name)
    known = {**{command: command for command in COMMANDS}, **ALIASES}
    pair = " ".join([name, *(word for word in rest if word not in _FLAGS)][:2])
    hint = f": did you mean {meant}?" if meant else nearest(pair, known) or nearest(name, known)
    build_parser().error(f"there is no command {name}{hint}")


def _listed(group: str, title: str) -> str:
    commands = {name: row[2] for name, row in COMMANDS.items() if row[0] == group}
    width = max(16, 2 + max(map(len, commands)))
    return "\n".join([f"{title}:", *(f"  {name:<{width}}{help}" for name, help in commands.items())])


def every_parser() -> Iterator[tuple[str, Parser]]:
    """Each command with its parser. Loads all of them."""
    for name in COMMANDS:
        yield name, command_parser(name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``sbus``; its exit status."""
    words = sys.argv[1:] if argv is None else argv
    failure: BaseException | None = None
    if words[:1] == ["pub"]:
        from .pub import publish_plainly

        try:
            if publish_plainly(words[1:]):
                return 0
        except (OSError, KeyboardInterrupt) as error:
            failure = error

    # Any other command. An error from above is printed as that of any command.
    from .console import finish, hold_signals

    hold_signals()
    return finish("sbus", parse(words), failure)
