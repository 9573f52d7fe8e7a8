"""``TcpLimits``: the numbers that an operator of a peer or a gateway may set, each with the reason for its default."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..limits import _Numbers

__all__ = ["TcpLimits"]


class TcpLimits(_Numbers, frozen=True, kw_only=True):
    """What a peer allows. Immutable; derive another with ``msgspec.structs.replace``.

    Raises :exc:`~sbuslib.errors.UsageError` when a number is not positive.
    """

    name_bytes: Annotated[
        int,
        Meta(
            description="Longest name or substring, in bytes of UTF-8. A routing key of 4,096 bytes fits, "
            "however many of them a name cannot hold as they are."
        ),
    ] = 16_384
    data_bytes: Annotated[
        int, Meta(description="Longest data of one message, in bytes: twice what a packet of a bus can hold.")
    ] = 1_048_576
    substrings: Annotated[
        int, Meta(description="Distinct substrings one peer may hold. Each costs memory and time to match.")
    ] = 16_384
    substring_bytes: Annotated[
        int, Meta(description="Bytes that the distinct substrings of one peer may have together.")
    ] = 4_194_304
    cached_names: Annotated[
        int, Meta(description="Names whose receivers are remembered. A remembered name saves the matching.")
    ] = 16_384
    queued_bytes: Annotated[
        int, Meta(description="Bytes that may wait for one peer that reads slowly, before new messages are lost.")
    ] = 16_777_216
    address_queued_bytes: Annotated[
        int, Meta(description="Bytes that may wait for all peers of one address together.")
    ] = 67_108_864
    address_links: Annotated[
        int, Meta(description="Connections that one address (of IPv6: one /64) may have here.")
    ] = 64
    address_substrings: Annotated[
        int, Meta(description="Distinct substrings that all peers of one address may hold together.")
    ] = 65_536
    links: Annotated[int, Meta(description="Connections that others may have made to this peer.")] = 1_024
    inbox_messages: Annotated[
        int, Meta(description="Messages that may wait for the application, before new ones are lost.")
    ] = 65_536
    inbox_bytes: Annotated[
        int,
        Meta(
            description="Bytes of names and data that may wait for the application, or for the bus of a gateway, "
            "before new messages are lost."
        ),
    ] = 16_777_216
    command_seconds: Annotated[
        float, Meta(description="Seconds that one command may take from its first byte to its last.")
    ] = 30.0
    handshake_seconds: Annotated[float, Meta(description="Seconds that a TLS handshake may take.")] = 10.0
    stall_seconds: Annotated[
        float, Meta(description="Seconds that a peer for which something waits may take nothing, before it is let go.")
    ] = 120.0
    connect_seconds: Annotated[float, Meta(description="Seconds that one attempt to connect may take.")] = 10.0
    reconnect_pause: Annotated[
        float, Meta(description="Shortest pause before connecting again, in seconds; the next is drawn from more.")
    ] = 0.1
    reconnect_pause_most: Annotated[float, Meta(description="Longest pause before connecting again, in seconds.")] = (
        30.0
    )
    backlog: Annotated[
        int, Meta(description="Connections that may wait to be accepted; the kernel caps it at net.core.somaxconn.")
    ] = 1_024
    retained: Annotated[int, Meta(description="Names whose last data is kept for peers that subscribe later.")] = 1_024
    hops: Annotated[
        int, Meta(description="Peers that a forwarded copy may pass. What loops past every other guard ends here.")
    ] = 16
    seen: Annotated[
        int, Meta(description="Forwarded messages that are remembered, so that each is passed on once.")
    ] = 65_536
    same_seconds: Annotated[
        float,
        Meta(
            description="Seconds within which the same data under the same name, from publishers that do not number "
            "their messages, counts as one message that came by several ways."
        ),
    ] = 2.0
    known_peers: Annotated[
        int, Meta(description="Peers heard of that are remembered; a stranger may announce any number.")
    ] = 256
    discovered_links: Annotated[
        int, Meta(description="Connections made because of an announcement. The others are reached by forwarding.")
    ] = 16
    announce_seconds: Annotated[
        float,
        Meta(description="Seconds between two announcements of oneself; three missed make a peer forgotten."),
    ] = 30.0
    yield_seconds: Annotated[
        float,
        Meta(description="Seconds for which one of two peers that hear of each other leaves connecting to the other."),
    ] = 2.0
    imports: Annotated[
        int, Meta(description="Messages from peers that may wait for the bus of a gateway, before new ones are lost.")
    ] = 65_536
    heartbeat_seconds: Annotated[
        float,
        Meta(description="Seconds between two words of a gateway to its spares; after three missed, one takes over."),
    ] = 2.0
    logged_breaches: Annotated[
        int, Meta(description="Kinds of violation (reason and address) remembered as logged; more are only counted.")
    ] = 1_024
