"""``sbus pub``. One message with plain arguments takes a fast path: a bare socket, no client, and no argparse.

These, and msgspec, take longer to load than Python itself takes to start. So this module imports next to nothing, and
leaves all other arguments, and errors, to a client.
"""

from __future__ import annotations

import os
from _socket import AF_UNIX, MSG_NOSIGNAL, SOCK_SEQPACKET, socket

from ..errors import UsageError
from ..kernel.defaults import default_addresses

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from .arguments import Parser

_SHORT = 65_536
"""Bytes of a packet for which the send buffer of any socket has room."""

_WHOAMI = b"CMSG !/cred/whoami\0"
"""The question, and how its answer begins. The hub answers in order, so the question also serves as a sync."""
_KICKED = b"CMSG notice/kicked\0"


def add_pub(parser: Parser) -> None:
    """Complete the parser of the command."""
    from .arguments import add, add_address

    parser.description = (
        "Publish a message, or many, and return once the hub has taken all. A word that starts with a hyphen is an "
        "option, unless -- comes before it."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus pub room/1/temp 21.5\n"
        "  sbus pub -- room/1/note '-5 below'          after --, nothing is taken for an option\n"
        "  tail -f app.log | sbus pub log/app -        a message for each line, as it comes\n"
        "  sbus pub camera/1 --file picture.jpg        a file as it is\n"
        "  date | sbus pub clock --stdin               all of standard input, with its newlines\n"
        "  sbus sub --json '' | sbus pub -a /tmp/other --json    the same messages at another hub"
    )

    add_address(parser)
    add(parser, "[KEY]", "routing key; left out with --json")
    add(parser, "[PAYLOAD]", "the payload; - is the same as --lines")
    parser.late = "payload"
    source = parser.add_mutually_exclusive_group()
    add(source, "-l --lines", "a message for each line of standard input, without its end")
    add(source, "--stdin", "all of standard input as one payload")
    add(source, "--file FILE", "the contents of a file as one payload")
    add(source, "--json", "a message for each line of standard input, as sbus sub --json writes them")


def run_pub(arguments: Namespace) -> None:
    if arguments.payload == b"-":
        arguments.lines, arguments.payload = True, None
    sources = [arguments.lines, arguments.stdin, arguments.file is not None, arguments.json]
    if (arguments.key is None) is not arguments.json:
        arguments.parser.error(
            "KEY is missing"
            if arguments.key is None
            else "--json takes KEY from the lines of standard input: leave it out"
        )
    if sum(sources) + (arguments.payload is not None) != 1:
        arguments.parser.error("give one PAYLOAD, or one of -, -l, --stdin, --file and --json")

    from . import messages

    # Lines may come for days.
    with messages.connected(arguments, lasting=arguments.lines or arguments.json) as client:
        for batch in messages.from_arguments(arguments):
            client.publish_many(batch)
        client.sync()


def publish_plainly(words: Sequence[str]) -> bool:
    """Run ``sbus pub [-a ADDRESS] KEY PAYLOAD``. ``False``: nothing was sent, or these are other arguments."""
    match words:
        case [key, payload]:
            address = None
        case ["-a" | "--address" | "--bus", address, key, payload] if not address.startswith("-"):
            pass
        case _:
            return False
    if key.startswith("-") or payload.startswith("-"):
        return False
    try:
        addresses = default_addresses() if address is None else [address]
    except UsageError:  # a client raises it again
        return False
    return any(publish_once(one, os.fsencode(key), os.fsencode(payload)) for one in addresses)


def publish_once(address: str, key: bytes, payload: bytes, timeout: float = 10.0) -> bool:
    """Publish one message at the hub that listens at a path, and return once the hub has it.

    ``False``: nothing was sent. Use a client: it can publish the message, or raises the right error. Raises
    :exc:`~sbuslib.errors.DisconnectedError` and :exc:`TimeoutError`.
    """
    packet = b"MSG %b\0%b" % (key, payload)
    if len(packet) > _SHORT or b"\0" in key or b"!" in key or address.startswith("/dev/"):
        return False

    # 1. The message, followed by whoami: its answer shows that the hub has both.
    sock = socket(AF_UNIX, SOCK_SEQPACKET)
    try:
        sock.settimeout(timeout)
        try:
            sock.connect(address)
        except OSError:
            return False
        reason = ""
        try:
            for one in (b"CMSG notices/on\0", packet, _WHOAMI):
                sock.send(one, MSG_NOSIGNAL)
        except ConnectionError:
            pass  # the hub's last packets hold the reason
        except TimeoutError:
            raise TimeoutError(f"{address}: the hub takes no more for now") from None

        # 2. The hub's packets until the answer. Notices come first; one may say why the hub disconnects instead.
        while True:
            try:
                answer: bytes = sock.recv(_SHORT)
            except ConnectionError:
                continue  # the kernel reports it once, before the packets that the hub has sent
            except TimeoutError:
                raise TimeoutError(f"{address}: the hub did not answer in time") from None
            if answer.startswith(_WHOAMI):
                return True
            if answer.startswith(_KICKED):
                reason = answer[len(_KICKED) :].decode(errors="replace")
            if not answer:
                from ..errors import DisconnectedError

                why = f" ({reason})" if reason else ""
                raise DisconnectedError(f"{address}: the hub closed the connection{why}", reason)
    finally:
        sock.close()
