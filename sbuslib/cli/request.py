"""``sbus request``: ask who serves a key, and show the answer."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .arguments import ADDRESSES, Parser, add_address
from .values import seconds

if TYPE_CHECKING:
    from argparse import Namespace

    from ..blocking import Client
    from ..recipes.request import Answer

__all__ = ["add_arguments"]


def add_arguments(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Ask who serves KEY, and write the answer as it is; on a terminal, bytes that cannot be printed are escaped. "
        "Nobody else can read the answer. With --all, all who serve the key are asked, and each answer is a line."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus request math/square 12\n"
        "  sbus request --timeout 1m report/build --stdin < settings.json\n"
        "  sbus request --all --wait 2s service/version\n"
        "\n"
        "exit status:\n"
        "  0   answered\n"
        "  1   nobody serves the key, no answer came in time, or the server failed: a\n"
        "      line on standard error tells which\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("key", metavar="KEY", help="routing key")
    parser.add_argument("payload", metavar="PAYLOAD", nargs="?", help="the payload; left out, it is empty")
    parser.late = "payload"
    parser.add_argument("--stdin", action="store_true", help="all of standard input is the payload")
    parser.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="TIME", help="wait for the answer no longer (10)"
    )
    parser.add_argument("--all", action="store_true", help="show the answers of all who serve the key")
    parser.add_argument(
        "--wait", type=seconds, default=1.0, metavar="TIME", help="with --all, how long to wait for answers (1)"
    )
    parser.add_argument(
        "--not-secret",
        action="store_true",
        help="for the C daemon, which has no secret keys: others on the bus could read the answer",
    )
    parser.set_defaults(run=lambda arguments: _request(arguments, parser))


def _request(arguments: Namespace, parser: Parser) -> int:
    from . import messages

    if arguments.stdin and arguments.payload is not None:
        parser.error("give a PAYLOAD or --stdin")
    key = os.fsencode(arguments.key)
    secret = not arguments.not_secret
    failed = False

    def ask(client: Client) -> None:
        nonlocal failed
        payload = messages.read_stdin() if arguments.stdin else os.fsencode(arguments.payload or "")
        if not arguments.all:
            write(client.request(key, payload, timeout=arguments.timeout, secret=secret))
            return
        answers = client.request_many(key, payload, wait=arguments.wait, secret=secret)
        failed = not all([_show(answer) for answer in answers] or [_nobody()])

    return messages.run(ask, arguments.address) or int(failed)


def write(answer: bytes) -> None:
    """Write an answer to standard output: to a terminal such that it cannot steer it."""
    if sys.stdout.isatty():
        from ..wire.text import printable

        answer = b"".join(printable(line).encode() + b"\n" for line in answer.splitlines())
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


def _show(answer: Answer) -> bool:
    """Show one answer of several; whether it is none of a server that failed."""
    from ..wire.text import printable
    from .console import complain
    from .tables import plain

    if answer.error is not None:
        complain("sbus", plain(answer.error))
        return False
    print(printable(answer.payload), flush=True)
    return True


def _nobody() -> bool:
    from .console import complain

    complain("sbus", "nobody answered")
    return False
