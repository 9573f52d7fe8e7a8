"""What the links below are told of the patterns that are wanted, and in whose turns.

There is one index for all links in mode ``announce`` (:mod:`sbuslib.tree.interest`) and one for all links in mode
``prune`` (:mod:`sbuslib.tree.pruning`). A change of patterns is noted in both at once, and visits no link. Links that
have to be told something stand in a queue, and are told it in turns of the user whose change it was
(:class:`~sbuslib.core.user_work.UserWork`). A change that the hub above makes counts as one of the hub's own user.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from typing import Final

from ..core.context import Context
from ..core.protocols import Receiver
from ..core.quotas import Account
from ..core.send_watcher import SEND_RETRY
from .interest import PAGE, Interest, Reader
from .pruning import Pruning
from .roles import Neighbour

__all__ = ["TOLD_PATTERNS", "Telling"]

TOLD_A_TURN: Final = 256
"""Changes that links are told in one step of a user's turn, up to a page of the log more: about a millisecond."""

TOLD_PATTERNS: Final = 1_048_576
"""Patterns that all links together are told, before they are replaced by wider ones. So many take some seconds to tell,
and some 500 MB in the hubs below. Up to 16 links are told as many each as ``Limits.link_patterns`` allows."""


class Telling:
    """The links, and which of them have to be told something."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.interest = Interest(context.router, context.limits.link_patterns)
        """Which patterns links have to hold."""
        self.pruning = Pruning(context.router.namespace.separator)
        """Which keys links were told not to send."""
        self.started = False
        """Whether the hub listens."""
        self.own = os.getuid()
        """What the hub above and the hub itself change is charged to this user: the hub's own."""
        self._links: dict[Hashable, Neighbour] = {}  # all but those in mode "prune", by what routes hold for them
        self._pruned: dict[Neighbour, None] = {}  # links in mode "prune"
        self._behind: OrderedDict[Neighbour, None] = OrderedDict()  # may have to be told something
        self._full: dict[Neighbour, None] = {}  # have to read before they can be told more
        self._marked = 0  # the last change for all links after which they were put into the queue
        self._awake: set[int] = set()  # users for whom a step is due
        self._waiting: set[int] = set()  # users whose changes wait for room on a link

    def start(self) -> None:
        """The hub listens."""
        self.started = True

    def stop(self) -> None:
        """The hub stops: nothing is told any more."""
        self.started = False
        self.pruning.searches.clear()
        self._behind.clear()
        self._full.clear()
        self._awake.clear()
        self._waiting.clear()

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
            self.mark_all()

    # -- changes ------------------------------------------------------------------------------------

    def _on_want(self, subscriber: Receiver, account: Account, pattern: bytes, wanted: bool) -> None:
        """A client here, or a link, began (``True``) or ceased (``False``) to hold a pattern."""
        if wanted:
            self._want(pattern, account.uid)
        self.interest.changed(pattern, subscriber, wanted)
        if self.interest.number != self._marked or self.interest.noted:
            self.wake(account.uid)

    def want_again(self, key: bytes) -> None:
        """The hub above may want a key again that it had pruned: those below may have been told not to send it."""
        self._want(key, self.own)

    def _want(self, pattern: bytes, user: int) -> None:
        work = self.pruning.want(pattern, user)
        if work is not None:
            self._context.work.add(work[0], self._graft(*work))

    def _graft(self, user: int, search: Iterator[None]) -> Iterator[None]:
        for _ in search:
            self.wake(user)
            yield
        self.mark(self._pruned)  # questions may have waited for it
        self.wake(user)

    def mark(self, links: Iterable[Neighbour]) -> None:
        """These links may have to be told something. Somebody has to :meth:`wake` then."""
        for link in links:
            if link not in self._full:
                self._behind[link] = None

    def mark_all(self) -> None:
        """All links have to be told something that the hub itself has changed."""
        self.mark(self._links.values())
        self.mark(self._pruned)
        self.wake()  # told only as often as there is room: a client that turns senders on and off floods no link

    # -- telling ------------------------------------------------------------------------------------

    def wake(self, user: int | None = None) -> None:
        """Tell others what a user has changed, in turns of that user; ``None``: the hub itself has."""
        user = self.own if user is None else user
        if self.started and user not in self._awake:
            self._awake.add(user)
            self._context.work.add(user, self._tell_all(user))

    def do_later(self, job: Iterator[None]) -> None:
        """Do something in small steps, in turns of the hub's own user."""
        self._context.work.add(self.own, job)

    def _tell_all(self, user: int) -> Iterator[None]:
        while True:
            self._awake.discard(user)
            more = self._tell(TOLD_A_TURN)
            if self._full:
                self._wait_for_room(user)
            if not more or user in self._awake:
                return  # woken meanwhile, it goes on as a job of its own
            self._awake.add(user)
            yield

    def _tell(self, most: int) -> bool:
        """Tell links up to ``most`` changes. Returns whether more can be told now."""
        # 1. Which have to be told something.
        if not self._behind and self._marked != self.interest.number:  # all have been told what was marked last
            self._marked = self.interest.number
            self.mark(self._links.values())
        noted = self.interest.noted
        while noted:
            link = self._links.get(noted.popitem()[0])
            if link is not None:
                self.mark([link])

        # 2. Each is told all, or as much as there is room for.
        while self._behind and most > 0:
            link, _ = self._behind.popitem(last=False)
            most -= 1 + link.tell(PAGE)
            if link.has_more:
                (self._behind if link.room > 0 else self._full)[link] = None
        return bool(self._behind) or self._marked != self.interest.number

    def _wait_for_room(self, user: int) -> None:
        if not self._waiting:
            self._context.after(SEND_RETRY, self._try_again)
        self._waiting.add(user)

    def _try_again(self) -> None:
        """Links that had to read may have done so."""
        full, self._full = self._full, {}
        self.mark(full)
        waiting, self._waiting = self._waiting, set()
        for user in waiting:
            self.wake(user)
