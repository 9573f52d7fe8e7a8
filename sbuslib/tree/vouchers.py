"""Senders behind a link between two hubs, as the hub at the other end of the link names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..core.protocols import Holdable, Receiver
from ..secrets import Credentials
from ..wire import control

__all__ = ["Voucher", "Vouchers"]

_REMEMBERED: Final = 4_096
"""Senders behind one link that are remembered. When one more comes, all are forgotten, and made again as they come."""


class Voucher:
    """Somebody behind a link, as the hub at its other end says. Implements :class:`~sbuslib.core.protocols.Sender`."""

    __slots__ = ("_rest", "_through", "credentials")

    def __init__(self, through: Callable[[], bytes], credentials: Credentials, rest: bytes) -> None:
        self._through = through
        self._rest = rest
        self.credentials = credentials
        """Of the link, which is all that the kernel vouches for."""

    @property
    def key(self) -> bytes:
        """Its credential key: the link's, which is the kernel's word, and what the link adds to it."""
        return self._through() + self._rest

    @property
    def wrapper(self) -> bytes:
        """What goes before its packets on the way to a receiver that asked for senders."""
        return control.wrapper_from(self.key)

    def holdable_by(self, receiver: Receiver) -> Holdable | None:
        """Nothing: a link is never held back, since others are behind it."""
        return None


class Vouchers:
    """The senders behind one link.

    :param make: makes one from what the hub at the other end calls it. It may raise
        :exc:`~sbuslib.errors.PacketError`.
    """

    def __init__(self, make: Callable[[bytes], Voucher]) -> None:
        self._make = make
        self._known: dict[bytes, Voucher] = {}

    def of(self, name: bytes) -> Voucher:
        """The sender of this name."""
        voucher = self._known.get(name)
        if voucher is None:
            voucher = self._make(name)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[name] = voucher
        return voucher

    def clear(self) -> None:
        """Forget all: they may have other names now."""
        self._known.clear()
