"""What one tenant can try against another on the bus of the machine, with the rules that are shipped, as real users."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.conftest import Start
from support import PATIENCE, WHOAMI

from sbuslib.blocking import Client
from sbuslib.cli.hub import read_unit

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

ANN, BOB = "daemon", "bin"
"""Two users that every machine has."""
REFUSED = "refused"


@pytest.fixture
def master(start: Start, folder: str, path: str) -> Iterator[Client]:
    """A client of root's of a hub with the rules that are shipped, at :func:`path`."""
    os.chmod(folder, 0o755)
    file = Path(folder, "sbus.toml")
    file.write_text(read_unit("sbus.toml", "").replace('# relays = ["@sbus-tenants"]', f'relays = ["{ANN}", "{BOB}"]'))
    process = start("sbuslib.cli.daemon", "-f", "-o", "-a", path, "--config", str(file))
    process.stdout.read()
    with Client(path) as client:
        yield client


def as_user(name: str, path: str, packets: list[bytes]) -> list[bytes]:
    """What a user's client receives that sends some packets, then asks who it is, and stays for a moment more.

    The last one is ``b""`` if the hub closed the connection.
    """
    user = pwd.getpwnam(name)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock, os.fdopen(writer, "wb") as pipe:
                sock.settimeout(PATIENCE)
                sock.connect(path)
                for packet in received(sock, packets):
                    pipe.write(packet + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = pipe.read().split(b"\n")[:-1]
    os.waitpid(child, 0)
    return found


def received(sock: socket.socket, packets: list[bytes]) -> Iterator[bytes]:
    with contextlib.suppress(ConnectionError):
        for packet in [*packets, WHOAMI]:
            sock.sendmsg([packet])
    while True:
        try:
            packet = sock.recv(1_000)
        except ConnectionResetError:  # once, before what waits
            continue
        if packet.startswith(WHOAMI):
            return
        yield packet
        if not packet:
            return


FORBIDDEN = [
    b"SUB ",
    b"SUB tenants/",
    b"SUB tenants/*/",
    b"SUB tenants/bin/",
    b"SUB tenants/daem*/",
    b"SUB *",
    b"SUB */*",
    b"SUB !/cred//2//x",
    b"MSG host/reboot\0now",
    b"MSG tenants/bin/status\0in another's name",
    b"MSG tenants/daemon\0beside its own space",
    b"MSG anything\0",
]


def test_a_client_is_disconnected_for_what_belongs_to_others(master: Client, path: str) -> None:
    master.subscribe(b"")
    for packet in FORBIDDEN:
        packets = as_user(ANN, path, [b"CMSG notices/on", packet])
        assert packets[-1] == b"", packet
        assert packets[-2].startswith(b"CMSG notice/kicked\0"), packet
    master.publish(b"end")
    assert master.receive(timeout=PATIENCE).key == b"end", "nothing was delivered"


def test_a_client_may_do_what_is_its_own(master: Client, path: str) -> None:
    master.subscribe(b"")
    own = [b"tenants/daemon/status", b"public/x"]
    packets = [b"SUB " + pattern for pattern in (b"tenants/daemon/", b"public/", b"host/*")]
    assert as_user(ANN, path, [*packets, *(b"MSG %b\0" % key for key in own)]) == [b"MSG %b\0" % key for key in own]
    assert [master.receive(timeout=PATIENCE).key for _ in own] == own


def test_a_relay_gets_nothing_of_others_and_its_messages_in_their_name_are_dropped(master: Client, path: str) -> None:
    master.subscribe(b"")
    tries = [b"SUB ", b"SUB tenants/*/", b"SUB tenants/bin/", b"MSG host/reboot\0", b"MSG tenants/bin/status\0"]
    # Root's words come back to the link, as they would if others had published them.
    packets = as_user(ANN, path, [b"CMSG interest/on", *tries, b"MSG tenants/daemon/mine\0", b"MSG tenants/bin/x\0"])
    assert packets[0] == b"CMSG interest/on\0prune"
    assert b"" not in packets, "it stays"
    assert not [packet for packet in packets if b"bin" in packet or b"reboot" in packet]
    assert master.receive(timeout=PATIENCE).key == b"tenants/daemon/mine"
    statistics = master.hub.statistics()
    assert statistics.dropped["publishing refused"] == 3
    assert statistics.dropped["subscription refused"] == 1, "of the other patterns it gets a part"
    master.publish(b"end")
    assert master.receive(timeout=PATIENCE).key == b"end"
