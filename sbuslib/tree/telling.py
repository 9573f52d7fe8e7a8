"""What the links below are told of the patterns that are wanted, and in whose turns.

There is one index for all links in mode ``announce`` (:mod:`sbuslib.tree.interest`) and one for all links in mode
``prune`` (:mod:`sbuslib.tree.pruning`). A change of patterns is noted in both at once, and visits no link. Links that
have to be told something stand in a queue, and are told it in turns of the user whose change it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from ..core.context import Context
from ..core.outgoing import Outgoing
from ..core.protocols import Receiver
from .announcements import Reader
from .interest import Interest
from .pruning import Pruning

__all__ = ["TOLD_PATTERNS", "Telling"]

TOLD_PATTERNS: Final = 1_048_576
"""Patterns that all links together are told, before they are replaced by wider ones. So many take some seconds to tell,
and some 500 MB in the hubs below. Up to 16 links are told as many each as ``Limits.link_patterns`` allows."""


class Told(Protocol):
    """A link, as it is told."""

    connection: Outgoing
    reader: Reader | None
    """What it has still to be told, in mode ``announce``."""

    def __hash__(self) -> int: ...

    def tell(self, most: int) -> int:
        """Tell up to ``most`` changes, as far as there is room. Returns how many."""

    @property
    def has_more(self) -> bool:
        """Whether there is more to tell."""

    @property
    def room(self) -> int:
        """How many more packets may wait for the link."""


class Telling:
    """The links below, and which of them have to be told something.

    :param wanted_above: the patterns that the hub above wants, as far as this hub knows.
    """

    def __init__(self, context: Context, wanted_above: Callable[[], list[bytes]]) -> None:
        self._context = context
        self._wanted_above = wanted_above
        self.interest: Interest | None = None
        """While there are links in mode ``announce``."""
        self.pruning = Pruning(context.router.namespace.separator)
        # Numbers of links in mode "announce". The router gives back the patterns of a link after it has ended.
        self._numbers: WeakKeyDictionary[Receiver, int] = WeakKeyDictionary()
        self._last_number = 0
        self._links: dict[int, Told] = {}  # by number
        self._pruned: dict[Told, None] = {}  # links in mode "prune"
        self._behind: OrderedDict[Told, None] = OrderedDict()  # may have to be told something
        self._full: dict[Told, None] = {}  # have to read before they can be told more
        self._marked = 0  # the last change for all links after which they were put into the queue

    # -- links --------------------------------------------------------------------------------------

    def add(self, link: Told, announce: bool) -> None:
        """A link begins, in mode ``announce`` or ``prune``."""
        if announce:
            self._add_reader(link, link.connection.account.uid)
        else:
            self._pruned[link] = None
        self.mark([link])

    def _add_reader(self, link: Told, user: int) -> None:
        router, client = self._context.router, link.connection
        self._last_number += 1
        number = self._last_number
        self._links[number] = link
        if self.interest is None:
            self._numbers[client] = number
            self._marked = 0
            self.interest = Interest(router.namespace.separator, self._most)
            held = [(patterns, self._numbers.get(one, 0)) for one, patterns in router.plain_patterns()]
            held.append((self._wanted_above(), 0))
            self.interest.feed(((one, number, 1) for patterns, number in held for one in patterns), user)
        else:
            # What the client subscribed to before it said that it is a link: from now on the link wants it.
            before = [one for one in router.patterns(client) if not router.namespace.is_secret(one)]
            self._numbers[client] = number
            self.interest.feed((change for one in before for change in ((one, number, 1), (one, 0, -1))), user)
            self.interest.set_room(self._most, user)
        link.reader = self.interest.reader(number)

    @property
    def is_feeding(self) -> bool:
        """Whether patterns from before there were links are still to be told."""
        return self.interest is not None and self.interest.feeding

    @property
    def _most(self) -> int:
        """How many patterns each link is told at most."""
        return min(self._context.limits.link_patterns, max(1, TOLD_PATTERNS // max(1, len(self._links))))

    def forget(self, link: Told, user: int) -> None:
        """A link has ended. The work that follows belongs to ``user``."""
        self._behind.pop(link, None)
        self._full.pop(link, None)
        self._pruned.pop(link, None)
        number = self._numbers.get(link.connection, 0)
        if self._links.pop(number, None) is None or self.interest is None:
            return
        if self._links:
            self.interest.announcements.forget(number)
            self.interest.set_room(self._most, user)
        else:
            self.interest = None

    # -- changes ------------------------------------------------------------------------------------

    def watch(self, subscriber: Receiver | None, pattern: bytes, wanted: bool, user: int) -> None:
        """A subscriber, or ``None``: the hub above, began (``True``) or ceased (``False``) to want a pattern."""
        if wanted:
            self.pruning.want(pattern, user)
        if self.interest is not None:
            number = self._numbers.get(subscriber, 0) if subscriber is not None else 0
            (self.interest.add if wanted else self.interest.remove)(pattern, user, number)

    def has_work(self, user: int) -> bool:
        """Whether a user's changes have to be worked out, or to be told."""
        if self.pruning.has_work(user):
            return True
        interest = self.interest
        if interest is None:
            return False
        announcements = interest.announcements
        return interest.has_work(user) or announcements.number != self._marked or bool(announcements.noted)

    def work(self, steps: int, user: int) -> bool:
        """Do up to ``steps`` steps of the work that a user's changes cause; whether there is more of it."""
        interest = self.interest
        fed, searched = self.is_feeding, self.pruning.has_work(user)
        more = self.pruning.work(steps, user)
        if searched and not more:
            self.mark(self._pruned)  # questions may have waited for it
        if interest is not None:
            more = interest.work(steps, user) or more
            if fed and not self.is_feeding:
                self.mark(self._links.values())
        return more

    # -- telling ------------------------------------------------------------------------------------

    def mark(self, links: Iterable[Told]) -> None:
        """These links may have to be told something."""
        for link in links:
            if link not in self._full:
                self._behind[link] = None

    def tell(self, most: int) -> bool:
        """Tell links up to ``most`` changes. Returns whether more can be told now."""
        if self.interest is not None:
            announcements = self.interest.announcements
            if self._marked != announcements.number:
                self._marked = announcements.number
                self.mark(self._links.values())
            while announcements.noted:
                self.mark([self._links[announcements.noted.popitem()[0]]])
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
