"""The exception tree: who erred decides the branch.

::

    SbusError
    ├── UsageError (ValueError)             our caller erred; nothing was sent
    │   ├── AddressError                    an address that cannot be one
    │   ├── KeyFormatError                  a key or pattern with NUL, too long, or reserved
    │   └── PayloadError                    a payload that does not fit its topic or the packet
    ├── StateError (RuntimeError)           our caller erred; not now, not from this thread or process
    ├── PeerError                           the other end erred
    │   ├── PacketError                     a packet of no known form
    │   │   └── ReservedKeyError            a use of the reserved token ``!`` that is not allowed
    │   └── HubIdentityError                the hub does not run as the user that was asked for
    ├── AddressInUseError (OSError)         something already stands at the address
    ├── NoHubError (ConnectionError)        nobody listens at any of the addresses tried
    └── DisconnectedError (ConnectionError) the other end is gone

A wait that takes too long raises the built-in :exc:`TimeoutError`. A bug of ours shows as
:exc:`AssertionError` and is never caught.
"""

from __future__ import annotations

__all__ = [
    "AddressError",
    "AddressInUseError",
    "DisconnectedError",
    "HubIdentityError",
    "KeyFormatError",
    "NoHubError",
    "PacketError",
    "PayloadError",
    "PeerError",
    "ReservedKeyError",
    "SbusError",
    "StateError",
    "UsageError",
]


class SbusError(Exception):
    """Everything that this library raises on purpose, but for :exc:`TimeoutError`."""


class UsageError(SbusError, ValueError):
    """An argument is wrong; the message says which and why."""


class AddressError(UsageError):
    """The text is no address that the grammar of :mod:`sbuslib.addresses` knows."""


class KeyFormatError(UsageError):
    """A routing key or pattern holds a NUL byte, is longer than the limits allow, or is not ours to use."""


class PayloadError(UsageError):
    """A payload is too long for one packet, or does not have the type that its topic promises."""


class StateError(SbusError, RuntimeError):
    """The object cannot do this now, or not from this thread or process."""


class PeerError(SbusError):
    """The other end broke the protocol."""


class PacketError(PeerError):
    """A packet of no known form. ``reason`` is one of the words that the hub counts by."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ReservedKeyError(PacketError):
    """The reserved token ``!`` stands where it may not, or names somebody else."""


class HubIdentityError(PeerError):
    """The hub runs as another user than the one that the client insists on."""


class AddressInUseError(SbusError, OSError):
    """Something already stands at the address that a hub was to listen on."""


class NoHubError(SbusError, ConnectionError):
    """No hub listens at any address tried; the message lists them with the reason for each."""


class DisconnectedError(SbusError, ConnectionError):
    """The connection is gone: the hub stopped, or let this client go."""
