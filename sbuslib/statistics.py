"""What a hub says of itself: frozen values, one instant each."""

from __future__ import annotations

import msgspec

from .errors import StateError

__all__ = ["ClientStatistics", "HubStatistics", "RelayStatistics", "UserStatistics", "decode_statistics"]


class ClientStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One client, or one inbox of the embedder.

    ``received`` counts the messages that it published. Of those routed to it, each is ``delivered`` (handed
    to the kernel), ``queued``, or ``lost``, by cause; the three add up to ``routed``.
    """

    credentials: str
    patterns: int
    received: int
    routed: int
    delivered: int
    queued: int
    queued_peak: int
    lost: dict[str, int]
    soft: str
    hard: str
    order: str


class UserStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What one user's clients hold: patterns and the bytes they are charged for, packets and bytes in queues, and
    bytes of send buffers in the kernel."""

    uid: int
    connections: int
    patterns: int
    pattern_bytes: int
    queued_packets: int
    queued_bytes: int
    buffer_bytes: int


class HubStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One hub at one instant.

    ``clients`` and ``patterns`` are current (``clients_peak`` the most there were, ``clients_total`` all there
    ever were); ``received`` counts messages published, the embedder's included, ``routed`` what they came to
    when each was counted once for each of its receivers. That is always the sum of ``delivered`` (handed to the
    kernel or to the embedder), ``queued`` and the values of ``lost``, by cause. ``breaches`` counts what clients did
    wrong, by reason, and ``ignored`` the control messages and unsubscriptions that meant nothing here. ``dropped``
    counts packets that relays of other hubs should not have sent, by reason; those are not let go for them.
    """

    hub_id: str
    address: str
    clients: int
    clients_peak: int
    clients_total: int
    patterns: int
    received: int
    routed: int
    delivered: int
    queued: int
    lost: dict[str, int]
    ignored: int
    breaches: dict[str, int]
    dropped: dict[str, int]
    per_client: tuple[ClientStatistics, ...]
    per_user: tuple[UserStatistics, ...]


class RelayStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A relay at one instant; counts are since it was made.

    ``state`` is one of :data:`sbuslib.tree.above.STATES`, ``epoch`` counts the times that it joined, ``mode`` is how
    the hub above serves it (``announce``, ``prune`` or ``plain``). ``interest_up`` is how many patterns it holds there,
    ``interest_down`` how many the hub above announced, ``pruned`` how many keys it said that nobody wants. Of the
    messages published here, ``suppressed`` never went up as nobody above wants them. The others were ``forwarded``
    (handed to the kernel), are ``buffered`` (of ``buffered_bytes``), or were ``lost``. Of those forwarded,
    ``uncertain`` were sent on a link that broke before they were acknowledged. ``received`` came from above,
    ``lost_above`` is what the hub above lost because this one was slow to read, and ``dropped`` counts what should
    not have come, by reason.
    """

    state: str
    upstream: str
    epoch: int
    mode: str
    prefix: str
    path: tuple[str, ...]
    interest_up: int
    interest_down: int
    pruned: int
    forwarded: int
    suppressed: int
    buffered: int
    buffered_bytes: int
    lost: int
    uncertain: int
    received: int
    lost_above: int
    dropped: dict[str, int]


def decode_statistics(encoded: bytes | None, address: str) -> HubStatistics:
    """Read a hub's answer to ``hub/statistics``. Raises :exc:`~sbuslib.errors.StateError` for a refusal."""
    if not encoded:
        raise StateError(f"{address}: the hub gives its statistics to trusted users only")
    return msgspec.json.decode(encoded, type=HubStatistics)
