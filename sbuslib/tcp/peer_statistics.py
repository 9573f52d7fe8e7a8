"""The statistics of a peer."""

from __future__ import annotations

import msgspec


class PeerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One peer at one instant.

    ``published`` counts messages of this end; ``received`` all messages that came, ``unwanted`` those of them without a
    receiver at this end, ``forwarded`` those passed on as copies, ``repeated`` and ``hop_limit`` those not passed on
    because they were duplicates or had passed too many peers. ``sent`` and ``lost`` count copies by connection.
    ``violations`` counts violations of other peers, by reason.
    """

    links: int
    links_total: int
    substrings: int
    published: int
    received: int
    unwanted: int
    forwarded: int
    repeated: int
    hop_limit: int
    sent: int
    lost: int
    waiting_bytes: int
    ignored: int
    violations: dict[str, int]
