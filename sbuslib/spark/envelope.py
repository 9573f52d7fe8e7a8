"""The envelope in which Spark may publish: an id before the payload, by which a subscriber drops duplicates.

An envelope is the id, a NUL byte, and the payload. Spark publishes at least once, as a task that fails half-way is run
again. A message that is published again has the same id.
"""

from __future__ import annotations

from ..errors import UsageError

__all__ = ["seal", "unseal"]


def seal(id: bytes, payload: bytes) -> bytes:
    """Put a payload into an envelope.

    Raises :exc:`~sbuslib.errors.UsageError` for an id that is empty or has a NUL byte.
    """
    if not id or b"\0" in id:
        raise UsageError(f"the id of an envelope is not empty and has no NUL byte: {id[:80]!r}")
    return b"%b\0%b" % (id, payload)


def unseal(envelope: bytes) -> tuple[bytes, bytes]:
    """The id and the payload in an envelope. Raises :exc:`~sbuslib.errors.UsageError` for other payloads."""
    id, nul, payload = envelope.partition(b"\0")
    if not id or not nul:
        raise UsageError("this payload is in no envelope")
    return id, payload
