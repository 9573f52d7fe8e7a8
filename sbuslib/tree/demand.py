"""Which messages go up: what the hub above wants of what is published here, and may have.

It wants everything, what it announced, or all but the keys that it pruned. ``export=`` bounds that, but not secrets:
those of clients below this hub stay, all others go up.

The hub above holds that in the router of this hub, as any subscriber does, so that the links below are told of it as of
any other. While the link is broken it goes on to hold what it held. What it has not announced anew, when it has said
all that it wants, is taken back in small steps (:meth:`Demand.settle`). What came from above is never sent back
(:meth:`~sbuslib.tree.hub_link.Link.receivers_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from ..core.context import Context
from ..core.protocols import Routes
from ..covering import narrow
from ..errors import PacketError
from ..matcher import Pattern, Subscriptions
from .narrowing import Narrowed, PatternHolder
from .pruning import KeyTable

__all__ = ["Demand", "index"]


def index(patterns: Iterable[bytes] | None, separator: bytes) -> Subscriptions[bytes] | None:
    """An index that tells whether a key matches any of ``patterns``; ``None`` for no bounds."""
    if patterns is None:
        return None
    made: Subscriptions[bytes] = Subscriptions(separator)
    for pattern in patterns:
        made.add(Pattern(pattern, separator), b"")
    return made


class Demand:
    """What the hub above wants. It is taken to want everything until it has said all for the first time.

    :param holder: what stands for it in the router.
    :param export: the patterns that may go up, ``None`` for all.
    :param takes_secrets: whether secrets cross.
    """

    def __init__(
        self, context: Context, holder: PatternHolder, export: list[bytes] | None, takes_secrets: Callable[[], bool]
    ) -> None:
        self._router = context.router  # of this hub
        self._holder = holder
        self._export = export
        self._takes_secrets = takes_secrets
        self._holds = Narrowed(context, holder, self._narrow)  # the patterns, narrowed to those that may go up
        self._all = False  # whether it is taken to want everything
        self._too_many = False  # whether it announced more than may be held, so that this is so for the whole link
        self._announced: dict[bytes, None] = {}  # over this link
        self._former: dict[bytes, None] = {}  # over the last link, and not announced anew
        self.pruned = KeyTable(context.limits.pruned_keys)
        """Keys that nobody above wants."""

    def __len__(self) -> int:
        """How many patterns were announced."""
        return len(self._announced)

    @property
    def is_bounded(self) -> bool:
        """Whether only some patterns may go up."""
        return self._export is not None

    def set_export(self, export: list[bytes] | None) -> Iterator[None]:
        """From now on other patterns may go up. What is held is narrowed anew, one pattern a step."""
        self._export = export
        return self._holds.review()

    def _narrow(self, pattern: bytes) -> list[bytes]:
        return narrow(pattern, self._export, self._router.namespace.separator)

    def begin(self) -> None:
        """The relay has started: everything is wanted, as far as this hub knows."""
        self._router.adjust = self._adjust
        self.want_all(True)

    def end(self) -> None:
        """The relay has stopped: nothing is wanted above."""
        self.begin_anew()
        for _ in self.settle(everything=False):
            pass
        self._holds.close()
        self.abandon()

    def abandon(self) -> None:
        """In the child of a fork, and at the end: only what is held stays, which leaves the router with the holder."""
        self._router.adjust = None
        self._router.reconsider_all()

    def _adjust(self, key: bytes, secret: bool, found: Routes) -> Routes:
        """The receivers of a key that the router found, without what was pruned, and with secrets that go up."""
        namespace = self._router.namespace
        if not secret:
            return tuple(one for one in found if one is not self._holder) if key in self.pruned else found
        # Until the first prefix is known, this hub does not know whose a secret is. So it goes up and stays here.
        ours = bool(namespace.prefix) and key.startswith(namespace.prefix + namespace.start)
        return found if ours or not self._takes_secrets() else (*found, self._holder)

    def begin_anew(self) -> bool:
        """Another link: what the hub above said before holds until it has said all, but for the keys that it pruned.

        Returns whether there were such keys.
        """
        pruned = self.pruned.all_keys()
        self._former.update(self._announced)
        self._announced.clear()
        self._too_many = False
        for key in pruned:
            self.graft(key)
        return bool(pruned)

    def settle(self, everything: bool) -> Iterator[None]:
        """The hub above has said all that it wants; or it never will, and is sent everything.

        What it has not announced anew is taken back, one pattern a step.
        """
        self.want_all(everything)
        while self._former:
            pattern, _ = self._former.popitem()
            self._holds.unsubscribe(pattern)
            yield

    def want_all(self, everything: bool) -> None:
        """Whether the hub above is taken to want all that may go up."""
        everything = everything or self._too_many
        if everything is not self._all:
            self._all = everything
            if everything:
                with suppress(PacketError):  # nothing may go up
                    self._holds.subscribe(b"", anyway=True)
            else:
                self._holds.unsubscribe(b"")

    # -- what the hub above says --------------------------------------------------------------------

    def announce(self, pattern: bytes) -> None:
        """Somebody above wants a pattern."""
        if pattern in self._announced or self._router.namespace.uses_reserved(pattern):
            return
        if pattern in self._former:
            del self._former[pattern]
        else:
            try:
                self._holds.subscribe(pattern)
            except PacketError:
                if not self._holds.holds(pattern):  # too much: to send everything takes neither memory nor time
                    self._too_many = True
                    self.want_all(True)
                    return
        self._announced[pattern] = None

    def take_back(self, pattern: bytes) -> None:
        """Nobody above wants a pattern any more."""
        if pattern in self._announced:
            del self._announced[pattern]
            self._holds.unsubscribe(pattern)

    def prune(self, key: bytes) -> None:
        """Nobody above wants a key."""
        for one in (key, *self.pruned.add(key)):
            self._router.reconsider_key(one)

    def graft(self, key: bytes) -> bool:
        """Somebody above may want a key again. Whether it was pruned."""
        if not self.pruned.discard(key):
            return False
        self._router.reconsider_key(key)
        return True
