"""What a hub tells its links of the patterns that are wanted: one index for all links.

**Owners.** A link has to be told what others than the link itself want. So a pattern that only one link wants does not
concern that link: the link is its *owner*. A pattern that is wanted by others too, or by a client here, has no owner.

**Witnesses.** A pattern that another one covers may have it as its *witness*. Witnesses may have witnesses. Owner and
witness decide which links are told a pattern (:meth:`Interest._settle`):

* without a witness: all links but its owner;
* if the witness has no owner, or the same: no link, it is *hidden*;
* if the witness belongs to another link: that link alone, since all others are told the witness.

*If others than a link want a pattern, the link is told it or one that covers it.* Proof: a pattern without a witness is
told to the link. If the witness belongs to the link, the link is told the pattern itself. If not, the same is true of
the witness in place of the pattern, and what covers the witness covers the pattern. This ends, since each witness is
wider than the last.

**Jobs.** When a wide pattern comes or goes, every pattern below it may have to be looked at. That is done in steps, by
:meth:`Interest.work`, and each job belongs to the user whose change began it. The jobs of one user may wait for any
length of time while those of others go on, and the proof holds meanwhile:

* a pattern that nobody wants any more keeps its owner and what it hides until each of these has found its place;
* a pattern that gets an owner is told to this link, too, until all that it hides has been looked at (``late``);
* a pattern that loses its owner, or its witness, is told to the links that need it at once.

A job that waits leaves at worst more told than need be.

**Widening.** If more than ``most`` patterns are told, the largest *family* is replaced: patterns with the same first
segment, by that segment and the separator, which cover them all. This is repeated while there are too many. If no
family is left that has two patterns, the empty pattern replaces all. A family has an owner if one link wants all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from ..matcher import SEPARATOR, is_literal
from .announcements import Announcements, Reader
from .pattern_index import PatternIndex

__all__ = ["Interest"]

NO_OWNER: Final = 0
ALL: Final = 0
NOBODY: Final = -1


class _Want:
    """One pattern that is wanted, or that still hides others."""

    __slots__ = (
        "count",
        "family",
        "hides",
        "indexed",
        "late",
        "owner",
        "pattern",
        "told_to",
        "total",
        "widened",
        "witness",
    )

    def __init__(self, pattern: bytes, family: _Family) -> None:
        self.pattern = pattern
        self.family = family
        self.count = 0  # how many want it, and the sum of their numbers
        self.total = 0
        self.widened = False  # whether it stands for its family
        self.owner = NO_OWNER
        self.late: object = None  # while it is told to its owner, too: a mark of the job that ends this
        self.told_to = NOBODY  # ALL links but the owner, NOBODY, or the one link of this number
        self.indexed = False  # whether others may have it as their witness
        self.witness: _Want | None = None
        self.hides: dict[_Want, None] | None = None  # those whose witness it is

    @property
    def is_wanted(self) -> bool:
        return self.count > 0 or self.widened

    @property
    def is_there(self) -> bool:
        """Whether it is told to anybody, or hidden."""
        return self.told_to != NOBODY or self.witness is not None

    def hides_from_all(self, other: _Want) -> bool:
        """Whether no link has to be told ``other``, which this one covers."""
        return self.owner == NO_OWNER or (self.owner == other.owner and other.late is None)


class _Family:
    """Patterns with the same first segment."""

    __slots__ = ("count", "members", "pattern", "squares", "told", "total", "widened")

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern  # which covers them all
        self.members = 0
        self.told = 0  # how many are told to any link
        self.widened = False
        self.count = 0  # pairs of a pattern and one that wants it; the sum of the numbers, and of their squares
        self.total = 0
        self.squares = 0

    def change(self, holder: int, count: int) -> None:
        self.count += count
        self.total += holder * count
        self.squares += holder * holder * count

    @property
    def owner(self) -> int:
        """The number of the link that wants all of it. By Cauchy and Schwarz, numbers with these sums are all equal."""
        alike = self.count > 0 and self.count * self.squares == self.total * self.total
        return self.total // self.count if alike else NO_OWNER


class Interest:
    """The patterns that are wanted, and what links are told of them.

    Links have numbers above 0, and everybody else who wants patterns has 0. Call :meth:`add` and :meth:`remove` for
    each change, and :meth:`work` until there is no more to do for that user. A :class:`~.announcements.Reader` says
    what a link has to be told.

    :param most: how many patterns are told at most before they are widened.
    """

    def __init__(self, separator: bytes = SEPARATOR, most: int = 65_536) -> None:
        self._separator = separator
        self._most = most
        self.announcements = Announcements(self.concerns)
        self._wants: dict[bytes, _Want] = {}
        self._index: PatternIndex[_Want] = PatternIndex(separator)
        self._jobs: dict[int, deque[Iterator[None]]] = {}  # by the user whose change began them
        self._feeds = 0
        self.wanted = 0
        """How many distinct patterns are wanted."""
        self._told = 0
        self._all = _Family(b"")  # of which the patterns of one segment are members
        self._families: dict[bytes, _Family] = {}
        self._by_size: dict[int, dict[_Family, None]] = {}  # families that are not widened, by how many are told
        self._widened: dict[_Want, None] = {}
        self._load = 0  # patterns that are told once all jobs are done, or more

    def __len__(self) -> int:
        """How many patterns are told."""
        return self._told

    @property
    def widened(self) -> bool:
        """Whether more is told than is wanted."""
        return bool(self._widened)

    @property
    def feeding(self) -> bool:
        """Whether patterns from before are still to be added."""
        return bool(self._feeds)

    def concerns(self, pattern: bytes, link: int) -> bool:
        """Whether a link has to hold a pattern."""
        want = self._wants.get(pattern)
        if want is None or want.told_to == NOBODY:
            return False
        return want.told_to == link or (want.told_to == ALL and (want.owner != link or want.late is not None))

    def reader(self, link: int) -> Reader:
        """What the link of this number has to be told. Its other end knows nothing as yet."""
        return self.announcements.reader(link)

    # -- wants --------------------------------------------------------------------------------------

    def add(self, pattern: bytes, user: int = 0, holder: int = 0) -> None:
        """``holder`` began to want ``pattern``. The jobs that follow belong to ``user``."""
        self._change(pattern, user, holder, 1)

    def remove(self, pattern: bytes, user: int = 0, holder: int = 0) -> None:
        """``holder`` does not want ``pattern`` any more. The jobs that follow belong to ``user``."""
        self._change(pattern, user, holder, -1)
        if self._widened and self.wanted * 2 <= self._most:
            self._narrow(user)

    def feed(self, changes: Iterable[tuple[bytes, int, int]], user: int = 0) -> None:
        """Make changes from before, in steps: patterns, with who wants them and how often (or, below 0, no longer).

        Other changes may come before these, so a pattern may seem to be wanted less than never for a while.
        """
        self._feeds += 1
        self._begin(self._take_in(iter(changes), user), user)

    def _take_in(self, changes: Iterator[tuple[bytes, int, int]], user: int) -> Iterator[None]:
        for pattern, holder, count in changes:
            self._change(pattern, user, holder, count)
            yield
        self._feeds -= 1

    def _change(self, pattern: bytes, user: int, holder: int, count: int) -> None:
        want = self._wants.get(pattern)
        if want is None:
            want = self._make(pattern)
        self.wanted -= want.count > 0
        want.count += count
        want.total += holder * count
        self.wanted += want.count > 0
        self._all.change(holder, count)
        if want.family is not self._all:
            want.family.change(holder, count)
        self._review(want, user)
        for family in {want.family, self._all}:
            if family.widened and family.pattern != pattern:
                self._review(self._wants[family.pattern], user)
        self._make_room(user)

    def _make(self, pattern: bytes) -> _Want:
        first, separator, _ = pattern.partition(self._separator)
        family = self._all
        if separator:
            name = first + separator
            family = self._families.get(name) or self._families.setdefault(name, _Family(name))
        family.members += 1
        want = self._wants[pattern] = _Want(pattern, family)
        return want

    def _review(self, want: _Want, user: int) -> None:
        """It may be wanted by others than before."""
        if want.is_wanted:
            owner = want.family.owner if want.widened else want.total if want.count == 1 else NO_OWNER
            if not want.is_there:
                want.owner = owner
                self._place(want, user)
                return
            if want.told_to != NOBODY:
                self._insert(want, user)
            if want.owner != owner:
                self._set_owner(want, owner, user)
        elif not want.is_there:
            self._forget(want)
        elif want.hides:
            self._extract(want)
            self._begin(self._leave(want, user), user)
        else:
            self._drop(want)

    def _set_owner(self, want: _Want, owner: int, user: int) -> None:
        before, was_late = want.owner, want.late is not None
        want.owner, want.late = owner, None
        if before != NO_OWNER:
            if want.told_to == ALL and not was_late:
                self.announcements.begin(want.pattern, before)
            if want.indexed:
                self._begin_to_look_below(want, user)
        if owner != NO_OWNER:
            want.late = mark = object()
            if want.hides:
                self._begin(self._look_at_hidden(want, mark, user), user)
            else:
                self._end_late(want, user)
        if want.witness is not None and not want.witness.hides_from_all(want):
            self._place(want, user)
        else:
            self._settle(want, user)

    def _end_late(self, want: _Want, user: int) -> None:
        want.late = None
        if want.told_to == ALL:
            self.announcements.leave_out(want.pattern, want.owner)
        self._settle(want, user)

    # -- places -------------------------------------------------------------------------------------

    def _place(self, want: _Want, user: int) -> None:
        """Find a witness, and tell the links that need it."""
        self._set_witness(want, self._find_witness(want))
        self._settle(want, user)

    def _find_witness(self, want: _Want) -> _Want | None:
        """One that hides it from all links, if there is such a one."""
        witness = None
        for found in self._index.covering(want.pattern):
            if found is not want:
                witness = found
                if found.hides_from_all(want):
                    break
        return witness

    def _set_witness(self, want: _Want, witness: _Want | None) -> None:
        before = want.witness
        if before is not None and before.hides is not None:
            del before.hides[want]
            if not before.hides:
                before.hides = None
        want.witness = witness
        if witness is not None:
            if witness.hides is None:
                witness.hides = {}
            witness.hides[want] = None

    def _settle(self, want: _Want, user: int) -> None:
        """Tell the links that need it, and no others."""
        witness = want.witness
        told_to = ALL
        if witness is not None:
            told_to = NOBODY if witness.hides_from_all(want) else witness.owner
        if told_to != want.told_to:
            self._tell(want, told_to)
        if told_to == NOBODY:
            self._extract(want)
        elif want.is_wanted:
            self._insert(want, user)

    def _tell(self, want: _Want, told_to: int) -> None:
        before, want.told_to = want.told_to, told_to
        pattern, announcements = want.pattern, self.announcements
        if told_to == ALL:
            announcements.begin_all(pattern)
            if want.owner != NO_OWNER and want.late is None:
                announcements.leave_out(pattern, want.owner)  # it may have been told this before
        elif told_to != NOBODY:
            announcements.begin(pattern, told_to)
        if before == ALL:
            announcements.end_all(pattern)
        elif before != NOBODY:
            announcements.end(pattern, before)
        if NOBODY in (before, told_to):
            self._count_told(want.family, 1 if before == NOBODY else -1)

    def _insert(self, want: _Want, user: int) -> None:
        if not want.indexed:
            want.indexed = True
            self._index.add(want.pattern, want)
            self._begin_to_look_below(want, user)

    def _extract(self, want: _Want) -> None:
        if want.indexed:
            want.indexed = False
            self._index.discard(want.pattern, want)

    def _drop(self, want: _Want) -> None:
        self._extract(want)
        self._set_witness(want, None)
        want.late = None
        if want.told_to != NOBODY:
            self._tell(want, NOBODY)
        self._forget(want)

    def _forget(self, want: _Want) -> None:
        if want.count or want.total:
            return  # not all changes from before were made
        del self._wants[want.pattern]
        want.family.members -= 1
        if not want.family.members and want.family is not self._all:
            del self._families[want.family.pattern]

    # -- jobs ---------------------------------------------------------------------------------------

    def _begin(self, job: Iterator[None], user: int) -> None:
        self._jobs.setdefault(user, deque()).append(job)

    def has_work(self, user: int) -> bool:
        """Whether a user's changes began jobs that are not done."""
        return user in self._jobs

    def work(self, steps: int, user: int = 0) -> bool:
        """Do up to ``steps`` steps of the jobs that a user's changes began; whether there is more to do."""
        while steps > 0 and (jobs := self._jobs.get(user)):
            steps -= 1
            try:
                next(jobs[0])
            except StopIteration:
                jobs.popleft()
                if not jobs:
                    del self._jobs[user]
        self._make_room(user)
        return user in self._jobs

    def _begin_to_look_below(self, want: _Want, user: int) -> None:
        if not is_literal(want.pattern, self._separator):
            self._begin(self._look_below(want, user), user)

    def _look_below(self, want: _Want, user: int) -> Iterator[None]:
        """It came, or lost its owner: be the witness of those below it that need one."""
        for other in self._index.covered_by(want.pattern):
            yield
            if not want.indexed:
                return
            if other is None or other is want or not other.indexed:
                continue
            if other.witness is None or want.hides_from_all(other):
                self._set_witness(other, want)
                self._settle(other, user)

    def _look_at_hidden(self, want: _Want, mark: object, user: int) -> Iterator[None]:
        """It got an owner: tell this link what it hid from it."""
        for other in list(want.hides or ()):
            yield
            if want.late is not mark:
                return
            if other.witness is want and not want.hides_from_all(other):
                self._place(other, user)
        if want.late is mark:
            self._end_late(want, user)

    def _leave(self, want: _Want, user: int) -> Iterator[None]:
        """Nobody wants it any more: find places for all that it hides, and then drop it."""
        while want.hides and not want.is_wanted:
            self._place(next(reversed(want.hides)), user)
            yield
        if want.is_there and not want.is_wanted:
            self._drop(want)

    # -- widening -----------------------------------------------------------------------------------

    def set_room(self, most: int, user: int = 0) -> None:
        """Change how many patterns are told at most."""
        self._most = most
        if self._widened and self.wanted * 2 <= most:
            self._narrow(user)
        self._make_room(user)

    def widen(self, user: int = 0) -> None:
        """A link takes no more patterns: ask for everything."""
        self._widen(self._all, user)

    def _make_room(self, user: int) -> None:
        """Replace families while too many patterns are told."""
        while self._load > self._most and not self._all.widened:
            largest = max(self._by_size, default=0)
            if largest > 1:
                self._widen(next(reversed(self._by_size[largest])), user)
            else:
                self.widen(user)

    def _widen(self, family: _Family, user: int) -> None:
        if family.widened:
            return
        self._weigh(family, -1)
        family.widened = True
        self._weigh(family, 1)
        want = self._wants.get(family.pattern) or self._make(family.pattern)
        want.widened = True
        self._widened[want] = None
        self._review(want, user)

    def _narrow(self, user: int) -> None:
        widened, self._widened = self._widened, {}
        for want in widened:
            self._weigh(want.family, -1)
            want.family.widened = want.widened = False
            self._weigh(want.family, 1)
            self._review(want, user)

    def _count_told(self, family: _Family, count: int) -> None:
        self._weigh(family, -1)
        family.told += count
        self._told += count
        self._weigh(family, 1)

    def _weigh(self, family: _Family, sign: int) -> None:
        """Add a family to the load, or take it out."""
        if family.widened:
            self._load += sign
            return
        self._load += sign * family.told
        if family is self._all or not family.told:
            return
        alike = self._by_size.setdefault(family.told, {})
        if sign > 0:
            alike[family] = None
        else:
            del alike[family]
            if not alike:
                del self._by_size[family.told]
