"""Turns shared out among users, so that a thousand connections are worth no more than one.

The event loop goes in rounds: it waits, then calls back for each socket that is ready. Where clients of
one user only are connected, that is fair enough. Where there are several users, each may have only so many
turns a round, fewer still while another was busy in the last round; what is over is postponed to the
following rounds. So a user that keeps ten thousand connections busy takes its turns from itself.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .limits import Limits
    from .quota import Account

__all__ = ["Crowd", "Postponable"]


class Postponable(Protocol):
    """A client whose turn can be put off."""

    account: Account
    closed: bool

    def resume(self) -> None:
        """Watch the socket again."""
        ...


class Crowd:
    """Who may have a turn in this round of an event loop. ``loop`` is gevent's, whose ``now()`` names the round."""

    def __init__(self, loop: Any, limits: Limits) -> None:
        self._loop = loop
        self._limits = limits
        self._round = 0.0
        self._turns: dict[int, int] = {}  # of this round, by user
        self._waiting: dict[int, deque[Postponable]] = {}
        self._resuming: Any = None
        self.several = False
        """Whether clients of more than one user are connected: the hub says."""
        self.crowded = False
        """Whether more than one user was busy in the last round."""

    def may_go(self, account: Account) -> bool:
        """Whether a client of this user may have a turn now; if so, it counts as had."""
        if not self.several:
            return True
        now = self._loop.now()
        if now != self._round:
            self._round = now
            self.crowded = len(self._turns.keys() | self._waiting.keys()) > 1
            self._turns.clear()
        had = self._turns.get(account.uid, 0)
        self._turns[account.uid] = had + 1
        return had < self._allowed()

    def _allowed(self) -> int:
        return self._limits.crowded_turns if self.crowded else self._limits.turns_per_round

    def postpone(self, client: Postponable) -> None:
        """Resume this client, whose socket is no longer watched, in one of the next rounds."""
        self._waiting.setdefault(client.account.uid, deque()).append(client)
        if self._resuming is None:
            self._resuming = self._loop.run_callback(self._resume)

    def _resume(self) -> None:
        self._resuming = None
        for uid, clients in list(self._waiting.items()):
            for _ in range(min(self._allowed(), len(clients))):
                client = clients.popleft()
                if not client.closed:
                    client.resume()
            if not clients:
                del self._waiting[uid]
        if self._waiting:
            self._resuming = self._loop.run_callback(self._resume)
