"""What a hub says of itself: frozen values, one instant each."""

from __future__ import annotations

import msgspec

__all__ = ["HubStatistics"]


class HubStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One hub at one instant.

    ``clients`` and ``patterns`` are current (``clients_peak`` the most there were, ``clients_total`` all there ever
    were); ``received`` counts messages published, the embedder's included, ``delivered`` the copies handed to the
    kernel or to the embedder, ``queued`` those that wait, ``lost`` those that a full queue or a
    vanished receiver cost. ``breaches`` counts what clients did wrong, by reason, and ``ignored`` the control messages
    and unsubscriptions that meant nothing here.
    """

    clients: int
    clients_peak: int
    clients_total: int
    patterns: int
    received: int
    delivered: int
    queued: int
    lost: int
    ignored: int
    breaches: dict[str, int]
