"""Daemons to measure over the sbus protocol: hubs, hubs joined by a relay, another daemon, the forwarder."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..blocking import Client
from ..errors import AddressError, StateError
from ..kernel.peers import peer_credentials
from ..kernel.sockets import connect, wait
from ..limits import ClientLimits
from ..wire.addresses import AbstractAddress, DescriptorAddress, PathAddress, parse_address
from ..wire.packets import encode_control, encode_subscribe

_PATTERNS_A_CLIENT = 10_000
_PATIENCE = 60.0
_ANSWER_BYTES = 4_096


class Daemon:
    """A daemon, or two hubs that a relay joins. Receivers connect to ``address``, publishers to ``below``."""

    def __init__(self, address: str, pids: list[int], below: str | None = None) -> None:
        self.address = address
        #: The publishers' address, which may be a child hub's.
        self.below = below if below is not None else address
        self.pids = pids

    def offers(self, feature: bytes) -> bool:
        """Return whether the daemon has a feature. Raises the errors of a client."""
        with Client(self.address, timeout=_PATIENCE) as client:
            return client.hub.features is not None and feature in client.hub.features.words

    def options(self) -> list[str]:
        """Return the options of the load generator for this daemon."""
        where = ["-a", self.below]
        if self.below != self.address:
            where += ["-b", self.address]
        return [*where, "-P", ",".join(map(str, self.pids))]


@contextmanager
def _program(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process. It is ready when it has printed a line, or has closed its standard output."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        try:
            process.stdout.readline()
            if process.poll() is not None:
                raise StateError(f"{command[0]} ended with status {process.returncode}")
            yield process
        finally:
            process.terminate()
            process.wait()


@contextmanager
def hub(address: str) -> Iterator[Daemon]:
    """Start a hub in a process of its own."""
    with _program(sys.executable, "-m", "sbuslib", "hub", "-a", address) as process:
        yield Daemon(address, [process.pid])


@contextmanager
def relayed(above: str, below: str) -> Iterator[Daemon]:
    """Start two hubs that a relay joins. Publishers connect to the lower hub, receivers to the upper one."""
    relay = (sys.executable, "-m", "sbuslib.cli.relay", "--upstream", above, "--listen", below)
    with hub(above) as master, _program(*relay) as slave:
        with Client(above) as here, Client(below) as there:
            end = time.monotonic() + _PATIENCE
            while there.hub.whoami().count(b"!/cred/") < 2 or here.sync("tree") != "tree":
                if time.monotonic() > end:
                    raise StateError("the relay did not join")
                time.sleep(0.01)
        yield Daemon(above, [*master.pids, slave.pid], below)


@contextmanager
def forwarder(program: Path, address: str, *, deal: bool = False) -> Iterator[Daemon]:
    """Start the C forwarder; with ``deal``, each packet goes to one receiver."""
    with _program(str(program), address, *["deal"] * deal) as process:
        yield Daemon(address, [process.pid])


def other(address: str) -> Daemon:
    """Return a daemon that runs already. Raises :exc:`OSError`, and :exc:`~sbuslib.errors.AddressError`."""
    sock = _dial(address)
    try:
        return Daemon(address, [peer_credentials(sock).pid])
    finally:
        sock.close()


def path_of(address: str) -> PathAddress | AbstractAddress:
    """Parse an address. Raises :exc:`~sbuslib.errors.AddressError`."""
    parsed = parse_address(address)
    if isinstance(parsed, DescriptorAddress):
        raise AddressError(f"{address}: a descriptor is no place to connect to")
    return parsed


def _dial(address: str) -> socket.SocketType:
    to = path_of(address)
    while True:
        try:
            return connect(to, ClientLimits().send_buffer)
        except BlockingIOError:
            time.sleep(0.001)  # its listen backlog is full


@contextmanager
def idle_clients(address: str, count: int) -> Iterator[None]:
    """Connect ``count`` clients. Each subscribes to a pattern, and then stays idle."""
    socks: list[socket.SocketType] = []
    try:
        for number in range(count):
            sock = _dial(address)
            socks.append(sock)
            sock.send(encode_subscribe(b"idle/%d" % number))
        for sock in socks:
            sock.send(encode_control(b"!/cred/whoami"))
            if not wait(sock, select.POLLIN, _PATIENCE) or not sock.recv(_ANSWER_BYTES):
                raise StateError("the daemon does not take so many clients")
        yield
    finally:
        for sock in socks:
            sock.close()


@contextmanager
def idle_patterns(address: str, count: int) -> Iterator[None]:
    """Subscribe a few clients to ``count`` patterns of several forms, which match no published message."""
    clients: list[Client] = []
    try:
        for start in range(0, count, _PATTERNS_A_CLIENT):
            client = Client(address, timeout=_PATIENCE)
            clients.append(client)
            forms = (b"host/%d/*/load", b"host/%d/disk/0", b"service/%d/", b"v%d*/state")
            client.subscribe(*(forms[n % 4] % (n // 4) for n in range(start, min(start + _PATTERNS_A_CLIENT, count))))
        yield
    finally:
        for client in clients:
            client.close()
