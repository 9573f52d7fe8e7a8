"""The envelope in which Spark may publish: an id ahead of the payload, by which a subscriber drops what comes twice.

A payload in an envelope is the id, a NUL byte, and the payload. Spark publishes at least once: a task that fails
half-way is run again. What it publishes again has the id that it had before.
"""

from __future__ import annotations

from ..errors import UsageError

__all__ = ["seal", "unseal"]


def seal(id: bytes, payload: bytes) -> bytes:
    """The envelope. Raises :exc:`~sbuslib.errors.UsageError` for an id that is empty or has a NUL byte."""
    if not id or b"\0" in id:
        raise UsageError(f"the id of an envelope is not empty and has no NUL byte: {id[:80]!r}")
    return b"%b\0%b" % (id, payload)


def unseal(envelope: bytes) -> tuple[bytes, bytes]:
    """Id and payload. Raises :exc:`~sbuslib.errors.UsageError` where there is no envelope."""
    id, nul, payload = envelope.partition(b"\0")
    if not id or not nul:
        raise UsageError("this payload is in no envelope")
    return id, payload
