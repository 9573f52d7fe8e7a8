"""Tree of exceptions. Its branches show whose error it was.

::

    SbusError
    ├── UsageError (ValueError)             the caller made an error; nothing was sent
    │   ├── AddressError                    an address that cannot be one
    │   ├── KeyFormatError                  a key or pattern with NUL, too long, or reserved
    │   ├── NameFormatError                 a name or substring that Simplest pubsub cannot carry
    │   └── PayloadError                    a payload that does not fit its topic or the packet
    ├── StateError (RuntimeError)           the caller made an error: not now, or not from here
    ├── PeerError                           the other end made an error
    │   ├── DescriptorError                 a frame, file or descriptor that cannot be had
    │   ├── FramingError                    bytes that are no command of Simplest pubsub
    │   ├── PacketError                     a packet of no known form
    │   │   └── ReservedKeyError            a use of the reserved token ``!`` that is not allowed
    │   └── HubIdentityError                the hub does not run as the user that was asked for
    ├── JournalError                        a journal that cannot be read or written
    │   ├── CorruptJournalError             bytes of a segment differ from those written
    │   └── JournalInUseError               another recorder or consumer is at work
    ├── RefusedError                        the hub refused a subscription; the client has all others
    ├── NoServerError                       no server for a request
    ├── ReplyError                          a server replied that it failed
    ├── ServiceError                        a service ended because of a bug of ours, which is its cause
    ├── AddressInUseError (OSError)         the address is in use
    ├── NoHubError (ConnectionError)        nobody listens at any of the addresses tried
    └── DisconnectedError (ConnectionError) the other end is gone

A wait that takes too long raises the built-in :exc:`TimeoutError`. A bug of ours shows as :exc:`AssertionError` or
another exception of Python. It is caught in one place, where a greenlet of a service ends
(:mod:`sbuslib.core.supervision`): it ends the service, and callers that wait for its end get a :exc:`ServiceError`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the typing module takes longer to load than this one
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .reasons import Reason  # a command that only publishes does not load it

__all__ = [
    "AddressError",
    "AddressInUseError",
    "CorruptJournalError",
    "DescriptorError",
    "DisconnectedError",
    "FramingError",
    "HubIdentityError",
    "JournalError",
    "JournalInUseError",
    "KeyFormatError",
    "NameFormatError",
    "NoHubError",
    "NoServerError",
    "PacketError",
    "PayloadError",
    "PeerError",
    "RefusedError",
    "ReplyError",
    "ReservedKeyError",
    "SbusError",
    "ServiceError",
    "StateError",
    "UsageError",
]


class SbusError(Exception):
    """Base of all exceptions that this library raises on purpose, except :exc:`TimeoutError`."""


class UsageError(SbusError, ValueError):
    """An argument is wrong; the message names it and the reason."""


class AddressError(UsageError):
    """The text is no address that the grammar of :mod:`sbuslib.wire.addresses` knows."""


class KeyFormatError(UsageError):
    """A routing key or pattern holds a NUL byte, is longer than the limits allow, or is not ours to use."""


class NameFormatError(UsageError):
    """A name or substring of Simplest pubsub that holds a space, CR or LF, is no UTF-8, or is too long."""


class PayloadError(UsageError):
    """A payload is too long for one packet, or does not have the type that its topic promises."""


class StateError(SbusError, RuntimeError):
    """The object cannot do this now, or not from this thread or process."""


class PeerError(SbusError):
    """The other end broke the protocol."""


class PacketError(PeerError):
    """A packet of no known form. ``reason`` is counted by the hub, ``key`` the key or pattern that was refused."""

    def __init__(self, reason: Reason, key: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.key = key


class DescriptorError(PeerError):
    """An offer of the bus cannot be fetched at its descriptor store, or the descriptor differs from the offer.

    ``reason`` is the word under which the loss is counted; it has no text of the sender.
    """

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(text or reason)
        self.reason = reason


class FramingError(PeerError):
    """Bytes that are no command of Simplest pubsub. ``reason`` is the word under which it is counted; it has no text of
    the sender.

    ``commands`` are those that came whole before the fault in the same piece: they are valid.
    """

    def __init__(self, reason: str, commands: Sequence[Any] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.commands = commands


class ReservedKeyError(PacketError):
    """The reserved token ``!`` is used where it may not be, or names another client."""


class HubIdentityError(PeerError):
    """The hub runs as another user than the one that the client insists on."""


class JournalError(SbusError):
    """A journal cannot be read or written; the message names it and the reason."""


class CorruptJournalError(JournalError):
    """Bytes of a segment differ from those written: at byte ``position`` of the file ``path``, for ``reason``."""

    def __init__(self, reason: str, position: int, path: str = "") -> None:
        super().__init__(reason, position, path)
        self.reason = reason
        self.position = position
        self.path = path

    def __str__(self) -> str:
        return f"{self.path or 'journal'}: byte {self.position}: {self.reason}"


class JournalInUseError(JournalError):
    """Another recorder is at work in the directory, or another consumer has this name."""


class ServiceError(SbusError):
    """A service ended because of an unexpected error in one of its greenlets; the message names both."""


class RefusedError(SbusError):
    """The hub refused a subscription: the rules forbid it, or its user may hold no more patterns.

    ``reason`` is the hub's, one of :class:`~sbuslib.reasons.Reason` unless the hub is of another release.
    """

    def __init__(self, text: str, reason: str | None = None) -> None:
        super().__init__(text)
        self.reason = reason


class NoServerError(SbusError):
    """No server subscribes to the key of the request."""


class ReplyError(SbusError):
    """A server took a request and failed; the message is the server's."""


class AddressInUseError(SbusError, OSError):
    """The address that a hub was to listen on is in use."""


class NoHubError(SbusError, ConnectionError):
    """No hub listens at any address tried; the message lists them with the reason for each, and gives advice."""

    is_advised = False
    """Whether it has the advice: a client adds that when it gives up."""


class DisconnectedError(SbusError, ConnectionError):
    """The connection is gone: the hub stopped, or closed it, for ``reason`` as in :class:`RefusedError`."""

    def __init__(self, text: str, reason: str | None = None) -> None:
        super().__init__(text)
        self.reason = reason
