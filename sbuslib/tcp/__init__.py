"""Simplest pubsub over TCP: peers that publish and subscribe to each other, and the gateway for buses.

Names are loaded when they are first used, so that :mod:`sbuslib.tcp.framing` alone pulls in neither
gevent nor sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import load_lazily

if TYPE_CHECKING:
    from .certificates import TLS as TLS
    from .discovery import Discovery as Discovery
    from .framing import Publish as Publish
    from .gateway import Gateway as Gateway
    from .limits import TcpLimits as TcpLimits
    from .peer import Peer as Peer

_HOMES = {
    "TLS": "certificates",
    "Discovery": "discovery",
    "Gateway": "gateway",
    "Peer": "peer",
    "Publish": "framing",
    "TcpLimits": "limits",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = load_lazily(__name__, _HOMES)
