"""Fan-out to many clients of one other user, as work of that user.

Whoever publishes pays for the delivery to each receiver, so a user with a thousand connections that all want one key
would stop whoever publishes under it. So where a message goes to many clients of one user, and somebody else published
it, the publisher leaves it in one place, the *line* of that user, which costs it the same however many they are. From
there it is handed to each of them in turns of that user, as if the user had published it: turns that the
:mod:`~sbuslib.core.scheduler` shares out, and in which each client counts where others are busy.

What finds no room in a line is lost (cause ``quota``), which is counted for each receiver when the line comes to it;
so is what stands there for who leaves meanwhile, or when the hub stops (cause ``outage``).
How far a receiver may fall behind is a matter of its own queue and not of the line. Order stays: as long as anything
stands in the line of a user, what else its clients are to be sent on behalf of others, answers included, goes to the
end of it.

There are no lines for users who may hold publishers back, which are trusted not to, and nothing is put into one where
clients of one user only are connected: they could hurt nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ..kernel.areas import Gather
from .connection import Connection
from .fan_out_queue import Audience, Line
from .parties import Routes, Run, Sender

if TYPE_CHECKING:
    from ..hub import Hub
    from .quotas import Account

__all__ = ["Fanouts"]


class Fanouts:
    """The lines of one hub, and who stands in which."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._lines: WeakValueDictionary[Account, Line] = WeakValueDictionary()
        # By the identity of a group of receivers, which is kept here so that it stays one: those of each user of whom
        # there are many, and whom one of these users is near, or (None) anybody else.
        self._groups: dict[int, tuple[Routes, dict[int, Audience], dict[int | None, Routes]]] = {}
        self._remembered = 0  # receivers in all of these
        self.gather = Gather()
        """For packets that go to many, and for nothing else: it keeps them laid out meanwhile."""
        self.standing: set[Line] = set()
        """The lines in which something stands."""

    def near(self, receivers: Routes, sender: Sender) -> Routes:
        """To whom a message of ``sender`` is handed at once: in place of many clients of one user stands their line."""
        if len(receivers) < self._hub.limits.fanout or not self._in_force():
            return receivers
        group = self._groups.get(id(receivers))
        if group is None:
            self._remembered += len(receivers)
            limits = self._hub.limits
            if len(self._groups) >= limits.fanout_groups or self._remembered > limits.cached_receivers:
                self.forget()
                self._remembered = len(receivers)
            group = self._groups[id(receivers)] = receivers, self._audiences(receivers), {}
        _, audiences, near = group
        uid: int | None = sender.credentials.uid
        if uid not in audiences:
            uid = None
        found = near.get(uid)
        if found is None:
            found = near[uid] = self._near(uid, receivers, audiences)
        return found

    def near_runs(self, runs: list[Run], sender: Sender) -> tuple[list[Run], bool]:
        """The same for each run of packets, and whether there are lines: then each run has to go before the next."""
        if not self._in_force():
            return runs, False
        least = self._hub.limits.fanout
        for _, _, receivers in runs:
            if len(receivers) >= least:
                break
        else:
            return runs, False
        found = [(start, end, self.near(receivers, sender)) for start, end, receivers in runs]
        return found, any(run[2] is not other[2] for run, other in zip(runs, found, strict=True))

    def near_routes(self, routes: list[Routes], sender: Sender) -> tuple[list[Routes], bool]:
        """The same for the receivers of each key of a batch."""
        if not self._in_force():
            return routes, False
        found = [self.near(receivers, sender) for receivers in routes]
        return found, any(some is not others for some, others in zip(found, routes, strict=True))

    def _in_force(self) -> bool:
        """Whether there is anybody to be spared; a line that stands is used until it is empty."""
        return self._hub.scheduler.several or bool(self.standing)

    def _audiences(self, receivers: Routes) -> dict[int, Audience]:
        alike: dict[Account, list[Connection]] = {}
        for receiver in receivers:
            # What comes down a link is the matter of the hub below. Who has left is still among them for a moment.
            if isinstance(receiver, Connection) and receiver.link is None and not receiver.closed:
                alike.setdefault(receiver.account, []).append(receiver)
        return {
            account.uid: Audience(self._line(account), tuple(some))
            for account, some in alike.items()
            if len(some) >= self._hub.limits.fanout and not self._hub.is_trusted(account.uid)
        }

    @staticmethod
    def _near(uid: int | None, receivers: Routes, audiences: dict[int, Audience]) -> Routes:
        others = [audience for other, audience in audiences.items() if other != uid]
        if not others:
            return receivers
        far = {receiver for audience in others for receiver in audience.receivers}
        return (*(receiver for receiver in receivers if receiver not in far), *others)

    def _line(self, account: Account) -> Line:
        line = self._lines.get(account)
        if line is None:
            line = self._lines[account] = Line(self._hub, account)
        return line

    def forget(self) -> None:
        """Somebody left, and must not be remembered."""
        self._groups.clear()
        self._remembered = 0

    def clear(self) -> None:
        """The hub stops."""
        self.forget()
        for line in list(self.standing):
            line.clear()
