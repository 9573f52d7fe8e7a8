"""The reference daemon of D-Bus, on a session bus of its own. Messages are signals with the payload as bytes.

Source: https://dbus.freedesktop.org/doc/dbus-specification.html (messages, the handshake, the bus's own methods).
"""

from __future__ import annotations

import os
import socket
import struct

from sbuslib.errors import StateError

from .broker import Broker, exactly, find_program, until, version_of

__all__ = ["Dbus"]

CALL, RETURN, SIGNAL = 1, 2, 4
PATH, INTERFACE, MEMBER, DESTINATION, SENDER, SIGNATURE = 1, 2, 3, 6, 7, 8

BUS = b"org.freedesktop.DBus"
Field = tuple[int, bytes, bytes]

_FIXED = struct.Struct("<cBBBIII")
"""How a message begins: byte order, kind, flags, version, length of the body, serial, length of the fields."""


def message(kind: int, fields: list[Field], body: bytes = b"") -> bytes:
    """A message; each field is its code, the type of its value, and the value."""
    array = b""
    for code, type_, value in fields:
        array += bytes(-len(array) % 8) + bytes([code, 1]) + type_ + b"\0"
        length = bytes([len(value)]) if type_ == b"g" else struct.pack("<I", len(value))
        array += length + value + b"\0"
    head = _FIXED.pack(b"l", kind, 0, 1, len(body), 1, len(array)) + array
    return head + bytes(-len(head) % 8) + body


def call(member: bytes, *strings: bytes) -> bytes:
    """A call of a method of the bus itself."""
    fields = [(PATH, b"o", b"/org/freedesktop/DBus"), (INTERFACE, b"s", BUS), (MEMBER, b"s", member)]
    fields.append((DESTINATION, b"s", BUS))
    if strings:
        fields.append((SIGNATURE, b"g", b"s" * len(strings)))
    return message(CALL, fields, b"".join(struct.pack("<I", len(one)) + one + b"\0" for one in strings))


class Dbus(Broker):
    """The reference daemon, over a Unix socket."""

    name = "dbus"
    title = "D-Bus"

    _sender = b""

    @property
    def address(self) -> str:
        return str(self.folder / "dbus")

    def command(self) -> list[str]:
        program = find_program("dbus-daemon")
        return [program, "--session", "--nofork", "--nopidfile", f"--address=unix:path={self.address}"]

    @classmethod
    def version(cls) -> str:
        return version_of(find_program("dbus-daemon"), "--version")

    def _hello(self) -> tuple[socket.socket, bytes]:
        """A connection that the bus has given a name, and that name."""
        sock = self.dial()
        sock.sendall(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\r\n")
        if not until(sock, b"\r\n").startswith(b"OK "):
            raise StateError("the bus does not let us in")
        sock.sendall(b"BEGIN\r\n" + call(b"Hello"))
        body = self._read(sock)
        self._read(sock)  # a signal: the name was given
        return sock, body[4:-1]

    def _read(self, sock: socket.socket) -> bytes:
        """The body of the next message, which is no error."""
        _, kind, _, _, length, _, fields = _FIXED.unpack(exactly(sock, _FIXED.size))
        body = exactly(sock, fields + -fields % 8 + length)[fields + -fields % 8 :]
        if kind not in (RETURN, SIGNAL):
            raise StateError(f"the bus answered {body!r}")
        return body

    def publisher(self) -> socket.socket:
        sock, self._sender = self._hello()
        return sock

    def subscriber(self) -> socket.socket:
        sock, _ = self._hello()
        sock.sendall(call(b"AddMatch", b"type='signal',interface='bench.bus'"))
        self._read(sock)
        return sock

    def _signal(self, payload: bytes, sender: list[Field]) -> bytes:
        fields = [(PATH, b"o", b"/bench"), (INTERFACE, b"s", b"bench.bus"), (MEMBER, b"s", b"Message")]
        fields += [(SIGNATURE, b"g", b"ay"), *sender]
        return message(SIGNAL, fields, struct.pack("<I", len(payload)) + payload)

    def frame(self, payload: bytes) -> bytes:
        return self._signal(payload, [])

    def unit(self, payload: bytes) -> int:
        return len(self._signal(payload, [(SENDER, b"s", self._sender)]))
