"""``sbus send``: files of any size, in parts, to all that receive them."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from .arguments import ADDRESSES, add_address
from .console import EXIT_SUCCESS, complain, tell
from .values import count, seconds

if TYPE_CHECKING:
    from ..blocking import Client

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Send files of any size under a routing key, one after another, to each sbus receive (or receive_large of a "
        "program) whose pattern matches the key. Return once they have them, checked."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus receive 'files/*' --into ~/incoming &\n"
        "  sbus send files/reports report.pdf\n"
        "  sbus send -n 3 images/camera-1 *.png        begin when three receive\n"
        "\n"
        "exit status:\n"
        "  0   every receiver has every file\n"
        "  1   a receiver gave up, or nobody came in time\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("key", metavar="KEY", help="routing key")
    parser.add_argument("files", metavar="FILE", nargs="+", help="what to send")
    parser.add_argument("-n", "--receivers", type=count, default=1, metavar="N", help="wait for N receivers (1)")
    parser.add_argument(
        "--timeout", type=seconds, default=30.0, metavar="TIME", help="give up those that do not go on for so long (30)"
    )
    parser.set_defaults(run=_send)


def _send(arguments: Namespace) -> int:
    from . import messages
    from .tables import plain

    status = EXIT_SUCCESS

    def send(client: Client) -> None:
        nonlocal status
        for path in arguments.files:
            sent = client.send_large(
                os.fsencode(arguments.key), path, receivers=arguments.receivers, timeout=arguments.timeout
            )
            tell(f"{plain(path)}: {sent.receivers} of {sent.receivers + len(sent.failed)} have it")
            for why in sent.failed:
                status = complain("sbus", plain(f"{path}: {why}"))

    return messages.run(send, arguments.address, **messages.RECONNECTING) or status
