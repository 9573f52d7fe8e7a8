"""Publishing and showing of messages, for commands that use a blocking client. It never loads gevent."""

from __future__ import annotations

import json
import re
import select
import signal
import sys
from argparse import Namespace
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from io import BufferedReader
from time import monotonic
from typing import Any, Protocol, TypeAlias

import msgspec

from ..blocking import Client
from ..clients.recipes.payload_text import payload_text
from ..errors import PayloadError
from ..limits import PACKET_BYTES
from ..malformed import MALFORMED
from ..matcher import Pattern
from ..wire import control
from ..wire.packets import Message
from ..wire.text import printable
from .console import complain, progress, show_status, yield_to_signals

CHUNK_BYTES = 65_536
"""Bytes that are read from standard input at once: as many as a pipe holds."""

_AWAY = 0.2
"""Seconds between two looks for a hub that is away, while standard output is watched too."""

Pair: TypeAlias = tuple[bytes, bytes]


class Show(Protocol):
    """Shows a message as bytes, with the time when it came: in nanoseconds since the epoch, or now."""

    def __call__(self, message: Message, time: int | None = None) -> bytes: ...


@contextmanager
def connected(arguments: Namespace, *patterns: bytes, lasting: bool = False, **options: Any) -> Iterator[Client]:
    """Connect a client to the hub of the arguments, and subscribe to ``patterns``; ``options`` are the client's.

    :param lasting: the client outlives its hub, which has to be there at first.
    """
    yield_to_signals()
    begun: list[None] = []  # before, an error ends the command, which prints it

    def show_if_begun(text: str) -> None:
        if begun:
            show_status(text)

    with ExitStack() as stack:
        with progress(lambda: "waiting for a hub"):
            if lasting:
                Client(arguments.address, **options).close()  # raises where nobody listens or answers
                options["reconnect"] = True
                options["on_disconnect"] = lambda client, error: show_if_begun(f"{error}; waiting for it")
                options["on_reconnect"] = lambda client: show_if_begun(f"connected to {client.address} again")
            client = stack.enter_context(Client(arguments.address, **options))
        arguments.address = client.address  # for errors from here on
        if patterns:
            client.subscribe(*patterns)
        begun.append(None)
        yield client


# -- publishing -----------------------------------------------------------------------------------------------


def from_arguments(arguments: Namespace) -> Iterator[Iterable[Pair]]:
    """Yield the messages that ``sbus pub`` publishes, by its arguments."""
    if arguments.json:
        for lines in _lines(8 * PACKET_BYTES):  # in JSON a byte may become six, and there is the sender besides
            yield map(from_json, lines)
        return

    # All have one key.
    key = arguments.key
    if arguments.lines:
        for lines in _lines(PACKET_BYTES):
            yield [(key, line) for line in lines]
        return

    if arguments.stdin:
        payload = read_stdin()
    elif arguments.file is not None:
        with open(arguments.file, "rb") as file:
            payload = file.read(PACKET_BYTES + 1)
    else:
        payload = arguments.payload
    yield [(key, payload)]


def read_stdin() -> bytes:
    """Read standard input, at most one byte more than fits a packet: publishing that raises the error."""
    return _stdin().read(PACKET_BYTES + 1)


def _stdin() -> BufferedReader:
    if sys.stdin is None:
        raise OSError("standard input is closed")
    stdin = sys.stdin.buffer
    assert isinstance(stdin, BufferedReader)
    return stdin


def _lines(longest: int) -> Iterator[list[bytes]]:
    """Yield the lines of standard input without their ends, as many at a time as there are."""
    stdin, rest = _stdin(), b""
    while chunk := stdin.read1(CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines
        if len(rest) > longest:
            raise PayloadError(f"a line of more than {longest:,} bytes does not fit a message")
    if rest:
        yield [rest]


class _Line(msgspec.Struct):
    """A message in JSON. msgspec reads Base64 where bytes are wanted."""

    key: str | None = None
    key_base64: bytes | None = None
    payload: str | None = None
    payload_base64: bytes | None = None


def from_json(line: bytes) -> Pair:
    """Parse key and payload from a line of :func:`to_json`. Raises :exc:`~sbuslib.errors.PayloadError`."""
    try:
        fields = msgspec.json.decode(line, type=_Line)
        key = fields.key_base64 if fields.key is None else fields.key.encode()
        payload = fields.payload_base64 if fields.payload is None else fields.payload.encode()
    except (*MALFORMED, ValueError):  # the latter: a key that UTF-8 cannot hold
        key = payload = None
    if key is None or payload is None:
        raise PayloadError(f"not a message in JSON, with key and payload: {printable(line[:80])}")
    return key, payload


def to_json(message: Message, time: str | None = None) -> bytes:
    """Encode a message as a line of JSON, in ASCII, so that it cannot steer a terminal either."""
    fields = {**json_field("key", message.key), **json_field("payload", message.payload)}
    if message.sender is not None:
        fields.update(json_field("sender", message.sender))
    if time is not None:
        fields["time"] = time
    return json.dumps(fields).encode() + b"\n"


def json_field(name: str, data: bytes) -> dict[str, str]:
    """Return bytes as a member of a JSON object: text if they are UTF-8, else in Base64 under ``NAME_base64``."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


# -- subscribing ----------------------------------------------------------------------------------------------


def subscribe(
    client: Client,
    show: Show,
    count: int | None = None,
    timeout: float | None = None,
    unwanted: Sequence[Pattern] = (),
) -> None:
    """Write messages to standard output until there were ``count``, or it is closed; not those with ``unwanted`` keys.

    Raises :exc:`TimeoutError` when none comes for ``timeout`` seconds.
    """
    if sys.stdout is None:
        raise OSError("standard output is closed")
    out = sys.stdout.buffer

    for batch in _batches(client, timeout):
        if unwanted:
            batch = [message for message in batch if not any(pattern.matches(message.key) for pattern in unwanted)]

        messages = batch[:count]
        try:
            out.write(b"".join(map(show, messages)))
            out.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None
        if count is not None:
            count -= len(messages)
            if not count:
                return


def _batches(client: Client, timeout: float | None) -> Iterator[list[Message]]:
    """Yield messages as they come, until standard output is closed."""
    latest = monotonic()
    while True:
        batch = client.receive_many(timeout=0)  # before poll(2): a client may hold messages already
        if not batch:
            left = None if timeout is None else latest + timeout - monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"no message within {timeout:g} s")
            if not _wait(client.socket.fileno() if client.connected else -1, left):
                signal.raise_signal(signal.SIGPIPE)
        else:
            yield batch
            latest = monotonic()


def _wait(fd: int, seconds: float | None) -> bool:
    """Wait until a client can read, or for ``seconds``; ``False`` when standard output was closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # poll(2) reports errors and hang-ups always
    if fd >= 0:
        poll.register(fd, select.POLLIN)
    else:  # the hub is away
        seconds = _AWAY if seconds is None else min(seconds, _AWAY)
    return all(ready == fd for ready, _ in poll.poll(None if seconds is None else seconds * 1_000))


def shower(arguments: Namespace) -> Show:
    """Return a formatter of messages, by :func:`~sbuslib.cli.sub.add_forms`; exits if the format is wrong."""
    if arguments.raw:
        return lambda message, time=None: message.payload
    if arguments.json:
        return lambda message, time=None: to_json(message, _moment(time) if arguments.timestamps else None)
    form: str | None = arguments.format
    if form is None:
        form = "\t".join(["{time}"] * arguments.timestamps + ["{sender}"] * arguments.senders + ["{key}", "{payload}"])
    parts = re.split(r"(\{\w*\})", form)
    if not set(parts[1::2]) <= {*FIELDS}:
        arguments.parser.error(f"--format fills in {', '.join(FIELDS)} alone")

    def show(message: Message, time: int | None = None) -> bytes:
        line = "".join(FIELDS[part](message, time) if part in FIELDS else part for part in parts)
        return f"{line}\n".encode(sys.stdout.encoding, "backslashreplace")

    return show


def _moment(time: int | None) -> str:
    """Format a time in nanoseconds since the epoch, or now."""
    moment = datetime.now() if time is None else datetime.fromtimestamp(time / 1e9)
    return moment.astimezone().isoformat(timespec="microseconds")


FIELDS: dict[str, Callable[[Message, int | None], str]] = {
    "{key}": lambda message, _: printable(message.key),
    "{payload}": lambda message, _: payload_text(message),
    "{size}": lambda message, _: str(len(message.payload)),
    "{sender}": lambda message, _: printable(message.sender or b""),
    "{time}": lambda _, time: _moment(time),
}
"""The fields that ``--format`` fills in."""


def show_notice(notice: control.Notice) -> None:
    """Print on standard error how many messages the hub lost for this client, and why."""
    if isinstance(notice, control.Lost):
        complain("sbus", f"{notice.count:,} messages were lost: {printable(notice.cause.encode())}")
    elif isinstance(notice, control.Away):
        seconds = notice.until - notice.since
        complain("sbus", f"a parent was away for {seconds:.1f} s: what came there meanwhile was lost")
    elif isinstance(notice, control.Withdrawn):
        for pattern in notice.patterns:
            complain("sbus", f"the hub no longer lets this program subscribe to '{printable(pattern)}'")
