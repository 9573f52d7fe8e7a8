"""Senders behind a link, and messages that come with them.

A message from a link never bears the credentials of the link itself: the hub at its other end names the sender, and
where it names none, the sender is *unknown*. A child may only name senders below its
own credential key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from ..core.batch_routing import take_batch
from ..core.messages import Single
from ..core.outbound import Outbound
from ..core.protocols import Pausable, Receiver, Sender
from ..core.publisher import Publisher
from ..errors import PacketError
from ..limits import PACKET_BYTES
from ..reasons import Reason
from ..secrets import UNKNOWN, Credentials, Namespace
from ..wire import control
from ..wire.batches import BATCH
from ..wire.packets import MSG

_KEYS: Final = 8
"""Keys that a link has had, under as many prefixes of its hub, by which it may still name senders: when a parent
joins another, packets from just before are still on their way."""


class ForgedError(PacketError):
    """A link names a sender that is not below it."""


class RemoteSender:
    """A sender behind a link, named by the hub at its other end. Implements :class:`~sbuslib.core.protocols.Sender`.

    :param credentials: of the link, which is all that the kernel guarantees.
    :param rest: the part that the hub at the other end adds to the credential key of the link.
    :param namespace: of this hub, where that is a child; ``None``: the key is ``rest`` alone.
    :param relay: the publisher that a receiver may pause for it; ``None``: none, since others are behind a link.
    """

    __slots__ = ("_namespace", "_prefix", "_relay", "_wrapper", "credentials", "rest")

    def __init__(
        self, credentials: Credentials, rest: bytes, namespace: Namespace | None = None, relay: Publisher | None = None
    ) -> None:
        self._namespace = namespace
        self._relay = relay
        self.rest = rest
        self._prefix: bytes | None = None  # of the hub, when the wrapper was made; None: it has to be made
        self._wrapper = b""
        self.credentials = credentials

    @property
    def key(self) -> bytes:
        """Its credential key. It follows the prefix of this hub, so it may change while a message waits."""
        if self._namespace is None:
            return self.rest
        return self._namespace.credential_key(self.credentials) + self.rest

    @property
    def wrapper(self) -> bytes:
        """The bytes before its packets, for a receiver that asked for senders."""
        prefix = self._namespace.prefix if self._namespace is not None else b""
        if prefix is not self._prefix:
            self._wrapper, self._prefix = control.wrapper_from(self.key), prefix
        return self._wrapper

    def holdable_by(self, receiver: Receiver) -> Pausable | None:
        """The relay, where it is served as a client: other links are never held back."""
        return self._relay.holdable_by(receiver) if self._relay is not None else None


class ChildSenders:
    """The senders behind the relay of one child, as that hub may name them."""

    def __init__(self, outbound: Outbound, namespace: Namespace) -> None:
        self._outbound = outbound  # of the relay
        self._namespace = namespace  # of this hub
        self._keys = deque([outbound.key], maxlen=_KEYS)  # of the relay, that of now first
        #: Whether the kernel does not know who the relay is. Then the child has no prefix, and names as a root does.
        self._is_stranger = None in outbound.credentials.known()

    def prefix_changed(self) -> None:
        """This hub's own prefix changed, and with it the key of the relay."""
        self._keys.appendleft(self._outbound.key)

    @property
    def unknown(self) -> bytes:
        """The credential key of somebody there whom nobody names: that of no process, user and group."""
        namespace, key = self._namespace, self._outbound.key
        return key + namespace.separator + Namespace(namespace.separator).credential_key(UNKNOWN)

    def remote_sender(self, name: bytes, relay: Publisher | None = None) -> RemoteSender:
        """The sender of a name. Raises :exc:`ForgedError` and :exc:`~sbuslib.errors.PacketError`.

        :param relay: what a receiver may hold back for it.
        """
        namespace, outbound = self._namespace, self._outbound
        separator = namespace.separator
        if self._is_stranger:
            rest = separator + name
        else:
            own = next((key for key in self._keys if name.startswith(key + separator)), None)
            rest = name[len(own) :] if own is not None else b""
        if not namespace.chain(rest[1:]):
            raise ForgedError(Reason.FORGED_SENDER)
        # As a whole, too: what this hub sends on has to be a key for the parent, which would end the link to it.
        if not namespace.chain(outbound.key + rest):
            raise PacketError(Reason.MALFORMED_SENDER)
        return RemoteSender(outbound.credentials, rest, namespace, relay)


def take_wrapped(publisher: Publisher, payload: bytes, sender_of: Callable[[bytes], Sender]) -> None:
    """Hand on the message, or the batch, of a ``from`` that came over a link, with its sender.

    :param sender_of: who it is that the other end calls so. May raise :exc:`~sbuslib.errors.PacketError`, as this does.
    """
    name, packet = control.unwrap_from(payload)
    is_batch = packet.startswith(BATCH) and publisher.batches
    header = packet[: packet.find(b"\0") + 1]
    if not is_batch and (not header.startswith(MSG) or len(packet) > PACKET_BYTES):
        raise PacketError(Reason.NO_MESSAGE_INSIDE)

    sender = sender_of(name)
    if is_batch:
        take_batch(publisher, packet, sender, control.wrapper_from(name))
    elif publisher.knows_allowed(header) or publisher.may_publish(header):
        receivers = publisher.routes.get(header) or publisher.look_up(header)
        publisher.deliver(receivers, sender, Single(packet))
