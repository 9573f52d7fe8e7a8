"""``Limits``: every number that bounds something, each with the reason for its default.

Nothing else in the library bounds what a client, a user or a hub may use; only the sizes of blocks that packets are
moved in stand where they are. ``docs/limits.md`` is generated from this module, and a
test holds the two against each other.
"""

from __future__ import annotations

from math import inf
from typing import Annotated

import msgspec
from msgspec import Meta

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
    "describe",
]

PACKET_BYTES = 409_600
"""Longest packet of the protocol, in bytes: what the C implementation receives into. No setting:
both ends of every connection rely on it."""

CONTROL_EXTRA = 4_096
"""How much longer than :data:`PACKET_BYTES` a hub's own control packet may be, in bytes, so that a
wrapped message of full length still fits."""


BATCH_MOST = 1_024
"""Most packets that one system call takes: ``UIO_MAXIOV`` of Linux."""

BATCH_MESSAGES = 4_096
"""Most messages in one packet of ``batch/on``: what such a packet saves has long been saved by then, and a hub
takes no more time over one than over any other turn. No setting, as the next two: both ends rely on it."""

BATCH_KEYS = 256
"""Most distinct keys in one such packet. Each may have to be looked up, which takes longer than a message."""

BATCH_EXPANDED = 4 * PACKET_BYTES
"""Bytes that the messages of one such packet may come to as packets of their own. A long key is written once and stands
before each of its messages then: without a bound, 400 KB could become 400 MB."""

KNOWN_KEYS = 1_024
"""Keys that a client remembers as checked: more than most programs publish under. No setting, as the next."""

KNOWN_KEY_BYTES = 256
"""Longest key that a client remembers. Those that are longer are rare, and so many of them would take much memory."""


class _Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that are all positive numbers."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            # The fields are what their defaults are: counts are whole numbers, times need not be.
            whole = isinstance(field.default, int)
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise UsageError(f"{type(self).__name__}.{field.name} is a {'whole ' * whole}number, not {value!r}")
            if not 0 < value < inf:
                raise UsageError(f"{type(self).__name__}.{field.name} is positive and finite, not {value!r}")
            if field.name == "batch" and value > BATCH_MOST:
                raise UsageError(f"{type(self).__name__}.batch is at most {BATCH_MOST}, not {value!r}")


class Limits(_Numbers, frozen=True, kw_only=True):
    """What a hub allows. Immutable; derive another with ``msgspec.structs.replace``.

    Raises :exc:`~sbuslib.errors.UsageError` when a number is not positive.
    """

    pattern_bytes: Annotated[int, Meta(description="Longest pattern, in bytes. Real keys are far shorter.")] = 4_096
    pattern_segments: Annotated[
        int, Meta(description="Segments of a pattern: each may be a node of the index, so they cost more than bytes.")
    ] = 128
    user_patterns: Annotated[
        int,
        Meta(
            description="Distinct patterns that all clients of one user may hold. A relay for a busy host needs many."
        ),
    ] = 262_144
    user_pattern_bytes: Annotated[
        int,
        Meta(description="Bytes of those patterns. The index takes some ten times as much memory."),
    ] = 16 * 1024 * 1024
    user_pattern_steps: Annotated[
        int,
        Meta(
            description="Steps that all patterns of one user may add to the look-up of one key: for each place and "
            "number of stars in use among them, the segments from the first star on. room/*/x takes 2, and with it a "
            "hundred thousand that have other words there. A step takes a third of a microsecond."
        ),
    ] = 1_024
    cached_keys: Annotated[
        int,
        Meta(description="Keys whose receivers are remembered. A remembered key saves the walk through the index."),
    ] = 16_384
    cached_key_bytes: Annotated[
        int, Meta(description="Longest key that is remembered, in bytes; with cached_keys it bounds the memory.")
    ] = 512
    allowed_bytes: Annotated[
        int,
        Meta(
            description="Bytes of keys that clients may publish under as authorize= said, remembered so that it is not "
            "asked again; shared out among users, one alone may have half."
        ),
    ] = 64 * 1024 * 1024
    allowed_key_bytes: Annotated[
        int, Meta(description="Bytes that each of those keys counts for beside its own: its place in a table.")
    ] = 128
    cached_receivers: Annotated[
        int,
        Meta(
            description="Receivers that remembered keys may come to: thousands of clients can be combined in as many "
            "ways as there are keys. At 8 bytes each."
        ),
    ] = 4_194_304
    batch: Annotated[
        int, Meta(description="Packets taken from one client before others have their turn. More gains nothing.")
    ] = 64
    turn_deliveries: Annotated[
        int,
        Meta(
            description="Deliveries, packets times receivers, after which the turn of a publisher ends and goes on "
            "later: some milliseconds, for which everybody else waits. One packet always goes to all."
        ),
    ] = 4_096
    turn_time: Annotated[
        float,
        Meta(
            description="Seconds after which likewise a turn ends that takes long for another reason, such as new "
            "keys that many patterns have to be compared with."
        ),
    ] = 0.005
    gathered: Annotated[
        int,
        Meta(
            description="Messages of one turn for one receiver that are put into one packet, if it takes such: fewer "
            "cost both ends less one by one."
        ),
    ] = 8
    gathered_bytes: Annotated[
        int,
        Meta(description="Bytes of those messages: copying more costs more than it saves."),
    ] = 65_536
    queued_packets: Annotated[
        int, Meta(description="Packets that may wait for one receiver that reads slowly, before new ones are lost.")
    ] = 65_536
    queued_bytes: Annotated[
        int, Meta(description="Bytes that may wait for one receiver: some forty packets of full length.")
    ] = 16 * 1024 * 1024
    user_queued_packets: Annotated[
        int,
        Meta(
            description="Packets that may wait for all clients of one user, shared out among the users that sent "
            "them: one alone may take half."
        ),
    ] = 262_144
    user_queued_bytes: Annotated[
        int, Meta(description="Bytes that may wait for all clients of one user, shared out likewise.")
    ] = 128 * 1024 * 1024
    block_timeout: Annotated[
        float,
        Meta(
            description="Seconds for which a receiver in block mode may hold publishers back; one that makes no room "
            "by then is let go."
        ),
    ] = 30.0
    queued_answers: Annotated[
        int,
        Meta(
            description="Answers to control messages that may wait for a client. They are never discarded, so a "
            "client that asks and does not read is let go."
        ),
    ] = 1_024
    fanout: Annotated[
        int,
        Meta(
            description="Clients of one user from which on a message of somebody else for all of them goes into the "
            "line of that user: its publisher would wait for so many system calls else."
        ),
    ] = 8
    fanout_packets: Annotated[
        int,
        Meta(
            description="Packets that may stand in such a line, shared out among the users that sent them: one alone "
            "may take half."
        ),
    ] = 65_536
    fanout_bytes: Annotated[int, Meta(description="Bytes that may stand in such a line, shared out likewise.")] = (
        32 * 1024 * 1024
    )
    fanout_groups: Annotated[
        int,
        Meta(
            description="Groups of receivers of which it is remembered who of them stands in which line, those of as "
            "many keys or more; and for as many a line counts what is lost in one place each."
        ),
    ] = 1_024
    trimmed_bytes: Annotated[
        int,
        Meta(
            description="Bytes that have waited, or were held for clients and patterns that have gone, since the C "
            "library was last asked to give free memory back to the system, before it is asked again: that takes "
            "milliseconds."
        ),
    ] = 1024 * 1024
    trim_pause: Annotated[
        float, Meta(description="Seconds from then until it is asked, and as many more while half of that still waits.")
    ] = 3.0
    trim_share: Annotated[
        float,
        Meta(
            description="Share of the time that this may take, at most: when it took long, in a large process, the "
            "next is put off, or who comes and goes without end would have it done all the time."
        ),
    ] = 0.001
    token_bytes: Annotated[
        int, Meta(description="Longest token of a hub/sync, in bytes. It is echoed, so it must not amplify.")
    ] = 64
    user_connections: Annotated[
        int,
        Meta(
            description="Connections of one user, where its share of the descriptors is more; not of the hub's own and "
            "root. Each costs 2 KiB here, and up to 32 KiB in the kernel if it does not read."
        ),
    ] = 16_384
    spare_descriptors: Annotated[
        int,
        Meta(
            description="Descriptors of the process (its RLIMIT_NOFILE) that clients may not use up: the application "
            "needs some, and so does refusing politely."
        ),
    ] = 64
    controls_per_turn: Annotated[
        int,
        Meta(
            description="Packets taken in one go from a client whose last were mostly no messages: those cost the hub "
            "more than they cost the client."
        ),
    ] = 8
    forgotten_per_round: Annotated[
        int, Meta(description="Patterns of clients that left taken out of the index in one turn of their user.")
    ] = 128
    backlog: Annotated[
        int, Meta(description="Connections that may wait to be accepted; the kernel caps it at net.core.somaxconn.")
    ] = 4_096
    idle_send_buffer: Annotated[
        int,
        Meta(
            description="Send buffer asked of the kernel for each connection at first, in bytes, which it doubles. "
            "It is small, since nobody is charged for what waits in it."
        ),
    ] = 8_192
    send_buffer: Annotated[
        int,
        Meta(
            description="Send buffer for a client that falls behind or is sent a longer packet, in bytes: one longest "
            "control packet and its bookkeeping. The kernel doubles it, and caps it at net.core.wmem_max."
        ),
    ] = 425_984
    send_buffers: Annotated[
        int,
        Meta(
            description="Bytes of all such larger buffers, shared out among users: one alone may have half. What "
            "clients do not read is memory of the hub."
        ),
    ] = 1024 * 1024 * 1024
    reclaimed_buffers: Annotated[
        int,
        Meta(
            description="Clients of a user with no share of those left that are looked at for one that has read all, "
            "and so does without. Each takes a system call."
        ),
    ] = 8
    accept_pause: Annotated[
        float, Meta(description="Seconds without accepting after the kernel ran out of descriptors or memory.")
    ] = 0.1
    send_retry: Annotated[
        float, Meta(description="Seconds until a send is tried again for which the kernel had no memory.")
    ] = 0.02
    prefix_wait: Annotated[
        float,
        Meta(
            description="Seconds after the start of a relay for which a whoami waits until the hub above has told "
            "under which prefix this one's credentials stand. A hub that is there answers in milliseconds."
        ),
    ] = 3.0
    settle: Annotated[
        float,
        Meta(
            description="Seconds after its start for which a hub lets its slaves wait before it says that it knows "
            "what is wanted: subscribers that lost it come back first."
        ),
    ] = 0.5
    sync_wait: Annotated[
        float,
        Meta(description="Seconds that a hub/sync of the whole tree waits for other hubs before it says partial."),
    ] = 2.0
    link_wait: Annotated[
        float, Meta(description="Seconds in which a hub above has to answer while a relay joins it.")
    ] = 10.0
    link_pause: Annotated[
        float, Meta(description="Shortest pause before a relay joins again, in seconds; the next is drawn from more.")
    ] = 0.05
    link_pause_most: Annotated[float, Meta(description="Longest pause before a relay joins again, in seconds.")] = 5.0
    link_buffer: Annotated[
        int, Meta(description="Bytes kept for the hub above while it is away or slow: what a slow receiver may have.")
    ] = 16 * 1024 * 1024
    link_packets: Annotated[
        int, Meta(description="Packets kept for the hub above likewise: even an empty one takes memory.")
    ] = 262_144
    link_notices: Annotated[
        float,
        Meta(
            description="Seconds between two notices of losses below that a link has passed on to others: each is many."
        ),
    ] = 1.0
    link_acks: Annotated[
        int,
        Meta(
            description="Messages sent to the hub above before it is asked to acknowledge that it passed them on. "
            "When the link breaks, what was not acknowledged is uncertain."
        ),
    ] = 256
    link_asked: Annotated[
        int,
        Meta(description="Such questions that may be open at a time; while so many are, one speaks of more messages."),
    ] = 64
    passing_wait: Annotated[
        float,
        Meta(
            description="Seconds that the answer waits for receivers that are slow. One that takes longer is not "
            "waited for until it has caught up: a reader that stopped would keep all relays from knowing."
        ),
    ] = 1.0
    link_ack_pause: Annotated[float, Meta(description="Seconds after which fewer than that are asked about, too.")] = (
        0.1
    )
    link_patterns: Annotated[
        int, Meta(description="Patterns announced over a link before they are widened to what they have in common.")
    ] = 65_536
    interest_steps: Annotated[
        int,
        Meta(
            description="Steps, of some microseconds each, that one turn spends on what a user's subscriptions change "
            "for the links. They are shared out among the links."
        ),
    ] = 256
    pruned_keys: Annotated[
        int,
        Meta(description="Keys that a link of another user is told not to send. The oldest makes room for another."),
    ] = 4_096
    pruned_bytes: Annotated[int, Meta(description="Bytes of those keys.")] = 1024 * 1024
    pruned_sweeps: Annotated[
        int,
        Meta(
            description="New patterns for which those keys are searched one after the other. When there are more at a "
            "time, all keys are forgotten instead."
        ),
    ] = 64
    prunes_per_second: Annotated[
        int, Meta(description="Keys that a link is told not to send in a second: endless new keys must cost little.")
    ] = 8_192
    path_hubs: Annotated[
        int, Meta(description="Hubs between a hub and the root of its tree, both included. Deeper is a mistake.")
    ] = 16
    voucher_keys: Annotated[
        int, Meta(description="Senders below a link that are remembered as checked; others are checked again.")
    ] = 4_096
    logged_breaches: Annotated[
        int, Meta(description="Kinds of breach (reason and user) remembered as logged; more are only counted.")
    ] = 1_024


class ClientLimits(_Numbers, frozen=True, kw_only=True):
    """What a client allows itself. Immutable, as :class:`Limits`."""

    batch: Annotated[int, Meta(description="Packets received or sent with one system call. More gains nothing.")] = 64
    batch_messages: Annotated[
        int, Meta(description="Messages put into one packet for a hub that takes such. More gains little.")
    ] = 1_024
    batch_bytes: Annotated[
        int,
        Meta(description="Bytes of payload put into one such packet: what stays in the processor's cache on its way."),
    ] = 131_072
    send_buffer: Annotated[
        int, Meta(description="Send buffer asked of the kernel, in bytes: as for a hub, whose packets are as long.")
    ] = 425_984
    connect_pause: Annotated[
        float, Meta(description="Seconds before the second attempt when a hub's backlog is full; then it grows.")
    ] = 0.001
    connect_pause_most: Annotated[
        float, Meta(description="Longest pause between two attempts at a full backlog, in seconds.")
    ] = 0.05
    reconnect_pause: Annotated[
        float,
        Meta(description="Shortest pause before reconnecting, in seconds; the next is drawn at random from more."),
    ] = 0.05
    reconnect_pause_most: Annotated[
        float, Meta(description="Longest pause before reconnecting, in seconds: a hub that is back is found this soon.")
    ] = 5.0


def describe(struct: type[msgspec.Struct] = Limits) -> str:
    """The table of a struct's limits in Markdown: name, default, reason. What ``docs/limits.md`` holds."""
    rows = ["| limit | default | why |", "| --- | --- | --- |"]
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        assert isinstance(field.type, msgspec.inspect.Metadata)
        default = f"{field.default:,}" if isinstance(field.default, int) else f"{field.default}"
        why = (field.type.extra_json_schema or {}).get("description", "")
        rows.append(f"| `{field.name}` | {default} | {why} |")
    return "\n".join(rows) + "\n"
