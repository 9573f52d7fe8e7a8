"""Log of a hub about itself: when it begins to lose messages and when that ends, and changes of its links.

Everything else that a hub logs is what a client did wrong: once for each user and violation.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..kernel.users import name_of_user, program_of
from ..wire.text import printable

if TYPE_CHECKING:
    from ..core.protocols import Receiver
    from ..hub import Hub
    from ..statistics import HubStatistics, LinkStatistics

LOOK_SECONDS: Final = 2.0
"""Seconds between two looks at the hub, which take the longer the more users it has."""

SHARE: Final = 0.001
"""Share of the time that may go into looking."""

ASK_LOOKS: Final = 3
"""After so many looks the children are asked for an answer: else nobody would find that one is stopped."""

LINKS_A_LOOK: Final = 16
"""Links whose changes one look logs by name. The rest is a number: a hub that starts may have a thousand."""

QUIET_SECONDS: Final = 10.0
"""Seconds without a loss after which the losing has ended, and the sum is logged."""

LONGEST_PATTERN: Final = 80
"""Bytes of a pattern that a line shows."""

_LOST: Final = "lost"
"""The word under which counts are handed on."""

logger = logging.getLogger("sbuslib")


class _Losing:
    """One user's losses for one cause, from when they began."""

    def __init__(self, before: int, began: float) -> None:
        self.before = before  # what had been lost until then
        self.began = began  # seconds of the monotonic clock
        self.grew = began  # when the count grew last


class HubLog:
    """Looks at a hub, which has to be started, every :data:`LOOK_SECONDS`, until it is closed.

    It is made before the hub serves. Entries of the log of a hub that was taken over are not repeated.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._counts = _counts_of(hub)  # lost until the last look, by user and cause
        self._losing: dict[tuple[int, str], _Losing] = {}  # losses that have not ended
        self._links: dict[int, tuple[str, str]] = {}  # name and state of each link to a child, by its number
        self._looks = 0  # since the children were asked
        self._not_before = 0.0  # when the next look may be
        self._timer: Any = hub.context.running.loop.timer(LOOK_SECONDS, LOOK_SECONDS)
        self._timer.start(self.look)

    @property
    def handed_on(self) -> dict[str, str]:
        """Return the state with which the log of a hub that takes over begins."""
        return {_LOST: msgspec.json.encode([(*who, count) for who, count in self._counts.items()]).decode()}

    def close(self) -> None:
        """Look no more, and log the sums of losses that have not ended. The hub may be stopped."""
        self._timer.stop()
        self._timer.close()
        self._look_at_losses(self._hub.statistics(clients=False), monotonic(), ends=True)

    def look(self, now: float | None = None) -> None:
        """Look at the hub, and log what has changed. ``now`` is in seconds of the monotonic clock."""
        began = monotonic()
        if began < self._not_before:
            return
        seen = self._hub.statistics(clients=False)
        self._look_at_losses(seen, began if now is None else now)
        self._hub.replacement.handed_on.update(self.handed_on)
        self._look_at_links([link for link in seen.per_link if link.direction == "child"])
        self._looks += 1
        if self._links and self._looks >= ASK_LOOKS:
            self._looks = 0
            self._hub.tree.sync_children(lambda scope: None)
        self._not_before = began + (monotonic() - began) / SHARE

    def _look_at_losses(self, seen: HubStatistics, now: float, *, ends: bool = False) -> None:
        counts, news = _lost(seen), list[tuple[str, tuple[int, str]]]()

        # 1. What begins, and what goes on.
        for who, count in counts.items():
            before = self._counts.get(who, 0)
            if count > before and who not in self._losing:
                self._losing[who] = _Losing(before, now)
                if not ends:
                    news.append((f"user {name_of_user(who[0])} loses messages: {who[1]}", who))
            if count > before:
                self._losing[who].grew = now

        # 2. What has ended, or whose user the hub has forgotten.
        for who, losing in [*self._losing.items()]:
            if ends or now - losing.grew >= QUIET_SECONDS or who not in counts:
                lost = counts.get(who, self._counts.get(who, 0)) - losing.before
                span = losing.grew - losing.began
                news.append((f"user {name_of_user(who[0])} lost {lost:,} messages in {span:.0f} s: {who[1]}", who))
                del self._losing[who]
        self._counts = counts

        # 3. Whose process it is: those that are connected are looked at once for all of that.
        losers = self._hub.reporter.losers() if news else {}
        for text, who in news:
            logger.warning("%s%s", text, self._describe(*losers[who]) if who in losers else "")

    def _describe(self, key: str, receiver: Receiver) -> str:
        """Return a clause about a receiver: its process and its patterns, but for secrets."""
        pid = int(key.rpartition(key[1])[2])
        program = program_of(pid) if pid else ""
        process = f"process {pid or 'unknown'}{f' ({printable(program.encode())})' if program else ''}"
        router = self._hub.context.router
        patterns = [router.namespace.unmark(name)[1] for name in router.plain_patterns_of(receiver)]
        shown = ", ".join(_shown(pattern) for pattern in patterns[:2]) or "no pattern but secrets"
        more = f" and {len(patterns) - 2:,} more" if len(patterns) > 2 else ""
        return f"; most so far: {process}, subscribed to {shown}{more}"

    def _look_at_links(self, links: list[LinkStatistics]) -> None:
        before, self._links = self._links, {}
        news: list[tuple[int, str]] = []

        # 1. Changes.
        for link in links:
            where = printable(link.address.encode("utf-8", "replace")) or "a hub"
            name = f"link from {where}, process {link.pid} of user {name_of_user(link.uid)}"
            self._links[link.number] = name, link.state
            _, was = before.pop(link.number, (name, ""))
            if not was:
                news.append((logging.INFO, f"{name}: joined"))
            elif link.state != was:
                what = "it does not answer" if link.state == "lagging" else "it answers again"
                news.append((logging.WARNING, f"{name}: {what}"))
        news += [(logging.INFO, f"{name}: ended") for name, _ in before.values()]

        # 2. The most important ones are logged, the rest is counted.
        news.sort(key=lambda one: one[0], reverse=True)
        for level, text in news[:LINKS_A_LOOK]:
            logger.log(level, "%s", text)
        if len(news) > LINKS_A_LOOK:
            logger.info("likewise of %s other links", f"{len(news) - LINKS_A_LOOK:,}")


def _lost(seen: HubStatistics) -> dict[tuple[int, str], int]:
    """Messages lost ever, by user and cause."""
    return {(user.uid, cause): count for user in seen.per_user for cause, count in user.lost.items() if count}


def _counts_of(hub: Hub) -> dict[tuple[int, str], int]:
    """Return the counts that the former hub's log has seen. An older hub hands none on: then all losses until now."""
    try:
        rows = msgspec.json.decode(hub.replacement.handed_on[_LOST], type=list[tuple[int, str, int]])
    except (KeyError, msgspec.DecodeError):
        return _lost(hub.statistics(clients=False))
    return {(uid, cause): count for uid, cause, count in rows}


def _shown(pattern: bytes) -> str:
    """A pattern that may be long, or empty, for a line."""
    return f"{printable(pattern[:LONGEST_PATTERN])}{'...' if len(pattern) > LONGEST_PATTERN else ''}" or "everything"
