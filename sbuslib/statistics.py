"""What a hub says of itself: frozen values, one instant each."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from .errors import PeerError, StateError

__all__ = ["ClientStatistics", "HubStatistics", "RelayStatistics", "UserStatistics", "decode_statistics"]

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A count that fits 64 bits: checked where a hub's answer is read."""


class ClientStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One client, or one inbox of the embedder.

    ``received`` counts the messages that it published. Of those routed to it, each is ``delivered`` (handed
    to the kernel), ``queued``, or ``lost``, by cause; the three add up to ``routed``.
    """

    credentials: str
    patterns: Count
    received: Count
    routed: Count
    delivered: Count
    queued: Count
    queued_peak: Count
    lost: dict[str, Count]
    soft: str
    hard: str
    order: str


class UserStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What one user's clients hold: patterns and the bytes they are charged for, packets and bytes in queues, and
    bytes of send buffers in the kernel."""

    uid: Count
    connections: Count
    patterns: Count
    pattern_bytes: Count
    queued_packets: Count
    queued_bytes: Count
    buffer_bytes: Count


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
    clients: Count
    clients_peak: Count
    clients_total: Count
    patterns: Count
    received: Count
    routed: Count
    delivered: Count
    queued: Count
    lost: dict[str, Count]
    ignored: Count
    breaches: dict[str, Count]
    dropped: dict[str, Count]
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
    """Read a hub's answer to ``hub/statistics``.

    Raises :exc:`~sbuslib.errors.StateError` for a refusal, and :exc:`~sbuslib.errors.PeerError` for what no hub says.
    """
    if not encoded:
        raise StateError(f"{address}: the hub gives its statistics to trusted users only")
    try:
        return msgspec.json.decode(encoded, type=HubStatistics)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"{address}: the hub sent statistics that cannot be read: {error}") from None
