"""``TcpLimits``: the numbers that an operator of a peer or a gateway may set, each with the reason for its default."""

from __future__ import annotations

from ..limits import _Numbers


class TcpLimits(_Numbers, frozen=True, kw_only=True):
    """Limits of a peer. Immutable; derive another with ``msgspec.structs.replace``.

    Raises :exc:`~sbuslib.errors.UsageError` when a number is not positive.
    """

    name_bytes: int = 16_384
    """Longest name or substring, in bytes of UTF-8. A routing key of 4,096 bytes fits, with each one escaped."""
    data_bytes: int = 1_048_576
    """Longest data of one message, in bytes: twice what a packet of a bus can hold."""
    cached_names: int = 16_384
    """Names whose receivers are remembered. A remembered name saves the matching."""
    queued_bytes: int = 16_777_216
    """Bytes that may wait for one peer that reads slowly, before new messages are lost."""
    all_bytes: int = 134_217_728
    """Bytes that all peers may hold here together: what waits for them, their unfinished commands and their substrings.
    Beyond it the one that holds the most is disconnected."""
    all_substrings: int = 32_768
    """Distinct substrings that all peers may hold together. Beyond it the one that holds the most is
    disconnected. A new name is compared with each of them, which takes some 40 ns."""
    links: int = 1_024
    """Connections that others may have made to this peer."""
    inbox_messages: int = 65_536
    """Messages that may wait for the application, or for the bus of a gateway, before new ones are lost."""
    inbox_bytes: int = 16_777_216
    """Bytes of names and data that may wait for the application, or for the bus of a gateway, before new messages are
    lost."""
    command_seconds: float = 30.0
    """Seconds that one command may take from its first byte to its last."""
    stall_seconds: float = 120.0
    """Seconds without progress after which a peer with queued messages is disconnected."""
    connect_seconds: float = 10.0
    """Seconds that one attempt to connect may take, and a TLS handshake."""
    reconnect_pause: float = 0.1
    """Shortest pause before connecting again, in seconds. The next one is drawn at random, and may be longer."""
    reconnect_pause_most: float = 30.0
    """Longest pause before connecting again, in seconds."""
    backlog: int = 1_024
    """Connections that may wait to be accepted; the kernel caps it at net.core.somaxconn."""
    retained: int = 1_024
    """Names whose last data is kept for peers that subscribe later."""
    hops: int = 16
    """Peers that a forwarded copy may pass: the last guard against loops."""
    seen: int = 65_536
    """Forwarded messages that are remembered, so that each is passed on once."""
    same_seconds: float = 2.0
    """Seconds within which the same data under the same name, from publishers that do not number their messages, counts
    as one message that came by several ways."""
    known_peers: int = 256
    """Peers that are remembered because they were announced. A stranger may announce any number."""
    discovered_links: int = 16
    """Connections made because of an announcement. Forwarding reaches the other peers."""
    announce_seconds: float = 30.0
    """Seconds between two announcements. A peer is forgotten when three of its own are missing."""
    yield_seconds: float = 2.0
    """Seconds that one of two peers that discover each other waits for the other to connect. After as many seconds a
    peer that did not answer is tried again."""
    logged_violations: int = 1_024
    """Kinds of violation (reason and address) remembered as logged; more are only counted."""
