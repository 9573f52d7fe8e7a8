"""Interest of the parent: which messages that are published here go up.

It wants everything, or the patterns that it announced, except keys that it pruned. ``export=`` bounds that, but not
secrets: those of clients below this hub stay, all others go up.

The parent holds these patterns in the router of this hub, as any subscriber does, so they are announced to children as
any others. While the link is broken the parent goes on to hold them. Patterns that it has not announced anew, once it
has announced everything, are removed in small steps (:meth:`ParentInterest.settle`). Messages from the parent are never
sent back to it (:meth:`~sbuslib.tree.link.Link.look_up`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..core.protocols import Receiver, Routes
from ..core.quotas import Account
from ..core.router import Router
from ..errors import PacketError
from ..matcher import Pattern, Subscriptions
from .pruning import PRUNED_BYTES


def index(patterns: Iterable[bytes] | None, separator: bytes) -> Subscriptions[bytes] | None:
    """Return an index for matching keys with ``patterns``; ``None`` for no bounds."""
    if patterns is None:
        return None
    made: Subscriptions[bytes] = Subscriptions(separator)
    for pattern in patterns:
        made.add(Pattern(pattern, separator), b"")
    return made


class ParentInterest:
    """Interest of the parent. It counts as wanting everything until it has announced everything for the first time.

    :param holder: stands for it in the router.
    :param account: the account to which its patterns are charged.
    :param export: the patterns that may go up, ``None`` for all.
    :param takes_secrets: whether secrets cross.
    :param most: how many keys it may prune.
    """

    def __init__(
        self,
        router: Router[Receiver],
        holder: Receiver,
        account: Account,
        export: list[bytes] | None,
        takes_secrets: Callable[[], bool],
        most: int,
    ) -> None:
        self._router = router  # of this hub
        self._holder = holder
        self._account = account
        self._takes_secrets = takes_secrets
        self._most = most
        self.pruned: dict[bytes, None] = {}
        """Keys that nobody above wants, oldest first."""
        self._everything = False  # whether it is taken to want everything
        self._all: list[bytes] = []  # what it is presumed to want for that: all that may go up, with the mark
        self._too_many = False  # whether it announced more than may be held, so that this is so for the whole link
        self._announced: dict[bytes, None] = {}  # over this link
        self._former: dict[bytes, None] = {}  # over the last link, and not announced anew
        self.set_export(export)

    def __len__(self) -> int:
        """How many patterns were announced."""
        return len(self._announced)

    @property
    def is_bounded(self) -> bool:
        """Whether only some patterns may go up."""
        return self._exports is not None

    def set_export(self, export: list[bytes] | None) -> None:
        """From now on other patterns may go up."""
        self._exports = index(export, self._router.namespace.separator)  # those that may, by key
        self._export = [b""] if export is None else export  # the same as patterns
        self.want_all(self._everything)
        self._router.reconsider_all()

    def may_export(self, key: bytes) -> bool:
        """Whether a key, which is no secret, may go up."""
        return self._exports is None or bool(self._exports.subscribers(key))

    def begin(self) -> None:
        """The relay has started: everything is wanted, as far as this hub knows."""
        self._router.adjust = self._adjust
        self.want_all(True)

    def end(self) -> None:
        """The relay has stopped: nothing is wanted above."""
        self.begin_anew()
        for _ in self.settle(everything=False):
            pass
        self.abandon()

    def abandon(self) -> None:
        """In the child of a fork, and at the end: keep only the held patterns, which leave the router with the
        holder.
        """
        self._router.adjust = None
        self._router.reconsider_all()

    def _adjust(self, key: bytes, secret: bool, found: Routes) -> Routes:
        """The receivers of a key that the router found, without the parent if it may not have it, and with secrets
        that go up."""
        if not secret:
            may_go = key not in self.pruned and self.may_export(key)
            return found if may_go else tuple(one for one in found if one is not self._holder)
        # Until the first prefix is known, this hub does not know whose a secret is. So it goes up and stays here.
        namespace = self._router.namespace
        ours = bool(namespace.prefix) and key.startswith(namespace.prefix + namespace.start)
        return found if ours or not self._takes_secrets() else (*found, self._holder)

    def begin_anew(self) -> bool:
        """Begin another link: earlier announcements hold until the parent has announced everything; earlier prunes do
        not.

        Returns whether there were pruned keys.
        """
        pruned, self.pruned = self.pruned, {}
        if pruned:
            self._router.reconsider_all()
        self._former.update(self._announced)
        self._announced.clear()
        self._too_many = False
        return bool(pruned)

    def settle(self, everything: bool) -> Iterator[None]:
        """The parent has announced everything; or it never will, and is sent everything.

        Patterns that it has not announced anew are removed, one a step.
        """
        self.want_all(everything)
        former, self._former = self._former, {}  # what links after this one announced is not among these
        while former:
            pattern, _ = former.popitem()
            self._router.unsubscribe(pattern, self._holder, self._account)
            yield

    def want_all(self, everything: bool) -> None:
        """Whether the parent is presumed to want all that may go up."""
        self._everything = everything or self._too_many
        presumption = self._router.namespace.presumption
        former, self._all = self._all, [presumption + raw for raw in self._export] if self._everything else []
        for pattern in self._all:
            self._router.subscribe_anyway(pattern, self._holder, self._account)
        for pattern in former:
            self._router.unsubscribe(pattern, self._holder, self._account)

    # -- what the parent says --------------------------------------------------------------------

    def announce(self, pattern: bytes) -> None:
        """Somebody above wants a pattern. Where that is one too many, everything goes up: that takes no memory."""
        namespace = self._router.namespace
        if pattern in self._announced or namespace.uses_reserved(namespace.unmark(pattern)[1]):
            return
        if pattern in self._former:
            del self._former[pattern]
        else:
            try:
                cut = self._router.cut_marked(pattern)
                self._router.subscribe(cut, self._holder, self._holder.credentials, self._account)
            except PacketError:
                self._too_many = True
                self.want_all(True)
                return
        self._announced[pattern] = None

    def take_back(self, pattern: bytes) -> None:
        """Nobody above wants a pattern any more."""
        if pattern in self._announced:
            del self._announced[pattern]
            self._router.unsubscribe(pattern, self._holder, self._account)

    def prune(self, key: bytes) -> None:
        """Nobody above wants a key. Beyond so many keys, the oldest goes up again."""
        if len(key) <= PRUNED_BYTES:
            self.pruned[key] = None
            self._router.reconsider_key(key)
            if len(self.pruned) > self._most:
                self.graft(next(iter(self.pruned)))

    def graft(self, key: bytes) -> None:
        """Somebody above may want a key again."""
        if key in self.pruned:
            del self.pruned[key]
            self._router.reconsider_key(key)
