"""Connection between two peers: a parser of incoming commands, and a queue of outgoing ones.

The commands are carried out by :mod:`sbuslib.tcp.peer`.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, Protocol

import gevent
from gevent import socket
from gevent.event import Event

from ..core.supervision import Supervisor
from ..core.turns import let_others_run
from ..errors import FramingError
from ..kernel.hosts import HostPort
from .framing import Command, CommandParser, Publish, Sub, Unsub
from .limits import TcpLimits

_SEND_BYTES: Final = 262_144
"""Bytes handed to the kernel with one call, and joined for it. More gains nothing."""

_TURN_SECONDS: Final = 0.002
"""Seconds of work for one peer after which others have their turn: a new name or a subscription may cost a millisecond
where many substrings are held, and one piece of what came may hold thousands of them."""

_COMMAND_BYTES: Final = 128
"""Memory of a short command that was parsed, charged while it waits for the next turn."""


class PeerReceiver(Protocol):
    """A receiver at this end: an inbox of the application, or a gateway."""

    def __hash__(self) -> int: ...

    def take(self, messages: Sequence[Publish], source: Any) -> None:
        """Keep messages that came over the link ``source``; never blocks."""
        ...


class Owner(Protocol):
    """Interface of the peer that a link belongs to."""

    limits: TcpLimits
    buffer: memoryview
    held_bytes: int
    """Bytes that all connections hold together. Each charges its own, and gives them back."""
    greenlets: Supervisor

    def receivers_of(self, name: str) -> tuple[PeerReceiver, ...] | None:
        """The receivers at this end that subscribed to ``name``; ``None`` if it is for :meth:`take_forwarded`."""
        ...

    def take_forwarded(self, link: PeerLink, message: Publish) -> None:
        """Take a message that is forwarded to other peers."""
        ...

    def take_command(self, link: PeerLink, command: Sub | Unsub) -> None:
        """Take a subscription or its end. May raise :exc:`~sbuslib.errors.FramingError`."""
        ...

    def make_room(self) -> None:
        """End the links that hold the most, while all together hold too much."""
        ...

    def end_link(self, link: PeerLink, reason: str, violation: bool) -> None:
        """Note that the link has ended by itself."""
        ...


class PeerLink:
    """A connection to another peer.

    **Greenlets:** two. The *reader* waits for the socket to be readable, takes one piece, acts on it without
    blocking, and lets others run. The *writer* waits for something to send, and for the socket to take it; so it
    alone waits for a peer that reads slowly, and no greenlet waits for the writer. :meth:`push` and :meth:`say` never
    block.

    ``sent`` counts messages handed to the kernel whole, ``received`` those that came, ``unwanted`` those of
    them that no receiver here wants, ``lost`` those that a full queue or the end of the connection cost.
    """

    def __init__(self, owner: Owner, sock: Any, remote: HostPort, dialled: HostPort | None = None) -> None:
        self._owner = owner
        self._limits = owner.limits  # of the peer
        self._socket = sock
        self._parser = CommandParser(owner.limits)  # of what comes in

        self._waiting = bytearray()  # bytes for the writer
        self._waiting_count = 0  # messages among them
        self._sending = self._sending_count = 0  # bytes and messages that the writer has taken
        self._ready = Event()  # set when the writer has something to do
        self._moved = Event()  # set when the kernel took something, or takes nothing more
        self._since: float | None = None  # when the first bytes of an unfinished command came
        self._progress = monotonic()  # when the kernel last took something
        self._mute = False
        self._writer: gevent.Greenlet[..., Any] | None = None  # its greenlet; the reader's is the caller of serve

        self.remote = remote
        """The address at the other end."""
        self.dialled = dialled
        """The address that was connected to; ``None`` when the other end connected."""
        self.who: str | None = None
        """The name of the other end in discovery."""
        self.numbered = False
        """Whether the other end understands numbered names."""
        self.slow = False
        """Whether a publisher has waited in vain for the other end since its queue was last empty."""
        self.held = 0
        """Bytes that wait for the other end, of its unfinished command, and of its substrings."""
        self.closed = False  # whether the socket is closed
        self.received = self.unwanted = self.sent = self.lost = 0  # messages

    def __repr__(self) -> str:
        return f"<Link with {self.remote}{', closed' if self.closed else ''}>"

    def serve(self) -> None:
        """Write from another greenlet and read from this one, until the connection ends."""
        if not self.closed:
            self._writer = self._owner.greenlets.spawn(self._write)
            self._read()

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be taken by the kernel."""
        return len(self._waiting) + self._sending

    @property
    def queued(self) -> int:
        """Messages that wait to be taken by the kernel."""
        return self._waiting_count + self._sending_count

    # -- sending ------------------------------------------------------------------------------------

    def push(self, commands: bytes, count: int) -> bool:
        """Queue ``count`` whole messages. Without room they are lost, and this is ``False``."""
        size = len(commands)
        if self._mute or len(self._waiting) + self._sending + size > self._limits.queued_bytes:
            self.lost += count
            return False
        self._waiting += commands
        self._waiting_count += count
        self.charge(size)
        if not self._ready.is_set():
            self._ready.set()
        return True

    def say(self, command: bytes) -> None:
        """Queue a subscription or its end. They are never lost while the connection lasts."""
        if not self._mute:
            self._waiting += command
            self.charge(len(command))
            self._ready.set()

    def charge(self, size: int) -> None:
        """Hold so many bytes more, or less. This may end the link that holds the most, which may be this one."""
        self.held += size
        self._owner.held_bytes += size
        if size > 0 and self._owner.held_bytes > self._limits.all_bytes:
            self._owner.make_room()

    def wait_for_room(self, most: int, timeout: float | None) -> bool:
        """Wait until at most ``most`` bytes are queued, or the connection is gone; ``False`` after ``timeout``."""
        deadline = None if timeout is None else monotonic() + timeout
        while self.queued_bytes > most and not self._mute:
            remaining = None if deadline is None else deadline - monotonic()
            if remaining is not None and remaining <= 0:
                return False
            self._moved.clear()
            self._moved.wait(remaining)
        return True

    def _write(self) -> None:
        while True:
            if not self._waiting:
                self.slow = False
                self._ready.clear()
                self._ready.wait()
            out, self._waiting = self._waiting, bytearray()
            count, self._waiting_count = self._waiting_count, 0
            self._sending, self._sending_count = len(out), count
            self._progress = monotonic()
            try:
                self._send(memoryview(out))
            except OSError as error:
                # The other end reads nothing more. It may have sent messages before, so the reader goes on.
                self._fall_silent()
                if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                    self._end(f"send: {error.strerror or error}", violation=False)
                return
            self.sent += count
            self._sending_count = 0

    def _send(self, view: memoryview) -> None:
        piece = _SEND_BYTES
        at, end = 0, len(view)
        while at < end and not self._mute:
            sent = self._socket.send(view[at : at + piece])
            if self._mute:
                return  # it was closed meanwhile, and nothing is charged any more
            at += sent
            self._sending -= sent
            self.charge(-sent)
            self._progress = monotonic()
            if not self._moved.is_set():
                self._moved.set()
            if at < end:
                let_others_run()  # also while the other end takes all at once

    def _fall_silent(self) -> None:
        """Stop sending, and release the reserved bytes."""
        self._mute = True
        self.charge(-self.queued_bytes)
        self.lost += self.queued
        self._waiting = bytearray()
        self._waiting_count = self._sending = self._sending_count = 0
        self._moved.set()

    # -- receiving ----------------------------------------------------------------------------------

    def _read(self) -> None:
        receive, buffer, parser = self._socket.recv_into, self._owner.buffer, self._parser
        try:
            while not self.closed:
                size = receive(buffer)
                # No other greenlet runs between the receive and this copy, so all links share one receive buffer.
                before = parser.pending
                commands = parser.feed(bytes(buffer[:size])) if size else None
                if commands is None:
                    parser.finish()
                    self._end("closed", violation=False)
                    return
                self._note_progress(bool(commands))
                self.charge(parser.pending - before)
                self._act(commands)
                let_others_run()
        except FramingError as error:
            try:
                self._act(error.commands)
            except FramingError as earlier:
                error = earlier
            self._end(error.reason, violation=True)
        except OSError as error:
            self._end(f"receive: {error.strerror or error}", violation=False)

    def _note_progress(self, completed: bool) -> None:
        if not self._parser.pending:
            self._since = None
        elif completed or self._since is None:
            self._since = monotonic()

    def _act(self, commands: Sequence[Command]) -> None:
        """Hand commands over in order, messages in runs for the same receivers."""
        owner = self._owner
        run: list[Publish] = []
        receivers: tuple[PeerReceiver, ...] | None = ()
        name = None

        until = monotonic() + _TURN_SECONDS
        for command in commands:
            if type(command) is Publish:
                if command.name is not name:
                    if monotonic() > until:
                        self._hand_over(run, receivers)
                        run, until = [], self._pause(len(commands))
                        if self.closed:
                            return
                    name = command.name
                    interested = owner.receivers_of(name)
                    if interested != receivers:
                        self._hand_over(run, receivers)
                        run, receivers = [], interested
                run.append(command)
                continue

            # A subscription: what came before it is handed over first.
            self._hand_over(run, receivers)
            run, receivers, name = [], (), None
            if not isinstance(command, Publish):
                owner.take_command(self, command)
            if monotonic() > until:
                until = self._pause(len(commands))
                if self.closed:
                    return
        self._hand_over(run, receivers)

    def _pause(self, commands: int) -> float:
        """Let others run while so many commands are held. Returns when the next turn has to end, by the clock."""
        held = 0 if self.closed else commands * _COMMAND_BYTES
        self.charge(held)  # which may end this link
        let_others_run()
        if not self.closed:
            self.charge(-held)
        return monotonic() + _TURN_SECONDS

    def _hand_over(self, run: list[Publish], receivers: tuple[PeerReceiver, ...] | None) -> None:
        self.received += len(run)
        if receivers is None:
            for message in run:
                self._owner.take_forwarded(self, message)
            return
        if not receivers:
            self.unwanted += len(run)
        elif run:
            for receiver in receivers:
                receiver.take(run, self)

    # -- the end ------------------------------------------------------------------------------------

    def overdue(self, now: float) -> str | None:
        """Reason why the other end is too slow; ``None`` if it is not."""
        if self._since is not None and now - self._since > self._limits.command_seconds:
            return "command not finished in time"
        if self._sending and now - self._progress > self._limits.stall_seconds:
            return "takes nothing"
        return None

    def _end(self, reason: str, violation: bool) -> None:
        if not self.closed:
            self._owner.end_link(self, reason, violation)

    def close(self) -> None:
        """Close the socket, at once. For the peer, which forgets the link first."""
        if self.closed:
            return
        self.closed = True
        self._fall_silent()
        self.charge(-self.held)
        # The mesh remembers this link for a while. It must not keep the received bytes with it.
        self._parser = CommandParser(self._limits)
        self._socket.close()  # which wakes the reader
        if self._writer is not None and self._writer is not gevent.getcurrent():
            self._writer.kill(block=False)

    def shut_down(self) -> None:
        """Send an end of stream, after all that was sent."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
