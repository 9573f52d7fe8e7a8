"""Trees of hubs in this process, whose clients and links all look like processes of their own."""

from __future__ import annotations

import contextlib
import os
from itertools import count, pairwise
from typing import Any

import msgspec
from support import PATIENCE, WHOAMI, FakeHub, Peer

from sbuslib import Client, Hub, Limits, Relay
from sbuslib.secrets import Credentials
from sbuslib.wire.packets import Message

# Those that bound a wait for others are long: on a busy machine nothing is slow but what never comes.
FAST = Limits(settle=0.001, link_pause=0.001, link_pause_most=0.01, sync_wait=10.0)


STRANGER, RELAY, OTHER = 12_345, 54_321, 23_456
"""Users other than that of the hubs. The tests that need it trust ``RELAY`` as a relay."""

FEATURES = b"CMSG hub/features\0hub/sync interest/on id=1 path=1"
OWN = WHOAMI + b"\0!/cred/1/2/3"
"""What a fake hub answers to a relay: what it knows, and the credential key of the relay's link."""


class World:
    """Makes hubs, relays and clients by name. The kernel's word about each connection is made up: another pid each."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.hubs: dict[str, Hub] = {}
        self.relays: dict[str, Relay] = {}
        self.uids: dict[str, int] = {}
        self._pids = count(1_000)
        self._stack = contextlib.ExitStack()

    def credentials(self, sock: Any) -> Credentials:
        """What is put in place of the kernel's word: ``uids`` says by the name of the hub, for those yet to come."""
        name = os.path.basename(sock.getsockname())
        return Credentials(gid=os.getgid(), uid=self.uids.get(name, os.getuid()), pid=next(self._pids))

    def address(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def hub(self, name: str, **options: Any) -> Hub:
        """A hub that is started; in place of one of this name that was stopped."""
        hub = self.hubs[name] = Hub(self.address(name), **{"limits": FAST, **options})
        hub.start()
        return hub

    def relay(self, slave: str, *masters: str, wait: bool = True, **options: Any) -> Relay:
        relay = self.relays[slave] = Relay(self.hubs[slave], [self.address(name) for name in masters], **options)
        relay.start()
        if wait:
            relay.wait(PATIENCE)
        return relay

    def chain(self, *names: str) -> None:
        """Hubs, each below the one before."""
        for name in names:
            self.hub(name)
        for parent, below in pairwise(names):
            self.relay(below, parent)

    def client(self, name: str, **options: Any) -> Client:
        return self._stack.enter_context(Client(self.address(name), **options))

    def peer(self, name: str) -> Peer:
        return self._stack.enter_context(Peer(self.address(name)))

    def peer_of(self, name: str, uid: int) -> Peer:
        """A raw connection of another user, greeted by the hub."""
        before = self.uids.copy()
        self.uids[name] = uid
        peer = self.peer(name)
        peer.barrier()
        self.uids.clear()
        self.uids.update(before)
        return peer

    def link(self, name: str, uid: int | None = None) -> Peer:
        """A raw link from below, of the hub's own user unless another is given, which was told how it is served."""
        peer = self.peer(name) if uid is None else self.peer_of(name, uid)
        peer.send(b"CMSG interest/on")
        assert served(peer) == (b"announce" if uid is None else b"prune")
        return peer

    def is_at(self, name: str) -> bool:
        """Whether the relay of ``left`` has joined the hub of this name."""
        statistics = self.relays["left"].statistics()
        return statistics.state == "joined" and statistics.address == self.address(name)

    def close(self) -> None:
        self._stack.close()
        for relay in self.relays.values():
            relay.stop()
        for hub in self.hubs.values():
            hub.stop(0)


def key_of(client: Client) -> bytes:
    return client.hub.whoami()


def settle(*clients: Client) -> None:
    for client in clients:
        assert client.sync("tree") == "tree"


def received(client: Client) -> list[Message]:
    """What has come until now."""
    client.sync()
    found = []
    while client._connection.session.inbox:
        found.append(client.receive(timeout=0))
    return found


def join(world: World, parent: FakeHub, **limits: Any) -> Peer:
    """Have the hub ``left`` join a fake hub at ``top``. Returns the fake hub's end of the link."""
    world.hub("left", limits=msgspec.structs.replace(FAST, prefix_wait=0.001, **limits))
    relay = world.relay("left", "top", wait=False)
    link = parent.accept()
    greet_relay(link)
    link.send(b"CMSG interest/complete")
    relay.wait(PATIENCE)
    return link


def served(link: Peer) -> bytes:
    """The answer to ``interest/on``: in which mode a raw link is served. Senders are asked for before."""
    assert link.receive() == b"CMSG senders/on\0"
    answer, mode = link.receive().split(b"\0")
    assert answer == b"CMSG interest/on"
    return mode


def greet_relay(link: Peer) -> None:
    """Have a fake hub, which knows relays, tell one that it is served in mode ``announce``."""
    link.send(FEATURES, OWN)
    while not link.receive().startswith(b"CMSG interest/on\0"):
        pass
    link.send(b"CMSG interest/on\0announce")
    while not (packet := link.receive()).startswith(b"CMSG hub/sync\0root\0"):
        pass
    link.send(FEATURES, packet)


def receive_until(peer: Peer, start: bytes) -> bytes:
    """The next packet that starts so; those before are dropped."""
    while not (packet := peer.receive()).startswith(start):
        assert packet, "disconnected"
    return packet


def key_of_link(link: Peer) -> bytes:
    """The credential key of a raw link. All packets that were sent before are acted on."""
    link.send(WHOAMI)
    while not (packet := link.receive()).startswith(WHOAMI):
        pass
    return packet.split(b"\0")[1]
