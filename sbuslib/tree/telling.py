"""What the links below are told of the patterns that are wanted, and in whose turns.

There is one index for all links in mode ``announce`` (:mod:`sbuslib.tree.interest`) and one for all links in mode
``prune`` (:mod:`sbuslib.tree.pruning`). A change of patterns is noted in both at once, and visits no link. Links that
have to be told something stand in a queue, and are told it in turns of the user whose change it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from ..core.context import Context
from ..core.protocols import Receiver
from ..core.quotas import Account
from .interest import Interest, Reader
from .neighbours import Neighbour
from .pruning import Pruning

__all__ = ["TOLD_PATTERNS", "Telling"]

TOLD_PATTERNS: Final = 1_048_576
"""Patterns that all links together are told, before they are replaced by wider ones. So many take some seconds to tell,
and some 500 MB in the hubs below. Up to 16 links are told as many each as ``Limits.link_patterns`` allows."""


class Telling:
    """The links, and which of them have to be told something.

    :param on_want: called as the router's ``watch``, while there are links.
    """

    def __init__(self, context: Context, on_want: Callable[[Receiver, Account, bytes, bool], None]) -> None:
        self._context = context
        self._on_want = on_want
        self.interest = Interest(context.router, context.limits.link_patterns)
        """Which patterns links have to hold."""
        self.pruning = Pruning(context.router.namespace.separator)
        """Which keys links were told not to send."""
        self._links: dict[Hashable, Neighbour] = {}  # all but those in mode "prune", by what routes hold for them
        self._pruned: dict[Neighbour, None] = {}  # links in mode "prune"
        self._behind: OrderedDict[Neighbour, None] = OrderedDict()  # may have to be told something
        self._full: dict[Neighbour, None] = {}  # have to read before they can be told more
        self._marked = 0  # the last change for all links after which they were put into the queue

    # -- links --------------------------------------------------------------------------------------

    def announce_to(self, link: Neighbour) -> Reader:
        """A link begins that is told patterns. Returns which."""
        self._links[link.receiver] = link
        self._count_links()
        self.mark([link])
        return self.interest.reader(link.receiver)

    def prune(self, link: Neighbour) -> None:
        """A link in mode ``prune`` begins."""
        self._pruned[link] = None
        self._count_links()
        self.mark([link])

    def forget(self, link: Neighbour) -> None:
        """A link has ended."""
        self._behind.pop(link, None)
        self._full.pop(link, None)
        self._pruned.pop(link, None)
        if self._links.pop(link.receiver, None) is not None:
            self.interest.forget(link.receiver)
        self._count_links()

    def _count_links(self) -> None:
        """Choose how many patterns each link is told at most, and whether changes have to be noted at all."""
        self._context.router.watch = self._on_want if self._links or self._pruned else None
        most = min(self._context.limits.link_patterns, max(1, TOLD_PATTERNS // max(1, len(self._links))))
        if most != self.interest.most:
            self.interest.most = most
            self.mark(self._links.values())

    # -- changes ------------------------------------------------------------------------------------

    def watch(self, subscriber: Receiver, pattern: bytes, wanted: bool, user: int) -> None:
        """A subscriber began (``True``) or ceased (``False``) to want a pattern."""
        if wanted:
            self.pruning.want(pattern, user)
        self.interest.changed(pattern, subscriber, wanted)

    def has_work(self, user: int) -> bool:
        """Whether a user's changes have to be worked out, or to be told."""
        return self.pruning.has_work(user) or self.interest.number != self._marked or bool(self.interest.noted)

    def work(self, steps: int, user: int) -> bool:
        """Do up to ``steps`` steps of the work that a user's changes cause; whether there is more of it."""
        searched = self.pruning.has_work(user)
        more = self.pruning.work(steps, user)
        if searched and not more:
            self.mark(self._pruned)  # questions may have waited for it
        return more

    # -- telling ------------------------------------------------------------------------------------

    def mark(self, links: Iterable[Neighbour]) -> None:
        """These links may have to be told something."""
        for link in links:
            if link not in self._full:
                self._behind[link] = None

    def mark_all(self) -> None:
        """All links may have to be told something."""
        self.mark(self._links.values())
        self.mark(self._pruned)

    def tell(self, most: int) -> bool:
        """Tell links up to ``most`` changes. Returns whether more can be told now."""
        if self._marked != self.interest.number:
            self._marked = self.interest.number
            self.mark(self._links.values())
        noted = self.interest.noted
        while noted:
            link = self._links.get(noted.popitem()[0])
            if link is not None:
                self.mark([link])
        while self._behind and most > 0:
            link, _ = self._behind.popitem(last=False)
            most -= 1 + link.tell(most)
            if link.has_more:
                (self._behind if link.room > 0 else self._full)[link] = None
        return bool(self._behind)

    @property
    def is_full(self) -> bool:
        """Whether a link has to read before it can be told more."""
        return bool(self._full)

    def try_again(self) -> None:
        """Links that had to read may have done so."""
        full, self._full = self._full, {}
        self.mark(full)

    def clear(self) -> None:
        """The hub has stopped."""
        self._behind.clear()
        self._full.clear()
