"""A hostile tenant beside an honest one: two real users, the shipped rules, and all that the hostile one tries.

``docs/security.md`` lists the attempts. Each of them fails.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from accounting import acting_as
from support import PATIENCE, ROOT, Peer
from worlds import key_of_link, served

from sbuslib.blocking import Client
from sbuslib.cli.hub import read_unit
from sbuslib.tree.tree import LINKS_OF_A_USER
from sbuslib.wire.control import Notice

HOSTILE, HONEST = "daemon", "bin"
"""Two users that every system has."""

SETTINGS = f"""
mode = 0o777
relays = ["{HOSTILE}", "{HONEST}"]
"""
"""What the operator of a host sets beside the rules that come with the units."""

# A tenant's hub and relay. All is loaded, by use, before it becomes the tenant, who may not be allowed to read it.
BUS = """
import os, signal, sys
import gevent
from sbuslib import Hub, Relay
uid, gid, address, upstream, user = sys.argv[1:]
with Hub(address + "-unused") as hub, Relay(hub, upstream=address + "-none"):
    gevent.sleep(0.01)
os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid))
hub = Hub(address)
gevent.signal_handler(signal.SIGTERM, hub.stop)
with hub, Relay(hub, upstream=upstream, import_=[b"host/"], export=[b"tenants/%b/" % user.encode()]):
    os.close(1)
    hub.serve_forever()
"""

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as two users")


class Host:
    """A hub of root's with rules, and the tenants that connect to it."""

    def __init__(self, folder: str, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.path = os.path.join(folder, "bus")
        self._stack = stack
        os.chmod(folder, 0o755)
        with open(os.path.join(folder, "sbus.toml"), "w") as file:
            file.write(SETTINGS + read_unit("sbus.toml", ""))
        self._start("-m", "sbuslib.cli.daemon", "-f", "-a", self.path, "--config", file.name)

    def _start(self, *command: str) -> None:
        """Start a program, and return when it listens: it closes its standard output then."""
        process = subprocess.Popen(
            [sys.executable, *command], env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
        )
        self._stack.enter_context(process)
        self._stack.callback(process.terminate)
        assert process.stdout is not None
        process.stdout.read()

    def client(self, user: str, address: str | None = None, **options: Any) -> Client:
        with self._as(user):
            return self._stack.enter_context(Client(address or self.path, timeout=PATIENCE, **options))

    def peer(self, user: str = HOSTILE) -> Peer:
        with self._as(user):
            return self._stack.enter_context(Peer(self.path))

    def link(self) -> Peer:
        """The hostile tenant's connection as a relay, past its greeting."""
        peer = self.peer()
        peer.send(b"CMSG interest/on")
        assert served(peer) == b"prune"
        return peer

    def bus_of(self, user: str) -> str:
        """A tenant's own bus below, which is joined: where it listens."""
        entry = pwd.getpwnam(user)
        folder = os.path.join(self.folder, user)
        os.mkdir(folder)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        address = os.path.join(folder, "bus")
        self._start("-c", BUS, str(entry.pw_uid), str(entry.pw_gid), address, self.path, user)
        with self._as(user), Client(address, timeout=PATIENCE) as client:
            assert client.hub.whoami().count(b"!/cred/") == 2
            assert client.sync("tree") == "tree"
        return address

    @staticmethod
    def _as(user: str) -> contextlib.AbstractContextManager[None]:
        entry = pwd.getpwnam(user)
        return acting_as(entry.pw_uid, entry.pw_gid) if entry.pw_uid else contextlib.nullcontext()


@pytest.fixture
def host(folder: str) -> Iterator[Host]:
    with contextlib.ExitStack() as stack:
        yield Host(folder, stack)


def test_honest_tenants_and_the_host_speak_with_each_other(host: Host) -> None:
    """So that what fails below fails for its reason."""
    operator = host.client("root")
    operator.subscribe(b"tenants/")
    tenant = host.client(HONEST, host.bus_of(HONEST))
    tenant.subscribe(b"host/")
    assert tenant.sync("tree") == "tree"
    operator.publish(b"host/reboot", b"at noon")
    assert tenant.receive(timeout=PATIENCE).key == b"host/reboot"
    tenant.publish(b"tenants/bin/status", b"fine")
    assert operator.receive(timeout=PATIENCE).key == b"tenants/bin/status"
    client = host.client(HONEST)
    client.subscribe(b"public/")
    client.publish(b"public/x")
    assert client.receive(timeout=PATIENCE).key == b"public/x"


def test_it_cannot_make_the_sync_of_others_late_or_partial(host: Host) -> None:
    link = host.link()
    honest, operator = host.client(HONEST), host.client("root")
    for client in (honest, operator, honest, operator):
        answer = client.sync("tree")
        assert answer == "tree"
        assert answer.trusted_only
    assert not [packet for packet in link.pending() if packet.startswith(b"CMSG interest/sync")], "it is not asked"


def test_it_cannot_tell_others_of_losses_that_were_none(host: Host) -> None:
    heard: list[Notice] = []
    below = host.client(HONEST, host.bus_of(HONEST), on_notice=heard.append)
    honest = host.client(HONEST, on_notice=heard.append)
    link = host.link()
    for cause in (b"upstream", b"uncertain", b"overflow"):
        link.send(b"CMSG interest/lost\0hub %b 0 0 1000 1.0" % cause)
    link.barrier()
    for client in (below, honest):
        client.sync("tree")
    assert not heard
    dropped = host.client("root").hub.statistics().dropped
    assert dropped == {"notice of losses by a link that is not trusted": 3}


def test_it_cannot_open_thousands_of_links(host: Host) -> None:
    links = [host.link() for _ in range(LINKS_OF_A_USER)]
    for _ in range(20):
        refused = host.peer()
        refused.send(b"CMSG notices/on", b"CMSG interest/on")
        assert refused.receive() == b"CMSG notice/kicked\0too many links"
        assert refused.is_disconnected()
    operator = host.client("root")
    assert len(operator.hub.links()) == len(links)
    assert operator.hub.statistics().violations == {"too many links": 20}
    host.bus_of(HONEST)  # another tenant still joins


def test_it_cannot_find_out_what_its_neighbour_subscribes_to(host: Host) -> None:
    link, honest = host.link(), host.client(HONEST)
    own, guessed = b"tenants/daemon/status", b"tenants/bin/status"
    for key in (own, guessed, b"host/reboot", b"elsewhere"):
        link.publish(key)
    said = link.pending()
    assert b"CMSG interest/prune\0" + own in said, "it is told of its own keys"
    honest.subscribe(guessed).unsubscribe()
    honest.subscribe(guessed)
    host.client("root").subscribe(own, b"elsewhere")
    while b"CMSG interest/graft\0" + own not in said:
        said += link.pending()
    link.publish(guessed)
    said += link.pending()
    told = [packet for packet in said if packet.startswith((b"CMSG interest/prune", b"CMSG interest/graft"))]
    assert {packet.partition(b"\0")[2] for packet in told} == {own}


def test_it_cannot_read_what_its_neighbour_publishes(host: Host) -> None:
    link = host.link()
    for pattern in (b"", b"*", b"*/", b"*/*", b"tenants/", b"tenants/*/", b"tenants/bin/", b"tenants/bi*/plan"):
        client = host.peer()
        client.send(b"CMSG notices/on", b"SUB " + pattern)
        assert client.receive() == b"CMSG notice/kicked\0subscription refused"
        link.subscribe(pattern)
    host.client(HONEST).publish(b"tenants/bin/plan", b"which nobody else may know")
    operator = host.client("root")
    operator.publish(b"tenants/daemon/news")
    operator.sync("tree")
    packets = link.pending()
    assert b"MSG tenants/daemon/news\0" in packets
    assert not [packet for packet in packets if b"tenants/bin" in packet]


def test_it_cannot_speak_as_the_host_or_its_neighbour(host: Host) -> None:
    operator = host.client("root")
    operator.subscribe(b"")
    below = host.client(HONEST, host.bus_of(HONEST))
    below.subscribe(b"host/", b"tenants/bin/")
    assert below.sync("tree") == "tree"
    link = host.link()
    own = key_of_link(link)
    for key in (b"host/reboot", b"tenants/bin/status", b"tenants/daemon", b"elsewhere"):
        client, forger = host.peer(), host.link()
        link.publish(key, b"as a relay")
        link.send(b"CMSG from\0%b/!/cred/2/2/7\0MSG %b\0as a client of its own" % (own, key))
        link.barrier()
        client.send(b"CMSG notices/on", b"MSG %b\0as a client" % key)
        assert client.receive() == b"CMSG notice/kicked\0publishing refused"
        forger.send(b"CMSG from\0!/cred/0/0/1\0MSG %b\0as root" % key)
        assert not [packet for packet in iter(forger.receive, b"") if b"as root" in packet], "it is disconnected"
    for cursor in (operator, below):
        cursor.sync("tree")
        with pytest.raises(TimeoutError):
            cursor.receive(timeout=0)
