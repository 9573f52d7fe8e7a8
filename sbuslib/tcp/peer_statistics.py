"""The statistics of a peer and a gateway: frozen values, one instant each."""

from __future__ import annotations

import msgspec

__all__ = ["GatewayStatistics", "PeerStatistics"]


class PeerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One peer at one instant.

    ``published`` counts what this end published; ``received`` all messages that came, ``unwanted`` those of them that
    no receiver here subscribed to, ``forwarded`` those passed on as copies, ``repeated`` and ``hop_limit`` those not
    passed on because they had been here or had passed too many peers. ``sent`` and ``lost`` count copies by
    connection. ``violations`` counts violations of other peers, by reason.
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


class GatewayStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway at one instant.

    ``exported`` counts what was handed to the peer, ``imported`` what was published on the bus, ``refused`` what does
    not cross, by reason, and ``lost`` what a full queue or a vanished bus cost.
    """

    exported: int
    imported: int
    lost: int
    refused: dict[str, int]
