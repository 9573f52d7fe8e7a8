"""The bus of a gateway: a hub of this process, or a client's connection. Both have the same few methods."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from ..client import Client
from ..clients.channel import run
from ..hub import Hub
from ..matcher import SEPARATOR
from ..wire.packets import Message

__all__ = ["Bus", "join", "separator_of"]

logger = logging.getLogger("sbuslib")

_BATCH = 256  # messages that are taken at once


class Bus(Protocol):
    """The part of a bus that a gateway needs."""

    identity: str
    """The same for all clients of one bus, and different for each bus."""

    def receive(self) -> list[Message]:
        """Wait for a message. Returns it, and more that are here already."""
        ...

    def publish(self, messages: list[tuple[bytes, bytes]]) -> None:
        """Publish pairs of key and payload; may wait for the hub."""
        ...

    def close(self) -> None:
        """Receive no more."""
        ...


class _HubBus:
    def __init__(self, hub: Hub, patterns: Sequence[bytes]) -> None:
        self._hub = hub
        self.identity = hub.tree.path[-1].decode()  # a tree of hubs is one bus: its root names it
        self._inbox = hub.subscribe(*patterns)

    def receive(self) -> list[Message]:
        inbox = self._inbox
        messages = [inbox.receive()]
        while len(inbox) and len(messages) < _BATCH:
            messages.append(inbox.receive())
        return messages

    def publish(self, messages: list[tuple[bytes, bytes]]) -> None:
        for key, payload in messages:
            self._hub.publish(key, payload)

    def close(self) -> None:
        self._inbox.close()


class _ClientBus:
    def __init__(self, client: Client, patterns: Sequence[bytes]) -> None:
        self._client = client
        self._patterns = patterns
        features = client.features
        if features is not None:
            self.identity = (features.path or (features.hub_id,))[-1].decode()
        else:  # the daemon tells no id: its address on this machine is used
            place = f"{socket.gethostname()} {client.address}"
            self.identity = blake2b(place.encode(), digest_size=8).hexdigest()
        run(client._core.tell_senders())
        if not client.senders:
            logger.debug("gateway: the hub at %s tells no senders", client.address)
        client.subscribe(*patterns)

    def receive(self) -> list[Message]:
        return self._client.receive_many(most=_BATCH)

    def publish(self, messages: list[tuple[bytes, bytes]]) -> None:
        self._client.publish_many(messages)

    def close(self) -> None:
        if not self._client.closed:
            self._client.unsubscribe(*self._patterns)


def join(given: Hub | Client, patterns: Sequence[bytes]) -> Bus:
    """Subscribe to ``patterns``. Raises as :meth:`Hub.subscribe` and :meth:`Client.subscribe`."""
    return _HubBus(given, patterns) if isinstance(given, Hub) else _ClientBus(given, patterns)


def separator_of(given: Hub | Client) -> tuple[bytes, bool]:
    """The separator of the keys on a bus, and whether that is certain.

    A hub that knows no features, such as the C daemon, tells no separator; and a client that reconnects may find
    another hub at the same address.
    """
    if isinstance(given, Hub):
        return given.context.router.namespace.separator, True
    features = given.features
    return (SEPARATOR, False) if features is None else (features.separator, not given.reconnects)
