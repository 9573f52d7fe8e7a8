"""``sbus web``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import ADDRESSES, add_address

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show the bus on a live page: rates, queues and losses of clients and users, the hubs above and below, and the "
        "messages of a pattern. Print the address of the page, and serve it until Ctrl-C. Open it in a browser on this "
        "machine, or through ssh -L. The page cannot change anything, and shows no secrets. Whoever has its address "
        "may look: there is a random token in it. The hub must trust the user that runs this."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus web\n"
        "  sbus web --listen 127.0.0.1:8080            always at this port; the token is a new one each time\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument(
        "--listen",
        metavar="WHERE",
        default="127.0.0.1:0",
        help="a loopback address and port, or the path of a Unix socket (default: 127.0.0.1 and any port)",
    )
    parser.set_defaults(run=_web)


def _web(arguments: Namespace) -> int:
    from ..errors import SbusError
    from .console import EXIT_SUCCESS, complain, explain, on_stop

    try:
        import gevent

        from ..client import Client
        from ..web.page import Page

        with Client(arguments.address, timeout=10) as client:
            client.statistics()  # refused at once to who is not trusted
            try:
                page = Page(client.address, arguments.listen)
            except OSError as error:
                return complain("sbus", explain(error, arguments.listen))
        on_stop(page.stop, gevent.signal_handler)
        print(page.url, flush=True)
        page.serve_forever()
    except (SbusError, OSError) as error:
        return complain("sbus", explain(error, arguments.address))
    return EXIT_SUCCESS
