"""``Limits`` and ``ClientLimits``: the numbers that an operator may set, each with the reason for its default.

Numbers that only tune the machine are constants beside the code that uses them. The site makes its tables of limits
from the docstrings here.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final, overload

import msgspec

from .errors import UsageError

__all__ = [
    "BATCH_EXPANDED",
    "BATCH_KEYS",
    "BATCH_MESSAGES",
    "BATCH_MOST",
    "CONTROL_EXTRA",
    "KNOWN_KEYS",
    "KNOWN_KEY_BYTES",
    "PACKET_BYTES",
    "ClientLimits",
    "Limits",
]

# Both ends of every connection rely on these, so nobody can set them.

PACKET_BYTES: Final = 409_600
"""Longest packet of the protocol, in bytes: the C implementation receives into a buffer of this size."""

CONTROL_EXTRA: Final = 4_096
"""How much longer than :data:`PACKET_BYTES` a hub's own control packet may be, in bytes. So a message of full length
fits into a control packet that names its sender."""

BATCH_MESSAGES: Final = 4_096
"""Most messages in one packet of ``batch/on``. A larger batch would save nothing more, and a hub handles one of this
size in a turn like any other."""

BATCH_KEYS: Final = 256
"""Most distinct keys in one packet of ``batch/on``. Each key may have to be looked up, which takes longer than handing
a message over."""

BATCH_EXPANDED: Final = 4 * PACKET_BYTES
"""Most bytes that the messages of one packet of ``batch/on`` may have as packets of their own. A long key is written
once in the batch, and then stands before each of its messages: without a bound, 400 KB could become 400 MB."""

# These only tune, and are used in more than one folder.

BATCH_MOST: Final = 1_024
"""Most packets that one system call takes: ``UIO_MAXIOV`` of Linux."""

KNOWN_KEYS: Final = 1_024
"""Keys that a client remembers as checked: more than most programs publish under."""

KNOWN_KEY_BYTES: Final = 256
"""Longest key that a client remembers, in bytes. Longer keys are rare, and many of them would take much memory."""


CENTURY: Final = 36_525 * 86_400.0
"""Seconds of the longest wait: no event loop and no lock counts to infinity."""


class _Numbers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A struct whose fields are all positive numbers."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            # The type of the default decides: counts are whole numbers, times need not be.
            whole = isinstance(field.default, int)
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise UsageError(f"{type(self).__name__}.{field.name} is a {'whole ' * whole}number, not {value!r}")
            if not 0 < value < inf:
                raise UsageError(f"{type(self).__name__}.{field.name} is positive and finite, not {value!r}")
            if not whole and value > CENTURY:
                raise UsageError(f"{type(self).__name__}.{field.name} is at most a century, not {value!r} seconds")
            if field.name == "batch" and value > BATCH_MOST:
                raise UsageError(f"{type(self).__name__}.batch is at most {BATCH_MOST}, not {value!r}")


class Limits(_Numbers, frozen=True, kw_only=True):
    """Limits of a hub. Immutable; derive another with ``msgspec.structs.replace``.

    Raises :exc:`~sbuslib.errors.UsageError` when a number is not positive.
    """

    # -- patterns ---------------------------------------------------------------------------------------------------
    pattern_bytes: int = 4_096
    """Longest pattern, in bytes. Real keys are far shorter."""
    pattern_segments: int = 128
    """Most segments of a pattern. Each may be a node of the index, so a segment costs more than a byte."""
    user_patterns: int = 262_144
    """Distinct patterns that all clients of one user may hold. The relay of a busy host needs many."""
    user_pattern_bytes: int = 16 * 1024 * 1024
    """Bytes of those patterns, and of the information of presences. The index takes some ten times as much memory."""
    user_pattern_steps: int = 1_024
    """Steps that all patterns of one user may add to the look-up of one key: a third of a millisecond. room/*/x takes 2
    steps, and shares them with all patterns that differ from it in words alone."""

    # -- memory of keys ---------------------------------------------------------------------------------------------
    cached_keys: int = 16_384
    """Keys whose receivers are remembered. A remembered key needs no search of the index."""
    cached_receivers: int = 4_194_304
    """Receivers that the remembered keys may have together, at 8 bytes each."""
    allowed_bytes: int = 64 * 1024 * 1024
    """Bytes of keys that are remembered as allowed by authorize=. Shared out among users: one alone may have half."""

    # -- turns ------------------------------------------------------------------------------------------------------
    batch: int = 64
    """Packets taken from one client in one turn. More gains nothing."""
    turn_deliveries: int = 4_096
    """Deliveries (packets times receivers) after which the turn of a publisher ends, to go on later."""
    turn_time: float = 0.002
    """Seconds after which a turn ends, between two receivers or two keys that are looked up: all others wait for it."""

    # -- queues -----------------------------------------------------------------------------------------------------
    queued_packets: int = 65_536
    """Packets that may wait for one slow receiver, before new ones are lost."""
    queued_bytes: int = 16 * 1024 * 1024
    """Bytes that may wait for one slow receiver: some forty packets of full length."""
    user_queued_packets: int = 262_144
    """Packets that may wait for all clients of one user. Shared out among their senders: one alone may have half."""
    user_queued_bytes: int = 128 * 1024 * 1024
    """Bytes that may wait for all clients of one user, shared out in the same way."""
    queued_answers: int = 1_024
    """Answers to control packets that may wait for one client. One that asks for more is disconnected."""
    block_timeout: float = 30.0
    """Seconds for which a receiver in block mode may hold publishers back. One that has made no room by then is
    disconnected."""

    # -- messages to many clients of one user -----------------------------------------------------------------------
    fanout: int = 8
    """A message from another user to this many clients of one user, or more, goes into the fan-out queue of that user.
    Otherwise its publisher would have to wait for as many system calls."""
    fanout_packets: int = 65_536
    """Packets that may wait in one fan-out queue. Shared out among their senders: one alone may have half."""
    fanout_bytes: int = 32 * 1024 * 1024
    """Bytes that may wait in one fan-out queue, shared out in the same way."""

    # -- connections ------------------------------------------------------------------------------------------------
    user_connections: int = 16_384
    """Connections that one user may have, if its share of the descriptors is not less. The hub's own user and root may
    have more. Each costs 2 KiB in the hub, and up to 32 KiB in the kernel if the client does not read."""
    spare_descriptors: int = 64
    """Descriptors of the process (of its RLIMIT_NOFILE) that clients may not use up: the application needs some."""
    backlog: int = 256
    """Connections that may wait to be accepted, of all users together. The kernel caps it at net.core.somaxconn."""
    idle_send_buffer: int = 8_192
    """Send buffer of each new connection, in bytes, which the kernel doubles. Small: it is charged to no user."""
    send_buffer: int = PACKET_BYTES + 4 * CONTROL_EXTRA
    """Send buffer of a client that falls behind or is sent a longer packet, in bytes: room for the longest packet. The
    kernel doubles it, and caps it at net.core.wmem_max."""
    send_buffers: int = 1024 * 1024 * 1024
    """Bytes that all these larger send buffers may have together. Shared out among users: one alone may have half.
    Unread messages take memory of the hub."""
    logged_violations: int = 1_024
    """Kinds of violation (reason and user) that are remembered as logged. More are only counted."""

    # -- trees of hubs ----------------------------------------------------------------------------------------------
    prefix_wait: float = 3.0
    """Seconds after the start of a relay for which a whoami waits for the prefix of this hub's credential keys. A hub
    that is there answers in milliseconds."""
    settle: float = 0.5
    """Seconds without a new link after which a hub that was started reports to its children that it knows all interest.
    For links that are missing it waits up to ten times as long."""
    sync_wait: float = 2.0
    """Seconds for which a hub/sync of the whole tree waits for other hubs, before it is answered as partial."""
    link_wait: float = 10.0
    """Seconds within which a parent has to answer while a relay joins or leaves it."""
    link_pause: float = 0.05
    """Shortest pause before a relay joins again, in seconds. The next one is drawn at random, and may be longer."""
    link_pause_most: float = 5.0
    """Longest pause before a relay joins again, in seconds. A link that lasts for so long is stable."""
    link_buffer: int = 16 * 1024 * 1024
    """Bytes kept for the parent while it is away or slow: as many as for a slow receiver."""
    link_packets: int = 262_144
    """Packets kept for the parent while it is away or slow. Even an empty packet takes memory."""
    link_notices: float = 1.0
    """Seconds between two reports of losses by a hub. One notice goes to many clients."""
    link_patterns: int = 65_536
    """Patterns announced over a link, before they are replaced by the empty one. A hub with more
    than 16 links announces fewer to each."""
    pruned_keys: int = 4_096
    """Keys that are pruned on a link of another user. A new key takes the place of the oldest."""
    path_hubs: int = 16
    """Hubs on the path from a hub to the root of its tree, both included. A deeper tree is a mistake."""


class ClientLimits(_Numbers, frozen=True, kw_only=True):
    """Limits of a client. Immutable, as :class:`Limits`."""

    batch: int = 64
    """Packets received or sent with one system call. More gains nothing."""
    batch_messages: int = 1_024
    """Messages put into one packet, for a hub that takes batches. More gains little."""
    batch_bytes: int = 131_072
    """Bytes of payload put into one packet, for a hub that takes batches: so many stay in the processor's cache."""
    send_buffer: int = PACKET_BYTES + 4 * CONTROL_EXTRA
    """Send buffer that is asked of the kernel, in bytes: room for the longest packet."""
    reconnect_pause: float = 0.05
    """Shortest pause before reconnecting, in seconds. The next one is drawn at random, and may be longer."""
    reconnect_pause_most: float = 5.0
    """Longest pause before reconnecting, in seconds. While no hub listens, pauses are shorter."""
    offered: int = 64
    """Frames and descriptors that are offered at a time. Each takes two descriptors; the oldest goes first."""
    offered_bytes: int = 268_435_456
    """Bytes of frames that are offered at a time: 16 of 16 MiB. They take memory until no process has them any more."""
    offered_seconds: float = 10.0
    """Seconds for which a frame or descriptor is offered. A receiver that asks later has lost it."""


@overload
def check_seconds(seconds: float, name: str) -> float: ...
@overload
def check_seconds(seconds: float | None, name: str) -> float | None: ...
def check_seconds(seconds: float | None, name: str) -> float | None:
    """Return how long to wait: the seconds, or a century where they are more; ``None``: for ever.

    Raises :exc:`~sbuslib.errors.UsageError` unless an argument is seconds from 0 on, or ``None``. An event loop that is
    given anything else, such as NaN, may end all waits of others, or its own.
    """
    if seconds is not None and not (isinstance(seconds, (int, float)) and seconds >= 0):
        raise UsageError(f"{name} is seconds from 0 on, or None, not {seconds!r}")
    return None if seconds is None else min(seconds, CENTURY)


def check_users(users: Iterable[int], name: str) -> frozenset[int]:
    """Return the ids of users, as a set. Raises :exc:`~sbuslib.errors.UsageError` for anything else."""
    if isinstance(users, Iterable):
        found = frozenset(users)
        if all(isinstance(user, int) for user in found):
            return found
    raise UsageError(f"{name} are ids of users, not {users!r}")


def check_count(count: int | None, name: str, most: int | None = None) -> None:
    """Raise :exc:`~sbuslib.errors.UsageError` unless an argument counts from 1 on, to ``most``, or is ``None``."""
    if count is not None and not (isinstance(count, int) and 1 <= count <= (most or count)):
        raise UsageError(f"{name} is {f'1 to {most:,}' if most else 'at least 1'}, not {count!r}")
