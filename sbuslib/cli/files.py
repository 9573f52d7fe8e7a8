"""``sbus send`` and ``sbus receive``: files of any size, from one sender to all receivers."""

from __future__ import annotations

import errno
from argparse import Namespace

from .arguments import Parser, add, add_address, add_descriptor_folder
from .console import EXIT_SUCCESS, complain, explain, show_status, wait_for_ctrl_c
from .tables import plain

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from ..clients.endpoint import Files

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Why one file cannot be written, and another may be."""


def add_send(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Send files of any size under a routing key, one after another, to each sbus receive (or receive_large of a "
        "program) whose pattern matches the key. Return once they have copied them."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus receive 'files/*' --into ~/incoming &\n"
        "  sbus send files/reports report.pdf\n"
        "  sbus send --receivers 3 images/camera-1 *.png    wait until three have them\n"
        "\n"
        "exit status:\n"
        "  0   every receiver has every file\n"
        "  1   a receiver gave up, or nobody came in time\n"
    )

    add_address(parser)
    add(parser, "KEY", "routing key")
    add(parser, "FILE...", "what to send")
    add(parser, "--receivers N", "wait for N receivers (1)", default=1)
    add(parser, "--timeout TIME", "give up those that make no progress for TIME (30)", default=30.0)
    add_descriptor_folder(parser)


def run_send(arguments: Namespace) -> int:
    from . import messages

    status = EXIT_SUCCESS
    with messages.connected(arguments, descriptor_folder=arguments.descriptor_folder, lasting=True) as client:
        for path in arguments.files:
            sent = client.files.send(arguments.key, path, receivers=arguments.receivers, timeout=arguments.timeout)
            show_status(f"{plain(path)}: {sent.receivers} of {sent.receivers + len(sent.failed)} have it")
            for why in sent.failed:
                status = complain("sbus", plain(f"{path}: {why}"))
    return status


def add_receive(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Receive the files that are sent under matching keys, and print the path of each once it is whole. "
        "No file is ever replaced: one of the same name gets a number. Names that lead out of the folder are not used."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus receive 'files/*' --into ~/incoming\n"
        "  sbus receive -n 1 --timeout 1min --max-bytes 10MB files/report"
    )

    add_address(parser)
    add(parser, "PATTERN...", "pattern of routing keys")
    add(parser, "--into DIR", "where the files go; else here", default=".")
    add(parser, "-n --count N", "exit after N files")
    add(parser, "--max-bytes SIZE", "take no larger file (1GB)", default=1024**3)
    add(parser, "--timeout TIME", "exit with status 1 when no file is offered for TIME")
    add_descriptor_folder(parser)


def run_receive(arguments: Namespace) -> None:
    from . import messages

    with (
        messages.connected(arguments, descriptor_folder=arguments.descriptor_folder, lasting=True) as client,
        client.files.receive(*arguments.patterns, folder=arguments.into, most=arguments.max_bytes) as files,
    ):
        show_status("ready to receive (Ctrl-C ends it)")
        # Leaving the block removes incomplete files.
        wait_for_ctrl_c(lambda: _print_paths(files, arguments))


def _print_paths(files: Files, arguments: Namespace) -> None:
    from ..errors import PeerError

    received = 0
    while received != arguments.count:
        try:
            got = files.receive(timeout=arguments.timeout)
        except (PeerError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _FULL:
                raise
            complain("sbus", explain(error, arguments.into))  # and take the next: it may be smaller
        else:
            print(plain(str(got.file)), flush=True)
            received += 1
