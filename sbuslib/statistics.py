"""Statistics of a hub: frozen values, true for one instant."""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

import msgspec

from .errors import PeerError, StateError
from .malformed import MALFORMED

__all__ = [
    "ClientPage",
    "ClientStatistics",
    "ExplainedLink",
    "ExplainedParty",
    "ExplainedReceiver",
    "Explanation",
    "HeldPatterns",
    "HubStatistics",
    "LinkPage",
    "LinkStatistics",
    "NearMiss",
    "PatternPage",
    "RelayStatistics",
    "UserStatistics",
    "decode_clients",
    "decode_explanation",
    "decode_held_patterns",
    "decode_links",
    "decode_statistics",
]

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A count that fits 64 bits. This is checked when a hub's answer is read."""


T = TypeVar("T")


class _Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a hub, in the form of its answers.

    Each field has a default, and a reader ignores fields that it does not know. So a program reads the statistics
    of hubs that are older or newer than itself.
    """


class ClientStatistics(_Statistics, frozen=True, kw_only=True):
    """One client, or one inbox of the embedder. ``delivered``, ``waiting`` and ``lost`` add up to ``routed``."""

    number: Count = 0
    """Its own for as long as it is connected: 1 for the first client of the hub; an inbox has 0."""
    credentials: str = ""
    """Its credential key."""
    patterns: Count = 0
    """Distinct patterns that it holds."""
    published: Count = 0
    """Messages that it published."""
    routed: Count = 0
    """Messages that were routed to it."""
    delivered: Count = 0
    """Those of them that were handed to the kernel, or that the embedder took."""
    waiting: Count = 0
    """Those of them that wait."""
    waiting_peak: Count = 0
    """The largest number that ever waited for it."""
    full: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """How much of its queue is taken, of the messages or the bytes that may wait: 1 is all."""
    lost: dict[str, Count] = {}
    """Those of them that were lost, by [cause](#causes-of-loss)."""
    soft: str = ""
    """Its mode while its queue has room."""
    hard: str = ""
    """Its mode while its queue is full."""
    order: str = ""
    """Which of the waiting messages is sent first."""


class ClientPage(_Statistics, frozen=True, kw_only=True):
    """Some clients of a hub."""

    clients: tuple[ClientStatistics, ...] = ()
    """Clients, in the order of their numbers."""
    next: Count | None = None
    """Number from which to ask for more; ``None``: there are no more."""


class HeldPatterns(_Statistics, frozen=True, kw_only=True):
    """The patterns that one client holds, but for secret ones."""

    number: Count = 0
    """That of the client."""
    credentials: str = ""
    """Its credential key."""
    is_link: bool = False
    """Whether it is the relay of a child."""
    count: Count = 0
    """How many distinct patterns."""
    patterns: tuple[bytes, ...] = ()
    """These, or as many of them as one answer has room for."""


class PatternPage(_Statistics, frozen=True, kw_only=True):
    """The patterns of some clients of a hub."""

    clients: tuple[HeldPatterns, ...] = ()
    """Clients, in the order of their numbers."""
    next: Count | None = None
    """Number from which to ask for more; ``None``: there are no more."""


class UserStatistics(_Statistics, frozen=True, kw_only=True):
    """Holdings of one user's clients, and their counts since the hub was made."""

    uid: Count = 0
    """Which user."""
    connections: Count = 0
    """Clients that are connected."""
    patterns: Count = 0
    """Patterns that its clients hold."""
    pattern_bytes: Count = 0
    """Bytes of these patterns, as they are [charged](#quotas)."""
    waiting_packets: Count = 0
    """Packets that wait for its clients, in their queues and in its fan-out queue."""
    waiting_bytes: Count = 0
    """Bytes of these packets."""
    buffer_bytes: Count = 0
    """Bytes of the larger send buffers that its clients have in the kernel."""
    published: Count = 0
    """Messages that its clients published; of clients that have left, for the last 1,024 users."""
    routed: Count = 0
    """Messages that were routed to its clients, those that have left included."""
    delivered: Count = 0
    """Those of them that were handed to the kernel."""
    lost: dict[str, Count] = {}
    """Those of them that were lost, by cause."""


class LinkStatistics(_Statistics, frozen=True, kw_only=True):
    """One link of a hub, to the parent or from a child.

    The counts of a link to a child begin anew when its relay connects. Losses that a child reports count only if it is
    trusted.
    """

    direction: str = ""
    """``parent`` for the link to the parent, ``child`` for that of a child."""
    number: Count = 0
    """The number of the relay as a client; 0 for the link to the parent."""
    uid: Annotated[int, msgspec.Meta(ge=-1, le=2**32)] = -1
    """User of the process at the other end, by the kernel's word; -1: unknown."""
    pid: Annotated[int, msgspec.Meta(ge=-1, le=2**32)] = -1
    """Id of that process, by the kernel's word."""
    credentials: str = ""
    """The credential key of the link in the upper hub."""
    hub: str = ""
    """Id of the hub at the other end, as that hub claims."""
    address: str = ""
    """Address at which that hub listens, as it claims."""
    state: str = ""
    """Of the link to the parent as in [`Relay.statistics()`](api.md); of a child ``joined``, or ``lagging`` while
    questions wait.
    """
    epoch: Count = 0
    """Goes up when the link is made anew; of a child as it claims."""
    mode: str = ""
    """How the upper hub [serves](relay.md#who-learns-what) the lower: ``announce``, ``prune`` or ``plain``."""
    patterns: Count = 0
    """Distinct patterns that the lower hub holds in the upper."""
    pruned: Count = 0
    """Keys of the lower hub that the upper hub has pruned: nobody wants them there."""
    up: Count = 0
    """Messages from the lower hub to the upper: those that came, or that were handed to the kernel."""
    down: Count = 0
    """Messages from the upper hub to the lower, likewise."""
    waiting: Count = 0
    """Messages for the other hub that wait."""
    lost: dict[str, Count] = {}
    """Messages for the other hub that were lost, by cause; ``upstream`` and ``unwanted``: on the way up."""
    uncertain: Count = 0
    """Messages sent up on a link that broke before they were acknowledged."""
    lag: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Seconds since the oldest question that the other hub has not answered."""
    dropped: dict[str, Count] = {}
    """Packets that came over it and had no effect, by reason, such as messages that the rules refuse."""


class RelayStatistics(LinkStatistics, frozen=True, kw_only=True):
    """The link of a relay at one instant, and what its own hub knows besides; counts are since it was made."""

    path: tuple[str, ...] = ()
    """The hubs from this one to the root."""
    announced: int = 0
    """Patterns that the parent announced."""
    waiting_bytes: int = 0
    """Bytes of the messages that wait to go up."""
    secrets: bool = False
    """Whether secret messages cross: not where the parent refused the pattern for them."""
    lost_by_parent: int = 0
    """Messages that the parent lost because this one was slow to read."""


class LinkPage(_Statistics, frozen=True, kw_only=True):
    """Some links of a hub."""

    links: tuple[LinkStatistics, ...] = ()
    """Links, the one to the parent first."""
    next: Count | None = None
    """Number from which to ask for more; ``None``: there are no more."""


class HubStatistics(_Statistics, frozen=True, kw_only=True):
    """One hub at one instant. ``delivered``, ``waiting`` and ``lost`` add up to ``routed``."""

    hub_id: str = ""
    """16 hexadecimal digits that no other hub has."""
    address: str = ""
    """Where it listens."""
    clients: Count = 0
    """Clients that are connected now."""
    clients_peak: Count = 0
    """The most clients at one time."""
    clients_total: Count = 0
    """All clients ever."""
    patterns: Count = 0
    """Pairs of a client and a distinct pattern that are in force."""
    published: Count = 0
    """Messages published, the embedder's included."""
    routed: Count = 0
    """These messages, each counted once for each receiver."""
    delivered: Count = 0
    """Those of them that were handed to the kernel or to the embedder."""
    waiting: Count = 0
    """Those of them that wait."""
    lost: dict[str, Count] = {}
    """Those of them that were lost, by cause."""
    ignored: Count = 0
    """Control messages and ``UNSUB`` that meant nothing."""
    violations: dict[str, Count] = {}
    """Violations of clients, by [reason](protocol.md#why-a-client-is-disconnected)."""
    dropped: dict[str, Count] = {}
    """Packets that [relays](relay.md#the-protocol) of other hubs should not have sent, by reason."""
    per_client: tuple[ClientStatistics, ...] = ()
    """Each client, and each inbox of the embedder."""
    per_user: tuple[UserStatistics, ...] = ()
    """Each user."""
    per_link: tuple[LinkStatistics, ...] = ()
    """Each link to another hub."""


Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]


class ExplainedParty(_Statistics, frozen=True, kw_only=True):
    """The sender, or the receiver that was asked about, and whether the rules allow it."""

    name: str = ""  # as it was asked about; empty for the client that asks
    uid: Annotated[int, msgspec.Meta(ge=-1, le=2**32)] = -1  # its user; -1: unknown
    clients: Count = 0  # those of the hub that are meant
    allowed: bool | None = None  # None: unknown, or not for the client that asks
    reason: str = ""  # a rule with its line, or the reason for no rule
    held: Count = 0  # those of the clients that are held back as publishers
    held_by: str = ""  # the credential key of a receiver that holds one, if the client may know


class ExplainedReceiver(_Statistics, frozen=True, kw_only=True):
    """A receiver on one hub, and the fate of a message there now."""

    client: ClientStatistics = ClientStatistics()
    kind: str = ""  # client, monitor; in the program of the hub: program, tap (which only listens in)
    pattern: str = ""  # one that matches
    outcome: str = ""  # sent, waits, held (its publisher is), lost, kicked (it is), echo (takes none of its own), gone
    cause: str = ""  # of the loss
    since: Seconds = 0.0  # when the first loss not yet reported to it happened, in seconds since the epoch; 0: none
    holds: Count = 0  # publishers that it holds back
    holds_for: Seconds = 0.0  # the first of them


class ExplainedLink(_Statistics, frozen=True, kw_only=True):
    """A link, and whether a message would go over it."""

    link: LinkStatistics = LinkStatistics()
    carries: bool = False
    reason: str = ""  # why it does not: export, pruned, rules, secret; unwanted by anybody there
    outcome: str = ""  # as of a receiver
    cause: str = ""
    away_since: Seconds = 0.0  # in seconds since the epoch; 0: it is not away


class NearMiss(_Statistics, frozen=True, kw_only=True):
    """A pattern that nearly matches."""

    pattern: str = ""
    reason: str = ""  # why it does not match
    credentials: str = ""  # the credential key of a client that holds it


class Explanation(_Statistics, frozen=True, kw_only=True):
    """Fate of a message, if it were published on one hub now."""

    hub_id: str = ""
    address: str = ""
    is_whole: bool = False  # whether all clients are in it; else those of the user who asks
    is_settled: bool = False  # whether it knows all interest in its tree
    is_secret: bool = False  # whether the key is
    wanted: str = "unknown"  # whether the key has addressees, as in hub/wanted: yes, no or unknown
    room: Count = 0  # most messages that may wait for one receiver
    sender: ExplainedParty = ExplainedParty()
    reader: ExplainedParty | None = None  # the receiver that was asked about
    kinds: dict[str, Count] = {}  # how many receivers there are, links aside
    outcomes: dict[str, Count] = {}  # the same
    waiting: Count = 0  # messages, for all of them
    lost: dict[str, Count] = {}  # by all of them so far, by cause
    receivers: tuple[ExplainedReceiver, ...] = ()  # some of them, the worst first
    links: tuple[ExplainedLink, ...] = ()  # some: that to the parent first, then those that carry it
    link_count: Count = 0  # how many there are
    near: tuple[NearMiss, ...] = ()  # if nobody receives it


def decode_explanation(encoded: bytes, address: str) -> Explanation:
    """Read a hub's answer to ``hub/why``. Raises as :func:`decode_statistics`."""
    if not encoded:
        raise StateError(f"{address}: the hub has too many such questions of this user: ask again")
    return _decode(encoded, address, Explanation)


def decode_statistics(encoded: bytes | None, address: str) -> HubStatistics:
    """Read a hub's answer to ``hub/statistics``.

    Raises :exc:`~sbuslib.errors.StateError` for a refusal, and :exc:`~sbuslib.errors.PeerError` if it cannot be read.
    """
    return _decode(encoded, address, HubStatistics)


def decode_clients(encoded: bytes | None, address: str, start: int) -> ClientPage:
    """Read a hub's answer to ``hub/clients`` from ``start`` on. Raises as :func:`decode_statistics`."""
    page = _decode(encoded, address, ClientPage)
    _check_progress(bool(page.clients), start, page.next, address)
    return page


def decode_links(encoded: bytes | None, address: str, start: int) -> LinkPage:
    """Read a hub's answer to ``hub/links`` from ``start`` on. Raises as :func:`decode_statistics`."""
    page = _decode(encoded, address, LinkPage)
    _check_progress(bool(page.links), start, page.next, address)
    return page


def decode_held_patterns(encoded: bytes | None, address: str, start: int) -> PatternPage:
    """Read a hub's answer to ``hub/patterns`` from ``start`` on. Raises as :func:`decode_statistics`."""
    page = _decode(encoded, address, PatternPage)
    _check_progress(bool(page.clients), start, page.next, address)
    return page


def _check_progress(has_any: bool, start: int, following: int | None, address: str) -> None:
    """Raise an error unless a page brings a caller forward: one that asks until the last page has to come to an end."""
    if following is not None and (following <= start or not has_any):
        raise PeerError(f"{address}: the hub sent statistics that do not go on")


def _decode(encoded: bytes | None, address: str, kind: type[T]) -> T:
    if not encoded:
        raise StateError(f"{address}: this user is not trusted with statistics: ask for --trusted where the hub runs")
    try:
        return msgspec.json.decode(encoded, type=kind)
    except MALFORMED as error:
        raise PeerError(f"{address}: the hub sent statistics that cannot be read: {error}") from None
