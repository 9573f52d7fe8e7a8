"""Conformance scripts: packets that clients send, packets that they must receive, as text.

A file ends in ``.sbus`` and holds cases. Lines that are empty or start with ``#`` mean nothing.

==================  ====================================================================================
``== title``        begins a case
``!! reason``       the C daemon is known to fail it, and why
``a > packet``      client ``a`` sends a packet; a client is connected where it is first named
``a < packet``      the next packet that ``a`` receives is this one
``a .``             nothing more has come for ``a``
``a x``             nothing more comes for ``a`` but the end: the daemon has closed the connection
``a close``         ``a`` closes its connection
==================  ====================================================================================

In a packet ``%XX`` is a byte, ``{c*N}`` is a character N times, ``{gid}``, ``{uid}`` and ``{pid}`` are the
client's own ids, ``{gid+1}`` and so on are others, and, where a packet is expected, ``{...}`` is anything.
A packet ends at the last character of its line that is no blank, so a blank there is ``%20``.

What one client does has taken effect before another does something, and before anything is expected: the
runner asks a whoami in between, whose answer a daemon gives after what it was told before. So a script
never sleeps, and says only what it is about.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from support import WHOAMI, Peer

__all__ = ["Case", "read_cases", "run"]

_LINE = re.compile(r"(\w+) ([<>.x]|close)(?: (.*))?")
_TOKEN = re.compile(r"%([0-9A-Fa-f]{2})|\{(.)\*(\d+)\}|\{(gid|uid|pid)(\+1)?\}|(\{\.\.\.\})", re.DOTALL)


@dataclass
class Step:
    line: int
    client: str
    verb: str
    packet: list[bytes]
    """The bytes between one ``{...}`` and the next."""


@dataclass
class Case:
    file: str
    title: str
    known: str | None = None
    steps: list[Step] = field(default_factory=list)


def _packet(text: str) -> list[bytes]:
    pieces = [b""]
    end = 0
    for found in _TOKEN.finditer(text):
        pieces[-1] += text[end : found.start()].encode("ascii")
        end = found.end()
        if found[1]:
            pieces[-1] += bytes.fromhex(found[1])
        elif found[2]:
            pieces[-1] += found[2].encode("ascii") * int(found[3])
        elif found[4]:
            number = {"gid": os.getgid, "uid": os.getuid, "pid": os.getpid}[found[4]]()
            pieces[-1] += b"%d" % (number + bool(found[5]))
        else:
            pieces.append(b"")
    pieces[-1] += text[end:].encode("ascii")
    return pieces


def read_cases(path: Path) -> list[Case]:
    """The cases of a file. Raises :exc:`SyntaxError` for a line of no known form."""
    cases: list[Case] = []
    for number, line in enumerate(path.read_text("ascii").splitlines(), 1):
        line = line.rstrip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("== "):
            cases.append(Case(path.name, line[3:]))
            continue
        if cases and line.startswith("!! "):
            cases[-1].known = line[3:]
            continue
        found = _LINE.fullmatch(line)
        if not cases or not found or (found[3] is not None and found[2] not in "<>"):
            raise SyntaxError(f"{path}, line {number}: {line!r} means nothing")
        packet = _packet(found[3] or "")
        if found[2] == ">" and len(packet) > 1:
            raise SyntaxError(f"{path}, line {number}: what is sent must be said")
        cases[-1].steps.append(Step(number, found[1], found[2], packet))
    return cases


class Player:
    """One client of a script."""

    def __init__(self, address: str) -> None:
        self.peer = Peer(address)
        self.settled = False
        self.ended = False
        self._asked = 0  # whoamis of the script whose answers it has not read
        self.early: list[bytes] = []  # what came before it was expected

    def send(self, packet: bytes) -> None:
        self._asked += packet.partition(b"\0")[0] == WHOAMI
        self.settled = False
        try:
            self.peer.send(packet)
        except BrokenPipeError:
            self.ended = True  # a script may go on after what disconnects it

    def receive(self) -> bytes:
        packet = self.early.pop(0) if self.early else self.peer.receive()
        self._asked -= packet.startswith(WHOAMI + b"\0")
        return packet

    def settle(self) -> None:
        """Wait until the daemon has acted on everything said here."""
        if self.settled or self.ended:
            return
        self.settled = True
        try:
            self.peer.send(WHOAMI)
        except BrokenPipeError:
            self.ended = True
            return
        left = self._asked + 1
        while True:
            packet = self.peer.receive()
            if not packet:
                self.ended = True
                self.early.append(packet)
                return
            left -= packet.startswith(WHOAMI + b"\0")
            if not left:
                return
            self.early.append(packet)


def _shown(packet: bytes) -> str:
    text = repr(packet[:200])
    return text if len(packet) <= 200 else f"{text} and so on, {len(packet):,} bytes"


def run(case: Case, address: str) -> None:
    """Play a case against the daemon at ``address``. Raises :exc:`AssertionError` where it does something else."""
    players: dict[str, Player] = {}
    try:
        for step in case.steps:
            for name, other in players.items():
                if name != step.client:
                    other.settle()
            where = f"{case.file}, line {step.line}: "
            if step.client not in players:
                players[step.client] = Player(address)
            player = players[step.client]
            if step.verb == ">":
                player.send(step.packet[0])
            elif step.verb == "close":
                player.peer.close()
                player.ended = True
            elif step.verb == ".":
                player.settled = False  # what others did may have reached it since
                player.settle()
                assert not player.early, where + f"there came {_shown(player.early[0])}"
            elif step.verb == "x":
                got = player.receive()
                assert not got, where + f"instead of the end there came {_shown(got)}"
                player.ended = True
            else:
                got = player.receive()
                expected = b"{...}".join(step.packet)
                pattern = b"(?s:.*)".join(map(re.escape, step.packet)) if len(step.packet) > 1 else None
                fits = re.fullmatch(pattern, got) if pattern else got == expected
                assert fits, where + f"expected {_shown(expected)}, there came {_shown(got)}"
    finally:
        for player in players.values():
            player.peer.close()
