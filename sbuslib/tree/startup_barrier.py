"""Startup barrier: children send kept messages only once a hub that was just started has the interest of its links.

Some of the subscribers to these messages may not be back yet. So the hub waits until its prefix is known, which clients
that come back ask for; until no link has come for a while; until each link has announced all the interest below it; and
until as many links have come as there were before. Each link reports that number, which it got from the process that
has ended. The hub gives up waiting in the end. Only links of trusted users are waited for, and believed:
others could delay everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final

from ..core.context import Context
from ..wire.control import INTEREST_LINKS
from ..wire.packets import encode_control
from .link_interfaces import ChildPort

_LOOK: Final = 0.05
"""Seconds between two looks, once all time is over, at whether the prefix is known."""

_MOST: Final = 10
"""How many times :attr:`~sbuslib.limits.Limits.settle` a hub waits in all. Messages to it wait as long."""

COUNT_PAUSE: Final = 0.2
"""Seconds for which changes of the number of links are gathered, since each link is informed."""


class StartupBarrier:
    """Whether a hub has the interest of its links, after a start.

    :param links: the links of now.
    :param knows_prefix: whether the hub's first prefix is known, or nobody waits for it any more.
    :param on_settled: called once it knows, for each start.
    """

    def __init__(
        self,
        context: Context,
        links: Callable[[], Iterable[ChildPort]],
        knows_prefix: Callable[[], bool],
        on_settled: Callable[[], None],
    ) -> None:
        self._context = context
        self._links = links
        self._knows_prefix = knows_prefix
        self._on_settled = on_settled
        self.done = False
        """Whether it knows."""
        self._expected = 0  # links of trusted users
        self._quiet_at = self._end_at = 0.0  # when no link has come for a while, and when it waits no longer
        self._counting = False  # whether the number of links is about to be sent

    def begin(self) -> None:
        """The hub listens."""
        self.done = self._counting = False
        self._expected = 0
        self._quiet_at = monotonic() + self._context.limits.settle
        self._end_at = monotonic() + _MOST * self._context.limits.settle
        self._wait_until(self._quiet_at)

    def note_link(self, links_before: int) -> None:
        """A link of a trusted user has come, and says how many there were before."""
        self._expected = max(self._expected, links_before)
        self.begin_quiet()

    def begin_quiet(self) -> None:
        """Others may come back now."""
        self._quiet_at = min(self._end_at, monotonic() + self._context.limits.settle)

    def links_changed(self) -> None:
        """A link has joined, or has ended."""
        self.check()
        if self._context.is_serving and not self._counting:
            self._counting = True
            self._context.running.after(COUNT_PAUSE, self._send_count)

    def _send_count(self) -> None:
        """Send the number of trusted links to each of them, so that they can report it to the next process of this hub.

        Those that this one still waits for count: the next one has to wait for them, too.
        """
        self._counting = False
        trusted = [link for link in self._links() if link.trusted]
        count = len(trusted) if self.done else max(len(trusted), self._expected)
        for link in trusted:
            if link.room > 0:
                link.say(encode_control(INTEREST_LINKS, b"%d" % count))

    def check(self) -> None:
        """Look again: a link has announced all its interest, or has ended."""
        now = monotonic()
        if self.done or not self._context.is_serving or now < self._quiet_at or not self._knows_prefix():
            return
        trusted = [link for link in self._links() if link.trusted]
        if now < self._end_at and (len(trusted) < self._expected or not all(link.synced for link in trusted)):
            return
        self.done = True
        self._on_settled()
        self.links_changed()

    def _wait_until(self, when: float) -> None:
        self._context.running.after(max(0.001, when - monotonic()), self._on_time)

    def _on_time(self) -> None:
        now = monotonic()  # before the check: a timer may end a moment early, and the check would come too early then
        self.check()
        if not self.done:
            self._wait_until(next((when for when in (self._quiet_at, self._end_at) if when > now), now + _LOOK))
