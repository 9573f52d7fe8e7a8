"""What a hub counts: frozen values, true for one instant."""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

import msgspec

from .errors import PeerError, StateError

__all__ = [
    "ClientPage",
    "ClientStatistics",
    "HubStatistics",
    "LinkPage",
    "LinkStatistics",
    "RelayStatistics",
    "UserStatistics",
    "decode_clients",
    "decode_links",
    "decode_statistics",
]

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A count that fits 64 bits. This is checked when a hub's answer is read."""


T = TypeVar("T")


class ClientStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One client, or one inbox of the embedder. ``number`` is the same for as long as the client is connected, and no
    other client of the hub ever has it; an inbox has 0.

    ``received`` counts the messages that it published. Of those routed to it, each is ``delivered`` (handed
    to the kernel), ``queued``, or ``lost``, by cause; the three add up to ``routed``.
    """

    number: Count
    credentials: str
    patterns: Count
    received: Count
    routed: Count
    delivered: Count
    queued: Count
    queued_peak: Count
    lost: dict[str, Count]
    soft: str
    hard: str
    order: str


class ClientPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some clients of a hub. ``next`` is where to ask for more; ``None``: there are no more."""

    clients: tuple[ClientStatistics, ...]
    next: Count | None


class UserStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What one user's clients hold: patterns and the bytes charged for them, packets and bytes in queues, and bytes of
    send buffers in the kernel. And what they have done since the hub was made, as for a client; of those that have left
    only while the hub remembers their user."""

    uid: Count
    connections: Count
    patterns: Count
    pattern_bytes: Count
    queued_packets: Count
    queued_bytes: Count
    buffer_bytes: Count
    received: Count
    routed: Count
    delivered: Count
    lost: dict[str, Count]


class LinkStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One link of a hub: to the hub above (``direction`` is ``above``), or from a hub below (``below``).

    Of a hub below, ``number`` is that of its relay as a client; the link above has 0. ``uid`` and ``pid`` are the
    kernel's word about the process at the other end, and ``credentials`` is the credential key of the link in the upper
    hub. ``hub`` names the hub at the other end, ``address`` is where it listens, and ``epoch`` goes up when the link is
    made anew. Of a hub below these three are what its relay claims; empty, or 0, where it claims nothing.

    ``state`` of the link above is one of :data:`sbuslib.tree.above.STATES`; that of a link below is ``joined``, or
    ``lagging`` when it lets questions wait. ``mode`` is how the upper hub serves the lower: ``announce``, ``prune`` or
    ``plain``. ``patterns`` is how many the lower hub holds in the upper, ``pruned`` how many of its keys the upper said
    that nobody wants.

    ``received`` counts messages from the other hub. Of those for it, ``delivered`` were handed to the kernel,
    ``queued`` wait, and ``lost`` were lost, by cause. ``uncertain`` were sent up, and the link broke before they were
    acknowledged. Of a trusted hub below, losses on its way up are what it told. The counts of a link below begin anew
    when its relay connects. ``lag`` is for how many seconds the other hub owes the oldest answer, to what this hub asks
    now and then. ``carries`` tells, if a key was asked about, whether a message under it goes from here to there.
    """

    direction: str
    number: Count
    uid: Annotated[int, msgspec.Meta(ge=-1, le=2**32)]
    pid: Annotated[int, msgspec.Meta(ge=-1, le=2**32)]
    credentials: str
    hub: str
    address: str
    state: str
    epoch: Count
    mode: str
    patterns: Count
    pruned: Count
    received: Count
    delivered: Count
    queued: Count
    lost: dict[str, Count]
    uncertain: Count
    lag: Annotated[float, msgspec.Meta(ge=0)]
    carries: bool | None


class LinkPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some links of a hub, the one above first. ``next`` is where to ask for more; ``None``: there are no more."""

    links: tuple[LinkStatistics, ...]
    next: Count | None


class HubStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One hub at one instant.

    ``clients`` and ``patterns`` are those of now; ``clients_peak`` is the most clients at one time, ``clients_total``
    all clients ever. ``received`` counts the messages that were published, also by the embedder. ``routed`` counts each
    of them once for each receiver; it is always the sum of ``delivered`` (handed to the kernel or to the embedder),
    ``queued`` and the values of ``lost``, by cause. ``breaches`` counts violations by clients, by reason, ``ignored``
    the control messages and unsubscriptions that had no meaning. ``dropped`` counts packets that relays of other hubs
    should not have sent, by reason; the relays are not disconnected for them.
    """

    hub_id: str
    address: str
    clients: Count
    clients_peak: Count
    clients_total: Count
    patterns: Count
    received: Count
    routed: Count
    delivered: Count
    queued: Count
    lost: dict[str, Count]
    ignored: Count
    breaches: dict[str, Count]
    dropped: dict[str, Count]
    per_client: tuple[ClientStatistics, ...]
    per_user: tuple[UserStatistics, ...]
    per_link: tuple[LinkStatistics, ...]


class RelayStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A relay at one instant; counts are since it was made.

    ``state`` is one of :data:`sbuslib.tree.above.STATES`, ``epoch`` counts the times that it joined, ``mode`` is how
    the hub above serves it (``announce``, ``prune`` or ``plain``). ``interest_up`` is how many patterns it holds there,
    ``interest_down`` how many patterns the hub above announced, ``pruned`` how many keys the hub above said that nobody
    wants. Of the messages published here, ``suppressed`` did not go up because nobody above wants them. The others were
    ``forwarded`` (handed to the kernel), are ``buffered`` (of ``buffered_bytes``), or were ``lost``. Of those
    forwarded, ``uncertain`` were sent on a link that broke before they were acknowledged. ``received`` came from above.
    ``secrets`` tells whether secret messages cross: not where the hub above refused the pattern for them.
    ``lost_above`` were lost by the hub above because this one was slow to read. ``dropped`` counts wrong packets, by
    reason.
    """

    state: str
    upstream: str
    epoch: int
    mode: str
    prefix: str
    path: tuple[str, ...]
    interest_up: int
    interest_down: int
    pruned: int
    forwarded: int
    suppressed: int
    buffered: int
    buffered_bytes: int
    lost: int
    uncertain: int
    secrets: bool
    received: int
    lost_above: int
    dropped: dict[str, int]


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


def _check_progress(has_any: bool, start: int, following: int | None, address: str) -> None:
    """Whoever asks until there is no more must come to an end."""
    if following is not None and (following <= start or not has_any):
        raise PeerError(f"{address}: the hub sent statistics that do not go on")


def _decode(encoded: bytes | None, address: str, kind: type[T]) -> T:
    if not encoded:
        raise StateError(f"{address}: this user is not trusted with statistics: ask for --trusted where the hub runs")
    try:
        return msgspec.json.decode(encoded, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"{address}: the hub sent statistics that cannot be read: {error}") from None
