"""Which functions a client calls for which messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..matcher import Subscriptions
from ..secrets import RESERVED
from ..wire.packets import Message

__all__ = ["Callback", "Callbacks"]

Callback = Callable[[Message], object]


class Callbacks:
    """Callbacks by pattern.

    As on the hub, no wildcard reaches a secret key: a callback for everything is not called for secret messages.
    """

    def __init__(self, separator: bytes) -> None:
        self._reserved = RESERVED + separator
        self._plain: Subscriptions[Callback] = Subscriptions(separator)
        self._secret: Subscriptions[Callback] = Subscriptions(separator)

    def _for(self, key: bytes) -> Subscriptions[Callback]:
        """The callbacks of secret patterns, or of all others: those that a key or pattern concerns."""
        return self._secret if key.startswith(self._reserved) else self._plain

    def add(self, pattern: bytes, callback: Callback) -> None:
        """Have ``callback`` called for what matches ``pattern``."""
        self._for(pattern).add(pattern, callback)

    def remove(self, pattern: bytes) -> None:
        """Forget all callbacks of this pattern."""
        callbacks = self._for(pattern)
        for callback in list(callbacks.holders(pattern)):
            while callbacks.remove(pattern, callback) is False:
                pass

    def rename(self, old: bytes, new: bytes) -> None:
        """A secret pattern has another name, since the client has new credentials."""
        for callback in list(self._secret.holders(old)):
            while self._secret.remove(old, callback) is not None:
                self._secret.add(new, callback)

    def of(self, key: bytes) -> Iterator[Callback]:
        """The callbacks for a message with this key, each once."""
        yield from self._for(key).subscribers(key)
