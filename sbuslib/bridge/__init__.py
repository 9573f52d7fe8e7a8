"""Bridges: join a bus to a NATS, MQTT or Redis server that others run.

Names are loaded when they are first used: :class:`AioBridge` needs no gevent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import load_lazily

if TYPE_CHECKING:
    from ..federation.membership import BridgeStatistics as BridgeStatistics
    from .bridge import AioBridge as AioBridge
    from .broker import BrokerOptions as BrokerOptions
    from .threaded import Bridge as Bridge

_HOMES = {"AioBridge": "bridge", "Bridge": "threaded", "BridgeStatistics": "bridge", "BrokerOptions": "broker"}

__all__ = [*_HOMES]

__getattr__, __dir__ = load_lazily(__name__, _HOMES)
