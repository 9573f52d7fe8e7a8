"""``sbus``: the command line of the bus."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from typing import Any

from .console import complain, explain
from .values import count

__all__ = ["build_parser", "main"]

_ADDRESSES = (
    "Without -a, the address is SBUS_ADDRESS from the environment, else $XDG_RUNTIME_DIR/sbus/bus, else\n"
    "/run/sbus.socket. See sbus(1)."
)


def build_parser() -> ArgumentParser:
    """The arguments of ``sbus``."""
    from .. import __version__
    from . import bench, gateway, lake, peer, plan, record, replay, report, units, watch

    parser = ArgumentParser(
        prog="sbus",
        description="Publish and subscribe on this machine's message bus.",
        epilog="examples:\n"
        "  sbus hub -a /tmp/bus &                      a bus\n"
        "  export SBUS_ADDRESS=/tmp/bus\n"
        "  sbus sub 'room/*/temp' &                    show what is published\n"
        "  sbus pub room/1/temp 21.5                   publish\n"
        "\n" + _ADDRESSES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND", title="commands")
    for add_command in (_add_hub, _add_pub, _add_sub):
        add_command(commands)
    for module in (peer, gateway, record, replay, lake, report, plan, watch, bench, units):
        module.add_parser(commands)
    _add_whoami(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``sbus``; its exit status. An unforeseen error ends any command with a traceback and its name."""
    arguments = build_parser().parse_args(argv)
    run: Callable[[Namespace], int] = arguments.run
    try:
        return run(arguments)
    except Exception as error:
        import traceback

        traceback.print_exc()
        return complain("sbus", f"{arguments.command} ended by an unforeseen error: {type(error).__name__}: {error}")


def _add(commands: Any, name: str, run: Callable[[Namespace], int], help: str, examples: str) -> ArgumentParser:
    """Add one of the commands of this module, which all take the address of a hub."""
    command: ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=f"examples:\n{examples}\n\n{_ADDRESSES}",
        formatter_class=RawDescriptionHelpFormatter,
    )
    command.add_argument("-a", "--address", help="where the hub listens")
    command.set_defaults(run=run)
    return command


def _add_hub(commands: Any) -> None:
    from .daemon import add_hub_arguments

    command = _add(
        commands,
        "hub",
        _hub,
        "serve a bus in the foreground until Ctrl-C",
        "  sbus hub -a /tmp/bus                        for this user and root\n"
        "  sbus hub -a /tmp/bus -o -u alice -u 1001    for these users\n"
        "  sbus hub -a /dev/unix/abstract              at a random address, which is printed",
    )
    add_hub_arguments(command)


def _hub(arguments: Namespace) -> int:
    from .daemon import run_hub

    if arguments.address is None:
        from ..wire.addresses import default_addresses

        arguments.address = default_addresses()[0]
        if not os.environ.get("SBUS_ADDRESS") and os.environ.get("XDG_RUNTIME_DIR"):
            # Clients look there first, and no other program makes the folder.
            try:
                os.makedirs(os.path.dirname(arguments.address), mode=0o700, exist_ok=True)
            except OSError as error:
                return complain("sbus", explain(error))

    def announce(address: str) -> None:
        complain("sbus", f"listening at {address} (Ctrl-C ends it)")

    return run_hub("sbus", arguments, on_ready=announce)


def _add_pub(commands: Any) -> None:
    command = _add(
        commands,
        "pub",
        _publish,
        "publish one message, or each line of standard input",
        "  sbus pub room/1/temp 21.5\n"
        "  sbus pub -- room/1/note '-5 below'          after --, nothing is taken for an option\n"
        "  tail -f app.log | sbus pub log/app -        a message for each line",
    )
    command.add_argument("key", metavar="KEY", help="routing key")
    command.add_argument("payload", metavar="PAYLOAD", help="payload; -: each line of standard input, without its end")


def _publish(arguments: Namespace) -> int:
    from . import messages

    return messages.run(messages.publish, arguments)


def _add_sub(commands: Any) -> None:
    command = _add(
        commands,
        "sub",
        _subscribe,
        "show the messages whose keys match a pattern",
        "  sbus sub 'room/*/temp'                      * stands for all up to the next /\n"
        "  sbus sub room/ log/                         everything below room/ and log/\n"
        "  sbus sub ''                                 everything\n"
        "  sbus sub -n 1 --raw config > config.new     the next payload, byte for byte\n"
        "  sbus sub --json '' | jq .key",
    )
    command.add_argument("patterns", metavar="PATTERN", nargs="+", help="pattern of routing keys")
    command.add_argument("-n", "--count", type=count, metavar="N", help="exit after N messages")
    command.add_argument("-s", "--senders", action="store_true", help="show who sent each message, first")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a JSON object a line, in place of key, tab, payload")
    form.add_argument("--raw", action="store_true", help="exactly the payloads, with nothing between them")


def _subscribe(arguments: Namespace) -> int:
    from . import messages

    return messages.run(messages.subscribe, arguments)


def _add_whoami(commands: Any) -> None:
    _add(commands, "whoami", _whoami, "show this process's credentials as the hub sees them", "  sbus whoami")


def _whoami(arguments: Namespace) -> int:
    from . import messages

    return messages.run(messages.whoami, arguments)
