"""Names of the bus for queues and exchanges of kombu, which may have any text for names.

A shared queue is ``kombu.NAME``, and the bindings of an exchange are in the queue ``kombu.=EXCHANGE``. A queue that a
process keeps has the key ``kombu/queue/NAME``. A message for an exchange has the key ``kombu/exchange/NAME``, then each
word of the routing key, then ``=``: so one pattern covers all of an exchange, or all routing keys that begin with some
words.
"""

from __future__ import annotations

from urllib.parse import quote


def _segment(text: str, separator: bytes) -> bytes:
    """Return any text as one segment of a key."""
    mark = separator.decode("latin-1")
    quoted = quote(text, safe="@") or "%"  # which leaves letters, digits, and some of what may separate
    return (quoted.replace(mark, f"%{ord(mark):02X}") if mark in "._-~@" else quoted).encode()


def queue_name(name: str, separator: bytes) -> bytes:
    """Return the shared queue for a queue."""
    return _segment(f"kombu.{name}", separator)


def bindings_name(exchange: str, separator: bytes) -> bytes:
    """Return the shared queue that has the bindings of an exchange to shared queues."""
    return b"kombu.=" + _segment(exchange, separator)


def queue_key(name: str, separator: bytes) -> bytes:
    """Return the key of a queue that processes keep."""
    return separator.join((b"kombu", b"queue", _segment(name, separator)))


def _exchange(name: str, separator: bytes) -> list[bytes]:
    return [b"kombu", b"exchange", _segment(name, separator)]


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
