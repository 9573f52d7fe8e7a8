"""Reports between the hubs of a tree about messages lost on their way up: :class:`LossReports`.

Each hub counts its own losses, ever, by cause. It reports its *total* to all hubs, and each hub passes on the part that
is new to it. So a report may come again and counts once. A hub reports to the parent until that one has acknowledged
it, which it does when its own parent has (``hub/sync`` of scope ``passed``). So no report is lost with a hub that is
killed: the child reports again to the next process.

That process knows no totals. So a report has three parts: losses that the parent certainly knows; losses that it may
know, from an earlier link; and losses that it cannot know yet. A hub that was started after the first of these losses
reports the second part to its clients as uncertain: the process before may have reported it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic, time
from typing import Final

from ..core.callback_errors import log
from ..core.context import Context
from ..core.protocols import Receiver
from ..wire.control import UNCERTAIN, LossReport, Lost, encode_loss_reports
from .open_questions import OnAnswer

_COUNTS: Final = 16_384
"""Counts of hubs that are remembered, each some 500 bytes. When one more comes, the oldest is forgotten."""


@dataclass(slots=True)
class _Count:
    """The messages that one hub has lost for one cause, and what the parent knows of them."""

    total: int
    acknowledged: int
    """Of so many it knows for certain."""
    reported_before: int
    """Losses that it may know: they were reported over earlier links."""
    reported: int
    """Losses that were reported over the present link, or that it certainly knows."""
    since: float
    """When the first of those was lost that it may not know."""


@dataclass(slots=True)
class News:
    """Losses that this hub has learned and not passed on yet: the part of a total that is new here."""

    report: LossReport
    origin: Receiver | None
    """The link that it came over; ``None``: this hub has lost the messages."""


class LossReports:
    """The losses in a tree, as one hub knows them. Implements :class:`~sbuslib.core.delivery_barrier.Pending`.

    :param hub_id: under which this hub counts.
    :param announce: reports new losses to clients and to the children.
    :param has_settled: whether the links of the process before are back. Until then nothing is reported: a hub that
        comes back later would never get the report.
    """

    in_order = True
    is_hub = True  # so it is waited for however long it takes
    hands_on = False

    def __init__(
        self,
        context: Context,
        hub_id: Callable[[], bytes],
        announce: Callable[[list[News]], None],
        has_settled: Callable[[], bool],
    ) -> None:
        self._context = context
        self._hub_id = hub_id
        self._announce = announce
        self._has_settled = has_settled
        self._counts: dict[tuple[bytes, str], _Count] = {}  # by hub and cause
        self._open: dict[tuple[bytes, str], None] = {}  # those that the parent may not know
        self._news: dict[tuple[bytes, str], News] = {}  # not passed on yet
        self._since = time()  # a later loss that is not known here was never reported here
        self._changes = 0  # so far
        self._done = 0  # of these, the first ones that are known above
        self._next_at = 0.0  # when news may be passed on again, by the monotonic clock
        self._waits = False  # whether they will be

        self._say: Callable[..., None] | None = None  # to the parent, while it is joined and believes this hub
        self._ask: Callable[[OnAnswer], None] = lambda answer: None  # asks the parent which messages it has passed on
        self._has_parent = False  # whether there is a parent that believes this one, joined or not
        self._on_known: Callable[[], None] = lambda: None  # called when the parent knows more
        self._hurries = False  # whether news are passed on at once, since all links are about to end

    # -- losses --------------------------------------------------------------------------------------

    def note(self, lost: Lost) -> None:
        """Note that this hub has lost messages on their way up, and report them to everybody now."""
        count = self._counts.get((self._hub_id(), lost.cause))
        before = count.total if count is not None else 0
        self.take(LossReport(self._hub_id(), lost.cause, before, before, before + lost.count, lost.since), None)
        self.pass_on()

    def take(self, report: LossReport, origin: Receiver | None, is_parent: bool = False) -> LossReport | None:
        """Another hub has reported, over the link ``origin``. Returns the part that is new here."""
        key = report.hub, report.cause
        count = self._counts.get(key)
        if origin is not None and report.hub == self._hub_id():
            return None  # nobody knows better

        # 1. The new part. If that hub is unknown here, the process before may have reported some of it.
        if count is not None:
            known = sure = count.total
        else:
            known = report.acknowledged
            sure = known if self._since < report.since else report.reported_before
        if report.total <= known:
            return None
        news = LossReport(report.hub, report.cause, known, sure, report.total, report.since)

        # 2. Count it. The parent may know as much as was reported to the children.
        if count is None:
            self._make_room()
            count = self._counts[key] = _Count(known, known, report.reported_before, known, report.since)
        if count.acknowledged == count.total:
            count.since = report.since
        count.total = report.total
        if is_parent or not self._has_parent:
            count.acknowledged = count.reported_before = count.reported = count.total
            self._open.pop(key, None)
        else:
            self._open[key] = None

        # 3. Pass it on, together with losses that were not passed on yet.
        earlier = self._news.get(key)
        self._news[key] = News(earlier.report.joined_by(news) if earlier is not None else news, origin)
        self._changes += 1
        self._context.running.delivery_barrier.note(self, True)
        self._pass_on_later()
        return news

    def _make_room(self) -> None:
        """Forget the oldest count where there are too many. The part that the parent may not know is uncertain then."""
        if len(self._counts) < _COUNTS:
            return
        key = next(key for key in self._counts if key[0] != self._hub_id())
        count = self._counts.pop(key)
        self._since = time()
        if key in self._open:
            del self._open[key]
            own = self._hub_id(), UNCERTAIN
            mine = self._counts.setdefault(own, _Count(0, 0, 0, 0, count.since))
            mine.total += count.total - count.acknowledged
            self._open[own] = None

    # -- passing it on ------------------------------------------------------------------------------

    def _pass_on_later(self) -> None:
        """Pass on new losses, at most once in :attr:`~sbuslib.limits.Limits.link_notices`."""
        if not self._waits:
            self._waits = True
            pause = 0.0 if self._hurries else max(0.0, self._next_at - monotonic())
            self._context.running.after(pause, self._on_time)

    def hurry(self, hurries: bool) -> None:
        """Whether news are passed on at once, since all links are about to end."""
        self._hurries = hurries
        if hurries:
            self.pass_on()

    def _on_time(self) -> None:
        self._waits = False
        self.pass_on()

    def pass_on(self) -> None:
        """Pass on new losses: to clients and the children now, or as soon as this hub has settled."""
        if self._news and (self._hurries or self._has_settled()):
            news, self._news = self._news, {}
            self._next_at = monotonic() + self._context.limits.link_notices
            self._announce(list(news.values()))
        self._report_to_parent()

    def _report_to_parent(self) -> None:
        """Report to the parent the losses that were not reported over this link, and have it acknowledge them."""
        if self._say is not None:
            open_counts = [
                (key, self._counts[key]) for key in self._open if self._counts[key].total > self._counts[key].reported
            ]
            self._report(open_counts)
        self._settle()

    def _report(self, counts: list[tuple[tuple[bytes, str], _Count]]) -> None:
        if not counts or self._say is None:
            return
        reports = []
        for (hub, cause), count in counts:
            known = count.acknowledged, count.reported_before, count.total
            reports.append(LossReport(hub, cause, *known, count.since))
            count.reported = count.total
        self._say(*encode_loss_reports([report.encode() for report in reports]))
        changes = self._changes - len(self._news)

        def note(scope: bytes | None) -> None:
            if scope is not None:
                self._acknowledge(reports, changes)

        self._ask(note)

    def _acknowledge(self, reports: Iterable[LossReport], changes: int) -> None:
        """The parent knows so much."""
        for report in reports:
            key = report.hub, report.cause
            count = self._counts.get(key)
            if count is None:
                continue
            count.acknowledged = max(count.acknowledged, report.total)
            if count.acknowledged == count.total:
                self._open.pop(key, None)
        self._done = max(self._done, changes)
        self._settle()

    def _settle(self) -> None:
        """Whether all is known above, or nobody has to know."""
        if not self._news and not self._open:
            self._done = self._changes
        self._context.running.delivery_barrier.note(self, bool(self.queued))
        self._on_known()
        self._context.running.delivery_barrier.check()

    @property
    def own(self) -> int:
        """Messages that this hub has lost itself, and that the parent may not know of."""
        own = [self._counts[key] for key in self._open if key[0] == self._hub_id()] if self._open else []
        return sum(count.total - count.acknowledged for count in own)

    @property
    def queued(self) -> int:
        """Changes that the parent does not know for certain, or that were not passed on."""
        return self._changes - self._done

    @property
    def delivered(self) -> int:
        """Changes that are none of these any more."""
        return self._done

    # -- the parent ------------------------------------------------------------------------------

    def attach(self, on_known: Callable[[], None]) -> None:
        """From now on there is a parent, joined or not, which has to know all. ``on_known``: it knows more."""
        self._has_parent = True
        self._on_known = on_known

    def detach(self) -> None:
        """There is none any more, or it does not believe this hub: nobody above has to know."""
        self._has_parent = False
        for key in self._open:
            count = self._counts[key]
            count.acknowledged = count.reported_before = count.reported = count.total
        self._open.clear()
        self._settle()

    def begin_link(self, say: Callable[..., None], ask: Callable[[OnAnswer], None]) -> None:
        """This hub has joined: report all losses that the parent may not know."""
        self._say, self._ask = say, ask
        open_counts = [(key, self._counts[key]) for key in self._open]
        lost: Counter[str] = Counter()
        for (_, cause), count in open_counts:
            count.reported_before = max(count.reported_before, count.reported)
            count.reported = count.acknowledged
            lost[cause] += count.total - count.reported_before
        for cause, number in lost.items():
            if number:
                text = "sbus hub at %s: %d messages to the parent: %s"
                log(logging.WARNING, text, self._context.address(), number, cause)
        self._report(open_counts)

    def end_link(self) -> None:
        """The link has ended."""
        self._say = None
