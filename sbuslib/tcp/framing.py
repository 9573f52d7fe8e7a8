"""Wire format of Simplest pubsub: an incremental parser of commands, and their encoders.

Either end of a connection may send, at any time::

    pub <name> <length> <data>LF        sub <substring>LF        unsub <substring>LF

``<length>`` is decimal and counts the bytes of ``<data>``, which may be any; names and substrings are
UTF-8 without space, CR and LF. A name is not empty; the empty substring is in every name. Source: the
protocol's own page, "Simplest pubsub".

Pure: no socket, no clock, no event loop. **The theory of the parser:** it tries the start of the last message first,
and then regular expressions: for a whole command, and for the beginning of one; no byte is examined by Python code. An
incomplete command is kept until the rest comes, and a length beyond the limit is refused before any of its data is
waited for. So the limits bound the memory of a parser: one header, or one message and one read.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeAlias

import msgspec

from ..errors import FramingError, NameFormatError, PayloadError
from .limits import TcpLimits

_LF = 0x0A
_LENGTH_DIGITS = 19
"""Most digits of a length, leading zeros included: those of any 64-bit number."""


class Publish(msgspec.Struct, frozen=True, gc=False):
    """A message: ``name`` and the bytes of its ``data``."""

    name: str
    data: bytes


class Sub(msgspec.Struct, frozen=True, gc=False):
    """The sender wants every message whose name contains ``substring``."""

    substring: str


class Unsub(msgspec.Struct, frozen=True, gc=False):
    """The sender withdraws one earlier :class:`Sub`."""

    substring: str


Command: TypeAlias = Publish | Sub | Unsub


@lru_cache
def _expressions(name_bytes: int) -> tuple[re.Pattern[bytes], re.Pattern[bytes], re.Pattern[bytes]]:
    """Expressions for the start of a ``pub``, a whole ``sub`` or ``unsub``, and an incomplete one of these."""
    name, digits = rb"[^ \r\n]{1,%d}" % name_bytes, rb"[0-9]{1,%d}" % _LENGTH_DIGITS
    line = rb"(un)?sub ((?:%b)?)" % name
    verb = rb"p|pu|pub|s|su|sub|u|un|uns|unsu|unsub"
    return (
        re.compile(rb"pub (%b) (%b) " % (name, digits)),
        re.compile(line + rb"\n"),
        re.compile(rb"%b|pub (?:%b(?: (?:%b)?)?)?|%b" % (verb, name, digits, line)),
    )


class CommandParser:
    """Incremental parser of the commands of one direction of one connection.

    After a :exc:`~sbuslib.errors.FramingError` the start of the next command is unknown, so every later call raises it
    again.
    """

    def __init__(self, limits: TcpLimits | None = None) -> None:
        self._limits = limits if limits is not None else TcpLimits()  # of names and data
        self._publish, self._line, self._beginning = _expressions(self._limits.name_bytes)
        self._held = bytearray()  # bytes of a command that is not whole
        self._need = 0  # bytes of the command at hand, from its start, without which it cannot go on
        self._failed: FramingError | None = None

    @property
    def pending(self) -> int:
        """Bytes held of a command that is not whole yet."""
        return len(self._held)

    def feed(self, data: bytes) -> list[Command]:
        """Return the commands that ``data`` completes, in order.

        Raises :exc:`~sbuslib.errors.FramingError`, which carries those that came before the fault.
        """
        if self._failed is not None:
            raise FramingError(self._failed.reason)
        if self._held:
            self._held += data
            if len(self._held) < self._need:
                return []
            data = bytes(self._held)
            self._held.clear()

        commands: list[Command] = []
        try:
            position = self._take(data, commands)
        except FramingError as error:
            error.commands = commands
            self._failed = error
            raise
        if position < len(data):
            self._held += data[position:]
        return commands

    def finish(self) -> None:
        """End the stream. Raises :exc:`~sbuslib.errors.FramingError` inside a command."""
        if self._held:
            raise FramingError("ended inside a command")

    def _take(self, data: bytes, commands: list[Command]) -> int:
        """Add the whole commands of ``data`` to ``commands``. Returns the position of the first incomplete one."""
        position, end = 0, len(data)
        start, name, length = b"", "", 0  # of the last message: nearly all are like the one before but for their data
        while position < end:
            if not (start and data.startswith(start, position)):
                match = self._publish.match(data, position)
                if match is None:
                    line = self._line.match(data, position)
                    if line is None:
                        if self._beginning.fullmatch(data, position) is None:
                            raise FramingError("malformed command")
                        self._need = end - position + 1
                        break
                    commands.append((Unsub if line[1] else Sub)(self._decode(line[2])))
                    position = line.end()
                    continue
                start, length = match[0], int(match[2])
                if length > self._limits.data_bytes:
                    raise FramingError("data too long")
                name = self._decode(match[1])

            stop = position + len(start) + length
            if stop >= end:
                self._need = stop + 1 - position
                break
            if data[stop] != _LF:
                raise FramingError("no LF after the data")
            commands.append(Publish(name, data[position + len(start) : stop]))
            position = stop + 1
        return position

    def _decode(self, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise FramingError("name is not UTF-8") from None


def _encode_name(name: str, limits: TcpLimits, what: str) -> bytes:
    if not isinstance(name, str):
        raise NameFormatError(f"a {what} is text, not {type(name).__name__}")
    if " " in name or "\r" in name or "\n" in name:
        raise NameFormatError(f"a {what} holds no space, CR or LF: {name[:80]!r}")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise NameFormatError(f"a {what} is text that UTF-8 can hold: {name[:80]!r}") from None
    if len(encoded) > limits.name_bytes:
        raise NameFormatError(f"a {what} of {len(encoded):,} bytes: the limit is {limits.name_bytes:,}")
    return encoded


_DEFAULTS = TcpLimits()


def publish_prefix(name: str, limits: TcpLimits = _DEFAULTS) -> bytes:
    """Encode ``pub <name>`` and the space, the start of every message under ``name``.

    Raises :exc:`~sbuslib.errors.NameFormatError`.
    """
    if not name:
        raise NameFormatError("a name is not empty")
    return b"pub %b " % _encode_name(name, limits, "name")


def encode_publish(name: str, data: bytes, limits: TcpLimits = _DEFAULTS) -> bytes:
    """Encode the command that publishes ``data`` under ``name``.

    Raises :exc:`~sbuslib.errors.NameFormatError` and :exc:`~sbuslib.errors.PayloadError`.
    """
    prefix = publish_prefix(name, limits)
    check_data(data, limits)
    return b"%b%d %b\n" % (prefix, len(data), data)


def check_data(data: bytes, limits: TcpLimits = _DEFAULTS) -> None:
    """Raise :exc:`~sbuslib.errors.PayloadError` if this cannot be the data of a message."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise PayloadError(f"data is bytes, not {type(data).__name__}")
    if len(data) > limits.data_bytes:
        raise PayloadError(f"data of {len(data):,} bytes: the limit is {limits.data_bytes:,}")


def encode_subscribe(substring: str, limits: TcpLimits = _DEFAULTS) -> bytes:
    """Encode a subscription to ``substring``. Raises :exc:`~sbuslib.errors.NameFormatError`."""
    return b"sub %b\n" % _encode_name(substring, limits, "substring")


def encode_unsubscribe(substring: str, limits: TcpLimits = _DEFAULTS) -> bytes:
    """Encode the end of one subscription. Raises :exc:`~sbuslib.errors.NameFormatError`."""
    return b"unsub %b\n" % _encode_name(substring, limits, "substring")
