"""The hub above, as a hub with a relay knows it: over one connection after another, and in the outages between them.

:class:`HubAbove` has what outlives a connection: what this hub wants from above (:mod:`sbuslib.tree.wanted`), what
the hub above wants (:mod:`sbuslib.tree.demand`), and the messages that are kept for it (:mod:`sbuslib.tree.outage`).
The :class:`~sbuslib.tree.tree.Tree` and the router ask it. :mod:`sbuslib.tree.handshake` is what the two hubs say on
one connection; :class:`sbuslib.relay.Relay` dials.

Each connection is an *epoch*: the hub above is told everything again, and what it said before is forgotten.

Messages from above never go up, nor secrets under this hub's own prefix. Of the other messages, those go up that the
hub above announced that it wants or, if it only prunes, those that it did not prune. While the hub above is away, and
until it has said that its interest is complete, all messages are kept. Messages come down if this hub subscribed to
them there.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from time import monotonic, time
from typing import Literal, Protocol, TypeAlias

from gevent.event import Event

from ..core.callbacks import log
from ..core.losses import Losses
from ..core.protocols import Routes
from ..secrets import Credentials
from ..statistics import LinkStatistics
from ..wire import control
from ..wire.packets import Control
from .above_role import AboveRole
from .demand import Demand, index
from .greeting import ApartError, LinkError, SecretsRefusedError
from .handshake import Conversation
from .instances import Said, new_epoch, stable_id
from .leaving import leave
from .losses import LinkLosses
from .tree import Tree
from .uplink import Up
from .wanted import Wanted

__all__ = ["STATES", "HubAbove", "Keeper", "State"]

State: TypeAlias = Literal["stopped", "connecting", "joining", "joined", "outage", "loop", "deep"]
STATES: tuple[State, ...] = ("stopped", "connecting", "joining", "joined", "outage", "loop", "deep")
"""States of the link to the hub above: ``connecting`` until it first joins, ``outage`` between two epochs, ``loop``
while the hub above is below this one, and ``deep`` while it is so deep in its tree that no hub may join it."""


class Keeper(Protocol):
    """The relay, which dials the hub above."""

    def stop(self) -> None:
        """Leave the hub above for good."""

    def abandoned(self) -> None:
        """This is the child of a fork: do nothing from now on."""

    def report(self, reason: str) -> None:
        """Log why this hub has not joined."""


class HubAbove:
    """The hub above. Implements :class:`~sbuslib.tree.tree.Above` and :class:`~sbuslib.tree.handshake.Lasting`.

    :param keeper: the relay. It is told why a connection ended, and stops with the hub.
    :param export: patterns that may go up; ``None``: all.
    :param import_: patterns that may come down, likewise.
    """

    def __init__(self, tree: Tree, keeper: Keeper, export: list[bytes] | None, import_: list[bytes] | None) -> None:
        self.tree = tree
        context = tree.context
        self._keeper = keeper
        self._router = context.router
        self._limits = context.limits
        self._separator = context.router.namespace.separator
        self._imports = index(import_, self._separator)
        self.demand = Demand(context, export)
        self.wanted = Wanted(tree.telling.interest, import_, self._separator)
        self._changed = Event()
        self.up: Up | None = None
        self.talk: Conversation | None = None
        self.state: State = "stopped"
        self.settled = True
        self.epoch = 0
        self._id, self._process = b"", 0
        self.links_beside = 0
        self.dropped: Counter[str] = Counter()
        self._logged: set[str] = set()  # which of these reasons were logged
        self.downstream = LinkLosses(context, lambda lost: self.tree.pass_notice(lost, self.up))
        self.untold = Losses()
        self._away_since = 0.0  # when the last link ended, in seconds since the epoch; 0: none did, or it was told
        self._received = 0
        self._address = ""
        self._apart = False
        self._told_open = False
        self._early: list[bytes] = []  # questions of the tree before the first connection
        self.plain = False
        self._refusing: set[str] = set()  # addresses of hubs that refused the pattern for secrets

    # -- its life -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """The relay starts. Raises :exc:`~sbuslib.errors.StateError` if the hub has another."""
        self.tree.attach(self)
        if self.up is None:
            self.up = Up(self)
        self.wanted.begin(self.up)
        self._id, self._process = stable_id(self.tree.context.address(), self.tree.hub_id), new_epoch()
        self.state = "connecting"
        self.settled = False
        self._router.adjust = self._adjust
        self.demand.begin(self.up)
        self.tree.wake()

    def leave(self) -> None:
        """The relay stops: the hub is a root again."""
        self.end_link("stopped")
        self.state = "stopped"
        self._away_since = 0.0
        if self.up is not None:
            self.tree.context.unsent.note(self.up, False)
        self.demand.end()
        self._stop_adjusting()
        self.wanted.end()
        self.missed()
        self.tree.detach()
        self.note_change()

    def close(self) -> None:
        """The hub stops. Implements :class:`~sbuslib.tree.tree.Above`."""
        self._keeper.stop()

    def abandon(self) -> None:
        """In the child of a fork: close the child's copy of the connection only."""
        self._keeper.abandoned()
        self.tree.context.unsent.clear()  # the questions of the parent's clients
        self.state = "stopped"
        self.settled = True
        self._stop_adjusting()
        talk, self.talk = self.talk, None
        if talk is not None:
            talk.end("forked")

    @property
    def said(self) -> Said:
        """What the hub above is told of this hub."""
        return Said(self._id, self._process, self.links_beside)

    def wait_for_change(self) -> None:
        """Wait until something has changed: for greenlets."""
        changed = self._changed
        changed.wait()

    def note_change(self) -> None:
        """Something has changed."""
        changed, self._changed = self._changed, Event()
        changed.set()

    # -- one connection -----------------------------------------------------------------------------

    def stay(self, sock: socket.SocketType, address: str) -> float | None:
        """Join over a connection, and stay until it ends. For the relay's greenlet.

        Returns for how many seconds this hub was joined, and ``None`` if it has to try the next address.
        """
        assert self.up is not None
        if self._address != address:
            self._address, self.links_beside = address, 0
        self.state = "joining"
        self.settled = False
        if self.demand.begin_anew():  # before the hub above says anything: it may do so before this hub has joined
            self.tree.want_again(b"")
        talk = self.talk = Conversation(self, self.up, sock)
        early, self._early = self._early, []
        for token in early:
            talk.ask(token)
        joined_at: float | None = None
        lasted: float | None = None
        try:
            talk.join()
            joined_at = monotonic()
            self._joined(talk)
            self._tell_open(talk.peer.uid)
            while not talk.ended:
                self.wait_for_change()
            raise talk.error or LinkError(f"the link ended: {talk.why}")
        except ApartError as error:
            self._apart = True
            self.end_link(str(error))
            self.state = error.state
            self._keeper.report(f"{address}: {error}")
        except SecretsRefusedError as error:
            self._refusing.add(address)
            self.end_link(str(error))
            self._keeper.report(f"{address}: {error}")
            lasted = 0.0
        except (LinkError, TimeoutError) as error:
            self.end_link(str(error))
            self._keeper.report(f"{address}: {error}")
        except BaseException:
            self.end_link("stopped")
            raise
        if self.state in ("joining", "outage"):
            self.state = "outage" if self.epoch else "connecting"
        return monotonic() - joined_at if joined_at is not None else lasted

    def leave_for(self, address: str) -> None:
        """End the link, to join another hub instead, and lose nothing that is on its way. For a greenlet."""
        talk, up = self.talk, self.up
        if talk is None or up is None or not talk.joined:
            return
        talk.why = f"back to {address}"
        leave(talk, up, self._limits.link_wait)
        if self.talk is talk:
            self.end_link(talk.why)

    def found_nobody(self, address: str) -> None:
        """No hub listens there. The next one may be another program: it may know secrets, and be above this hub."""
        self._refusing.discard(address)
        self.plain = False
        if self._apart and address == self._address:
            self._apart = False
            self.state = "outage" if self.epoch else "connecting"

    def _tell_open(self, uid: int) -> None:
        """Say once that all that is wanted goes up to another user's hub."""
        if self.demand.is_bounded or self._told_open or uid == os.getuid():
            return
        self._told_open = True
        text = "sbus hub at %s: what is wanted above goes up to the hub of user %d at %s: name what may with export"
        log(logging.WARNING, text, self.tree.context.address(), uid, self._address)

    def _joined(self, talk: Conversation) -> None:
        self.epoch += 1
        self.state = "joined"
        self._apart = False
        self.settled = True
        self.wanted.begin(self.up)
        talk.begin()
        if self._away_since:
            self.tree.pass_notice(control.Away(self._away_since, time()), self.up)
            self._away_since = 0.0
        self.tree.joined()
        self.tree.wake()
        self.note_change()

    def missed(self) -> None:
        """No hub above could be joined for now."""
        self.settled = True
        early, self._early = self._early, []
        self._answer_for_above(early)
        self.tree.joined()

    def _answer_for_above(self, tokens: list[bytes]) -> None:
        """Answer questions that the hub above will not answer. A hub that stands apart is the root of its tree."""
        for token in tokens:
            self.tree.answered(token, self, control.SCOPE_TREE if self._apart else b"partial")

    def link_ended(self, role: AboveRole, why: str) -> None:
        """The connection ended. Implements :class:`~sbuslib.tree.above_role.Owner`."""
        if self.talk is not None and role is self.talk.role:
            self.end_link(why)

    def end_link(self, why: str) -> None:
        """End the connection, if there is one."""
        talk, self.talk = self.talk, None
        if talk is None:
            return
        was_joined = talk.joined
        self._received += talk.received
        talk.end(why)
        self._apart = self._apart or isinstance(talk.error, ApartError)
        if was_joined:
            self.state = "outage"
            self._away_since = time()
        self.settled = True
        self.tree.set_path(())
        self._answer_for_above(talk.unanswered())
        self.tree.wake()
        self.note_change()

    def count_rubbish(self, reason: str, times: int = 1) -> None:
        """The hub above said something that means nothing, which has no effect. It is logged once."""
        self.dropped[reason] += times
        if reason not in self._logged:
            self._logged.add(reason)
            text = "sbus hub at %s: the hub above at %s sent what means nothing: %s (further ones are only counted)"
            log(logging.WARNING, text, self.tree.context.address(), self._address, reason)

    def take_control(self, packet: Control) -> None:
        """Act on a control packet from above. Implements :class:`~sbuslib.tree.above_role.Owner`."""
        if self.talk is not None:
            self.talk.take_control(packet)

    @property
    def has_features(self) -> bool:
        """Whether the hub above knows more than the plain protocol."""
        return self.talk is not None and self.talk.has_features

    def tell_loss(self, lost: control.Lost) -> None:
        """Tell all others of messages that were lost on their way up."""
        if self.state != "stopped":  # in the child of a fork, the clients are the parent's
            self.tree.pass_notice(lost, None)

    def pass_notice(self, notice: control.Lost | control.Away) -> None:
        """Tell the hub above, now or once it is there, what was lost here or below on its way up."""
        if not isinstance(notice, control.Lost):
            return
        self.untold.add(notice.cause, notice.count, notice.since)
        if self.talk is not None:
            self.talk.tell_losses()

    # -- other settings -----------------------------------------------------------------------------

    def set_bounds(self, export: list[bytes] | None, import_: list[bytes] | None) -> None:
        """From now on other patterns may go up and come down. The link stays."""
        self.demand.set_export(export)
        self._imports = index(import_, self._separator)
        self.wanted.set_bounds(import_)
        if self.state != "stopped":
            self.tree.wake()

    # -- what crosses -------------------------------------------------------------------------------

    def _adjust(self, key: bytes, secret: bool, found: Routes) -> Routes:
        """The receivers of a key that the router found, without what was pruned, and with secrets that go up."""
        up, namespace = self.up, self._router.namespace
        assert up is not None
        if not secret:
            return tuple(one for one in found if one is not up) if key in self.demand.pruned else found
        # Until the first prefix is known, this hub does not know whose a secret is. So it goes up and stays here.
        ours = bool(namespace.prefix) and key.startswith(namespace.prefix + namespace.start)
        return found if ours or not self.secrets else (*found, up)

    def _stop_adjusting(self) -> None:
        self._router.adjust = None
        self._router.reconsider_all()

    @property
    def secrets(self) -> bool:
        """Whether secrets cross: not where the hub above refused the pattern for them, or was not asked."""
        return not self.plain and self._address not in self._refusing

    def may_come(self, key: bytes) -> bool:
        """Whether a message may come down."""
        if key.startswith(self._router.namespace.start):
            return self.talk is not None and self.talk.is_ours(key)
        return self._imports is None or bool(self._imports.subscribers(key))

    @property
    def received(self) -> int:
        """Messages that came down."""
        return self._received + (self.talk.received if self.talk is not None else 0)

    # -- what the tree asks: for the rest of tree.Above ---------------------------------------------

    def pump(self, steps: int, user: int) -> bool:
        """Do up to ``steps`` steps of a user's jobs, and tell what has changed. Returns whether the user has more."""
        worked = user == os.getuid() and self.demand.has_work  # the hub's own work
        more = worked and self.demand.work(steps)
        if self.talk is not None:
            if worked and not more:
                self.talk.demand_settled()
            self.talk.tell()
            more = self.talk.has_more or more
        return more

    @property
    def is_full(self) -> bool:
        """Whether there is more to tell, but the hub above has to read first."""
        return self.talk is not None and self.talk.is_full

    def ask(self, token: bytes) -> bool:
        """Ask the hub above about the rest of the tree, once joined. ``False``: it cannot be asked."""
        if self.talk is not None:
            return self.talk.ask(token)
        if not self.settled:
            self._early.append(token)
        return not self.settled

    @property
    def stands_apart(self) -> bool:
        """Whether joining would make a loop or too deep a tree, so that this hub is the root of its own."""
        return self._apart

    def statistics(self, receivers: Routes | None = None) -> LinkStatistics:
        """This link; it carries what has these receivers if it is one of them."""
        up, talk = self.up, self.talk
        peer = talk.peer if talk is not None else Credentials(gid=-1, uid=-1, pid=-1)
        path = self.tree.path
        return LinkStatistics(
            direction="above",
            number=0,
            uid=peer.uid,
            pid=peer.pid,
            credentials=self._router.namespace.prefix[: -len(self._separator)].decode(),
            hub=path[1].decode() if len(path) > 1 else "",
            address=self._address,
            state=self.state,
            epoch=self.epoch,
            mode=talk.mode if talk is not None else "plain",
            patterns=len(self.wanted),
            pruned=len(self.demand.pruned),
            received=self.received,
            delivered=up.forwarded if up is not None else 0,
            queued=up.waiting.messages if up is not None else 0,
            lost={"upstream": up.losses.lost} if up is not None and up.losses.lost else {},
            uncertain=up.losses.uncertain if up is not None else 0,
            lag=up.lag if up is not None else 0.0,
            carries=None if receivers is None else up in receivers,
        )

    def is_sending(self) -> bool:
        """Whether something waits that can be sent."""
        return self.up is not None and self.up.open and bool(self.up.waiting)
