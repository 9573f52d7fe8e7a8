"""Names of the bus for queues and exchanges of kombu, which may have any text for names.

A shared queue is ``kombu.NAME``, and the bindings of an exchange are in the queue ``kombu.=EXCHANGE``. A queue that a
process keeps has the key ``kombu/queue/NAME``. A message for an exchange has the key ``kombu/exchange/NAME``, then each
word of the routing key, then ``=``: so one pattern covers all of an exchange, or all routing keys that begin with some
words.

Letters of any script stand for themselves, in UTF-8; what separates or means something is ``%XX``. The name of a shared
queue that would be too long ends in ``=`` and a digest of it.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from string import ascii_letters, digits
from typing import Final

from ..clients.recipes.queue import LONGEST_NAME
from ..keys.own_keys import KOMBU

_PLAIN: Final = frozenset((ascii_letters + digits + "_.-~@").encode()) | frozenset(range(0x80, 0x100))
"""Bytes that stand for themselves, unless one of them separates."""
_LONGEST: Final = LONGEST_NAME - len("-dead")
"""Bytes of the name of a shared queue, so that its dead queue has a name of its own."""


@lru_cache(maxsize=1_024)
def _segment(text: str, separator: bytes) -> bytes:
    """Return any text as one segment of a key."""
    plain = _PLAIN.difference(separator)
    return b"".join(b"%c" % byte if byte in plain else b"%%%02X" % byte for byte in text.encode()) or b"%"


def _shared(name: bytes) -> bytes:
    """Return a name for a shared queue, as it is unless it is too long."""
    if len(name) <= _LONGEST:
        return name
    digest = b"=" + blake2b(name, digest_size=16).hexdigest().encode()
    return name[: _LONGEST - len(digest)] + digest


def queue_name(name: str, separator: bytes) -> bytes:
    """Return the shared queue for a queue."""
    return _shared(_segment(f"kombu.{name}", separator))


def bindings_name(exchange: str, separator: bytes) -> bytes:
    """Return the shared queue that has the bindings of an exchange to shared queues."""
    return _shared(_segment("kombu.", separator) + b"=" + _segment(exchange, separator))


def queue_key(name: str, separator: bytes) -> bytes:
    """Return the key of a queue that processes keep."""
    return separator.join((KOMBU, b"queue", _segment(name, separator)))


def _exchange(name: str, separator: bytes) -> list[bytes]:
    return [KOMBU, b"exchange", _segment(name, separator)]


def exchange_key(exchange: str, routing_key: str, separator: bytes) -> bytes:
    """Return the key of messages for an exchange."""
    words = [_segment(word, separator) for word in routing_key.split(".")]
    return separator.join((*_exchange(exchange, separator), *words, b"="))


def exchange_pattern(exchange: str, kind: str, routing_key: str, separator: bytes) -> bytes:
    """Return a pattern for all keys of a binding with this routing key, and maybe more."""
    if kind == "direct":
        return exchange_key(exchange, routing_key, separator)
    words = []
    if kind == "topic":
        for word in routing_key.split("."):
            if word in ("*", "#"):
                break
            words.append(_segment(word, separator))
        else:
            return exchange_key(exchange, routing_key, separator)
    return separator.join((*_exchange(exchange, separator), *words, b""))
