"""``sbus ping``: how long a hub, or a whole tree of hubs, takes to answer."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import ADDRESSES, add_address
from .values import count, seconds

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Ask a hub for an answer, again and again, and show how long each takes: until it is there, all that a client "
        "has said is in force. With --tree, the hubs above and below have to answer too; those of users that are not "
        "trusted are not waited for."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus ping -n 4\n"
        "  sbus ping --tree -n 1 --timeout 5s          is every hub of the tree there?\n"
        "\n"
        "exit status:\n"
        "  0   every answer came\n"
        "  1   none came in time, or that of the tree was partial: some hub did not answer\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("-n", "--count", type=count, metavar="N", help="ask N times; else until Ctrl-C")
    parser.add_argument("-i", "--interval", type=seconds, default=1.0, metavar="TIME", help="how often (1)")
    parser.add_argument("--timeout", type=seconds, default=10.0, metavar="TIME", help="wait for no answer longer (10)")
    parser.add_argument("--tree", action="store_true", help="ask the whole tree")
    parser.set_defaults(run=_ping)


def _ping(arguments: Namespace) -> int:
    from itertools import count as numbers
    from signal import SIG_DFL, SIGINT, default_int_handler, getsignal, signal
    from time import perf_counter, sleep

    from ..blocking import Client
    from . import tables
    from .console import EXIT_FAILURE, EXIT_SUCCESS

    times: list[float] = []
    partial = False

    def ask() -> None:
        nonlocal partial
        if getsignal(SIGINT) is SIG_DFL:  # and not ignored
            signal(SIGINT, default_int_handler)  # the summary comes after Ctrl-C
        with Client(arguments.address, timeout=arguments.timeout) as client:
            client.sync()  # the first answer takes longer: the client makes room for it
            for number in numbers(1) if arguments.count is None else range(1, arguments.count + 1):
                if times:
                    sleep(arguments.interval)
                began = perf_counter()
                scope = client.sync("tree" if arguments.tree else "local")
                times.append(perf_counter() - began)
                partial = partial or scope == "partial"
                told = f" scope={scope}" if arguments.tree else ""
                told += " (hubs of users that are not trusted were not waited for)" if scope.trusted_only else ""
                where = tables.plain(client.address)
                print(f"{where}: number={number} time={times[-1] * 1_000:.3f} ms{told}", flush=True)

    try:
        status = tables.run(ask, arguments.address)
    except KeyboardInterrupt:  # how it ends without a count
        status = EXIT_SUCCESS
    if times:
        least, most, mean = min(times), max(times), sum(times) / len(times)
        print(f"least/mean/most = {least * 1_000:.3f}/{mean * 1_000:.3f}/{most * 1_000:.3f} ms")
    return EXIT_FAILURE if partial else status
