"""Keys under which this package itself speaks: its gateways, queues, recordings, alerts and backends. Pure.

They are one list, since nothing under them may be imported from another bus or a broker: whoever publishes there would
speak with the credentials of a gateway or bridge, and be believed.
"""

from __future__ import annotations

from typing import Final

CONTROL: Final = b"sbus/gateway"
"""Control key of all gateways and bridges of one bus, whatever its separator."""

LOST: Final = b"sbus/bridge/lost"
"""Key of a bridge's loss notices on its bus, whatever its separator: ``<cause> <count> <since>``, as in
``notice/lost``."""

LAST: Final = (b"sbus", b"last")
"""The first segments of the keys under which last values are requested."""

QUEUE: Final = b"queue"
"""The first segment of the keys of shared queues."""

JOURNAL: Final = b"journal"
"""The first segment of the key under which a recorder says that it has ended, unless it was given another."""

ALERTS: Final = b"alerts"
"""The first segment of the keys under which alerts are published."""

KOMBU: Final = b"kombu"
"""The first segment of the keys of Celery, and of whatever else uses kombu."""

SOCKETIO: Final = "socketio"
"""What the keys of Socket.IO begin with; a slash follows, whatever the bus's separator."""

ASGI: Final = "asgi"
"""What the keys of Django Channels begin with, unless a layer was given another prefix; a slash follows likewise."""

_WITH_SLASH: Final = (b"sbus/", *(f"{name}/".encode() for name in (SOCKETIO, ASGI)))

_FORMS: Final = (
    (b"sbus", b""),
    (QUEUE, b"services"),
    (QUEUE, b"*", b"work"),
    (QUEUE, b"*", b"submit"),
    (JOURNAL, b"stopped"),
    (ALERTS, b""),
    (KOMBU, b""),
)


def own_patterns(separator: bytes) -> tuple[bytes, ...]:
    """Return patterns of all these keys on a bus with this separator, but for those that have a slash on every bus."""
    return tuple(map(separator.join, _FORMS))


def has_own_beginning(key: bytes) -> bool:
    """Whether a key or pattern begins as one of these keys does on every bus, whatever its separator."""
    return key.startswith(_WITH_SLASH)
