"""``sbus pub``, ``sbus sub`` and ``sbus whoami``. They block, and never load gevent."""

from __future__ import annotations

import os
import select
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from io import BufferedReader

from ..blocking import Client
from ..errors import PayloadError, SbusError
from ..limits import PACKET_BYTES
from ..wire.packets import Message
from ..wire.text import printable
from .console import EXIT_SUCCESS, complain, explain, yield_to_signals

__all__ = ["publish", "run", "subscribe", "whoami"]

CHUNK_BYTES = 65_536
"""Bytes that are read from standard input at once: as many as a pipe holds."""


def run(command: Callable[[Client, Namespace], None], arguments: Namespace) -> int:
    """Connect, run one of the commands below, and tell an error in one line. Returns the exit status."""
    yield_to_signals()
    address: str | None = arguments.address
    try:
        with Client(address) as client:
            address = client.address
            command(client, arguments)
    except (SbusError, OSError) as error:
        return complain("sbus", explain(error, address))
    return EXIT_SUCCESS


def publish(client: Client, arguments: Namespace) -> None:
    """Publish one payload, or each line of standard input, and return once the hub has taken all."""
    key = os.fsencode(arguments.key)
    if arguments.payload == "-":
        for lines in _lines():
            client.publish_many((key, line) for line in lines)
    else:
        client.publish(key, os.fsencode(arguments.payload))
    client.sync()


def _lines() -> Iterator[list[bytes]]:
    """The lines of standard input without their ends, as many at a time as there are."""
    if sys.stdin is None:
        raise OSError("standard input is closed")
    stdin = sys.stdin.buffer
    assert isinstance(stdin, BufferedReader)
    rest = b""
    while chunk := stdin.read1(CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines
        if len(rest) > PACKET_BYTES:
            raise PayloadError(f"a line of more than {PACKET_BYTES:,} bytes does not fit a message")
    if rest:
        yield [rest]


def subscribe(client: Client, arguments: Namespace) -> None:
    """Show messages until the count is reached, or standard output is closed."""
    if sys.stdout is None:
        raise OSError("standard output is closed")
    out = sys.stdout.buffer
    show = _show_raw if arguments.raw else _show_json if arguments.json else _show_text
    if arguments.senders:
        client.senders()
    client.subscribe(*map(os.fsencode, arguments.patterns))
    left: int | None = arguments.count
    for batch in _batches(client):
        messages = batch[:left]
        try:
            out.write(b"".join(map(show, messages)))
            out.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None
        if left is not None:
            left -= len(messages)
            if not left:
                return


def _batches(client: Client) -> Iterator[list[Message]]:
    """Messages as they come, until standard output is closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors and hang-ups are always told
    poll.register(client.fileno(), select.POLLIN)
    while True:
        try:
            yield client.receive_many(timeout=0)  # before poll(2): a client may hold messages already
        except TimeoutError:
            if any(fd != client.fileno() for fd, _ in poll.poll()):
                signal.raise_signal(signal.SIGPIPE)


def _show_text(message: Message) -> bytes:
    fields = [message.key, message.payload]
    if message.sender is not None:
        fields.insert(0, message.sender)
    return ("\t".join(map(printable, fields)) + "\n").encode(sys.stdout.encoding, "backslashreplace")


def _show_raw(message: Message) -> bytes:
    return message.payload


def _show_json(message: Message) -> bytes:
    import json

    fields = {**_json_field("key", message.key), **_json_field("payload", message.payload)}
    if message.sender is not None:
        fields.update(_json_field("sender", message.sender))
    return json.dumps(fields).encode() + b"\n"  # ASCII, so that it cannot steer a terminal either


def _json_field(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        import base64

        return {f"{name}_base64": base64.b64encode(data).decode()}


def whoami(client: Client, arguments: Namespace) -> None:
    """Print the credential key of this process."""
    print(printable(client.whoami()))
