"""Interest propagation: announces local interest to other hubs, in turns of the user whose change it was.

Links that are behind stand in a queue, and are sent announcements in turns of that user
(:class:`~sbuslib.core.charged_work.ChargedWork`). A change that the parent makes counts as one of the hub's own user.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final

from ..core.callback_errors import report_to_event_loop
from ..core.context import Context
from ..core.protocols import Receiver
from ..core.quotas import Account
from ..core.recurring_job import Steps, UserJobs
from ..core.send_watcher import SEND_RETRY
from ..matcher import Pattern
from .interest import Interest, InterestCursor
from .link_interfaces import Neighbour
from .pruning import PrunedKeys, Pruning

TOLD_A_TURN: Final = 256
"""Changes announced to links in one step of a user's turn, up to as many more: about a millisecond."""

TOLD_PATTERNS: Final = 1_048_576
"""Patterns that are announced to all links together, before wider ones replace them. So many take seconds to announce,
and some 500 MB in the children. Up to 16 links get as many each as ``Limits.link_patterns`` allows."""


class InterestPropagation:
    """Announces interest to the links, and knows which of them are behind."""

    def __init__(self, context: Context) -> None:
        self._context = context
        router = context.router
        self.interest = Interest(router, context.limits.link_patterns, router.namespace.presumption)
        """Which patterns links have to hold."""
        self.pruning = Pruning(router.is_received, context.limits.pruned_keys)
        """Keys that are pruned, by link."""
        self.started = False
        """Whether the hub listens."""
        self.own = os.getuid()
        """The hub's own user, to whom changes of the parent and the hub itself are charged."""

        self._links: dict[Hashable, Neighbour] = {}  # all
        self._behind: OrderedDict[Hashable, None] = OrderedDict()  # may be behind
        self._full: dict[Hashable, None] = {}  # have to read before they can be sent more
        self._announcing = UserJobs(context, self._announce_all)
        self._waiting: set[int] = set()  # users whose changes wait for room on a link

    def start(self) -> None:
        """The hub listens."""
        self.started = True

    def stop(self) -> None:
        """The hub stops: announce nothing more."""
        self.started = False
        self._behind.clear()
        self._full.clear()
        self._waiting.clear()

    # -- links --------------------------------------------------------------------------------------

    def begin(self, link: Neighbour, presumes: bool) -> InterestCursor:
        """Begin a link to which patterns are announced. Returns its cursor for these.

        :param presumes: whether its other end knows the mark of what is presumed.
        """
        cursor = self.interest.begin(link.receiver, presumes)
        self._begin(link)
        return cursor

    def begin_pruned(self, link: Neighbour) -> PrunedKeys:
        """Begin a link on which keys are pruned. Returns its cursor for these."""
        cursor = self.pruning.begin(link.receiver)
        self._begin(link)
        return cursor

    def _begin(self, link: Neighbour) -> None:
        self._links[link.receiver] = link
        self._count_links()
        self.mark([link.receiver])

    def forget(self, link: Neighbour) -> None:
        """A link has ended."""
        for each in (self._links, self._behind, self._full):
            each.pop(link.receiver, None)
        self.interest.forget(link.receiver)
        self.pruning.forget(link.receiver)
        self._count_links()

    def _count_links(self) -> None:
        """Choose the most patterns announced to each link, and whether changes have to be noted at all."""
        count = len(self.interest.cursors)
        self._context.router.watch = self._on_want if self._links else None
        most = min(self._context.limits.link_patterns, max(1, TOLD_PATTERNS // max(1, count)))
        if most != self.interest.most:
            self.interest.most = most
            self.mark_all()

    # -- changes ------------------------------------------------------------------------------------

    def _on_want(self, subscriber: Receiver, account: Account, pattern: Pattern, wanted: bool) -> None:
        """A client here, or a link, began (``True``) or ceased (``False``) to hold a pattern."""
        links = [*self.interest.changed(pattern.name, subscriber, wanted)]
        if wanted:
            links += self.pruning.want(pattern)
        self.mark(links)
        if links or self._has_news:
            self.wake(account.uid)

    def want_key(self, key: bytes) -> None:
        """The parent may want a key again that it had pruned: graft it on the links where it is pruned."""
        self.mark(self.pruning.want_key(key))
        self.wake()

    def want_any(self) -> None:
        """The parent may want any key again."""
        self.pruning.look_at_all()
        self.wake()

    @property
    def _has_news(self) -> bool:
        """Whether there is something that all links of a kind have to look at."""
        return self.interest.has_news or self.pruning.has_news

    def mark(self, links: Iterable[Hashable]) -> None:
        """Note links that may be behind. The caller has to :meth:`wake` then."""
        for link in links:
            if link not in self._full:
                self._behind[link] = None

    def mark_all(self) -> None:
        """Note that the hub itself has changed something that all links have to be sent."""
        self.mark(self._links)
        self.wake()

    # -- announcing ---------------------------------------------------------------------------------

    def wake(self, user: int | None = None) -> None:
        """Tell others what a user has changed, in turns of that user; ``None``: the hub itself has."""
        if self.started:
            self._announcing.wake(self.own if user is None else user)

    def do_later(self, steps: Iterator[None], on_end: Callable[[], None]) -> None:
        """Do something in small steps, in turns of the hub's own user."""
        self._context.running.work.add(self.own, steps, on_end)

    def _announce_all(self, user: int) -> Steps:
        """Announce to each link that is behind all that it lacks, or as much as there is room for.

        The job rests then: a client that subscribes to much goes on meanwhile, and links are sent many changes at once.
        """
        # 1. All links that are behind, once.
        for kind in (self.interest, self.pruning):
            if kind.has_news:
                kind.has_news = False
                self.mark(kind.cursors)
        links, changes = len(self._behind), 0
        while links > 0 and self._behind:
            receiver, _ = self._behind.popitem(last=False)
            link = self._links.get(receiver)
            links -= 1
            if link is not None:
                told, has_more = self._announce_to(link)
                changes += 1 + told
                if has_more:
                    (self._behind if link.room > 0 else self._full)[receiver] = None
            if changes >= TOLD_A_TURN:
                changes = 0
                yield

        # 2. Those that have to read first, and those that have more to be sent.
        if self._full:
            self._wait_for_room(user)
        return 0.0 if self._behind or self._has_news else None

    @staticmethod
    def _announce_to(link: Neighbour) -> tuple[int, bool]:
        """How many changes a link was sent, and whether there are more."""
        try:
            return link.announce(TOLD_A_TURN)
        except Exception as error:
            link.give_up()  # a bug of ours: its state is unknown, and others wait
            report_to_event_loop(error)
            return 0, False

    def _wait_for_room(self, user: int) -> None:
        if not self._waiting:
            self._context.running.after(SEND_RETRY, self._try_again)
        self._waiting.add(user)

    def _try_again(self) -> None:
        """Links that had to read may have done so."""
        full, self._full = self._full, {}
        self.mark(full)
        waiting, self._waiting = self._waiting, set()
        for user in waiting:
            self.wake(user)
