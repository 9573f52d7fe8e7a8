"""The bus of a gateway, of which it is always a client."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from hashlib import blake2b

from ..client import Client
from ..clients.channel import run
from ..errors import StateError
from ..hub import Hub
from ..matcher import SEPARATOR
from ..wire.packets import Message

__all__ = ["Bus", "separator_of"]

logger = logging.getLogger("sbuslib")

_BATCH = 256  # messages that are taken at once


class Bus:
    """The client by which a gateway is on its bus. Raises as :class:`Client`, and as ``subscribe`` does.

    :param given: a client that nothing else uses, or a hub, for which one is made.
    """

    def __init__(self, given: Hub | Client, patterns: Sequence[bytes]) -> None:
        if isinstance(given, Hub) and not given.started:
            raise StateError("start the hub of the gateway first")
        self._own = Client(given.address) if isinstance(given, Hub) else None
        client = given if isinstance(given, Client) else self._own
        assert client is not None
        self._client = client
        self._patterns = patterns
        features = client.features
        if features is not None:  # a tree of hubs is one bus: its root names it
            self.identity = (features.path or (features.hub_id,))[-1].decode()
        else:  # the daemon tells no id: its address on this machine is used
            place = f"{socket.gethostname()} {client.address}"
            self.identity = blake2b(place.encode(), digest_size=8).hexdigest()
        run(client._core.tell_senders())
        if not client.senders:
            logger.debug("gateway: the hub at %s tells no senders", client.address)
        client.subscribe(*patterns)

    def receive(self) -> list[Message]:
        """Wait for a message. Returns it, and more that are here already."""
        return self._client.receive_many(most=_BATCH)

    def publish(self, messages: list[tuple[bytes, bytes]]) -> None:
        """Publish pairs of key and payload; may wait for the hub."""
        self._client.publish_many(messages)

    def close(self) -> None:
        """Receive no more."""
        if self._own is not None:
            self._own.close()
        elif not self._client.closed:
            self._client.unsubscribe(*self._patterns)


def separator_of(given: Hub | Client) -> tuple[bytes, bool]:
    """The separator of the keys on a bus, and whether that is certain.

    A hub that knows no features, such as the C daemon, tells no separator; and a client that reconnects may find
    another hub at the same address.
    """
    if isinstance(given, Hub):
        return given.context.router.namespace.separator, True
    features = given.features
    return (SEPARATOR, False) if features is None else (features.separator, not given.reconnects)
