"""The parent, over one link after another and in the outages between: :class:`Parent`.

It has what outlives a link (:class:`~sbuslib.tree.parent_link.ParentLink`): the state, which a table says
(:mod:`sbuslib.tree.states`), what the parent wants (:mod:`sbuslib.tree.parent_interest`), and the messages that are
kept for it (:mod:`sbuslib.tree.uplink`). :class:`sbuslib.relay.Relay` dials.
"""

from __future__ import annotations

import logging
import os
from typing import Final, Literal, TypeAlias

from gevent.event import Event as Changed

from ..core.callback_errors import log
from ..core.connection import Connection
from ..core.violations import Violations
from ..kernel.users import name_of_user
from ..secrets import Credentials
from ..statistics import ExplainedLink, LinkStatistics
from ..wire import control
from .handshake import ApartError
from .hub_identities import Hello, new_epoch, stable_id
from .link import Link
from .link_interfaces import Joiner
from .link_losses import LinkLosses
from .parent_interest import ParentInterest, index
from .states import Event, LinkAction, State, step
from .tree import Tree
from .uplink import Uplink

LinkState: TypeAlias = Literal["stopped", "connecting", "joining", "joined", "outage", "loop", "deep"]
STATES: tuple[LinkState, ...] = ("stopped", "connecting", "joining", "joined", "outage", "loop", "deep")
"""Public states of the link to the parent: ``connecting`` until it first joins, ``outage`` between two
links, ``loop`` while the parent is below this one, and ``deep`` while it is so deep in its tree that no hub may
join it."""

JOINING: Final[dict[State, str]] = {
    "greeting": "no answer to whoami",
    "asking": "no answer to interest/on",
    "placing": "its path to the root is not settled",
    "heard": "its path to the root is not settled",
}
"""States in which this hub waits to join, and the text of the error if the parent does not answer soon."""

JOINED: Final[frozenset[State]] = frozenset({"joined", "settling", "resuming", "open", "emptying", "leaving", "left"})
"""States in which this hub has joined."""

WAITS: Final[dict[State, str]] = {
    **JOINING,
    **dict.fromkeys(("emptying", "leaving", "left"), "it did not acknowledge what was sent to it"),
}
"""All states in which the parent has to answer soon, and the text of the error if it does not. States with one text
wait together."""

_NOBODY: Final = Credentials(gid=-1, uid=-1, pid=-1)


class Parent:
    """The parent, as long as a relay is started. Implements :class:`~sbuslib.tree.link_interfaces.ParentPort`.

    :param export: patterns that may go up; ``None``: all.
    :param import_: patterns that may come down, likewise.
    """

    def __init__(self, tree: Tree, relay: Joiner, export: list[bytes] | None, import_: list[bytes] | None) -> None:
        self.tree = tree
        self.relay = relay
        self.context = tree.context  # of this hub
        self.up = Uplink(self.context, tree.loss_reports, lambda: self.step)
        """The receiver object for it, in routes."""
        most = self.context.limits.pruned_keys
        self.interest = ParentInterest(
            self.context.router, self.up, self.up.account, export, lambda: self.secrets, most
        )
        """Its interest in messages that are published here."""

        self.import_ = import_
        """Patterns that may come down over the next link."""
        self.step: State = "stopped"  # of the table
        self.apart: ApartError | None = None
        """Why this hub stays apart from the parent, until it joins one."""
        self.address = ""
        """Where the parent listens that was dialled last."""
        self.secrets = True
        """Whether secrets cross: not where that hub does not know the ids of this process, or no extensions."""

        self.link: Link | None = None
        """The link at hand, whether or not this hub has joined over it."""
        self.patterns = 0
        """Subscriptions at the parent."""
        self.epoch = 0
        """How many times this hub has joined."""
        self.links_beside = 0
        """How many links of trusted users the parent has, as it says."""
        self.downstream = LinkLosses(self.context, lambda lost: tree.pass_notice(lost, self.up))
        """Messages for this hub that the parent lost."""
        self.dropped = Violations(self.context.limits.logged_violations)
        """Packets from above that should not have come."""
        self.away_since = 0.0
        """Since when messages from above may be missing here without a notice, in seconds since the epoch; 0: none."""

        self._changed = Changed()  # set, and replaced, with each step
        self._connection: Connection | None = None  # that of the link
        self._received = 0  # messages that came down over earlier links
        self._id, self._process = b"", 0  # this hub's instance and epoch, as it says
        self._logged_open = False  # whether it was logged that all that is wanted goes up to another user's hub
        self._last_reason = ""  # why it has not joined, as was logged last

    @property
    def _separator(self) -> bytes:
        return self.context.router.namespace.separator

    # -- its states ---------------------------------------------------------------------------------

    def on(self, event: Event) -> LinkAction:
        """Take the step of the table for an event. Returns the action that the link has to carry out."""
        before = self.step
        action, self.step = step(before, event)
        match action:
            case LinkAction.BEGIN:
                self._id, self._process = stable_id(self.context.address(), self.tree.hub_id), new_epoch()
                self.interest.begin()
                self.tree.loss_reports.attach(self.up.check_passed)
            case LinkAction.SETTLE:
                self.tree.questions.note_joined()
            case LinkAction.END:
                self._end()

        if action is not LinkAction.NOTHING or self.step != before:
            changed, self._changed = self._changed, Changed()
            changed.set()
            self.tree.presences.note_scope()
        return action

    def _end(self) -> None:
        self.away_since = 0.0
        self.context.running.delivery_barrier.note(self.up, False)
        self.interest.end()
        self.tree.loss_reports.detach()
        self.tree.questions.note_joined()
        self.tree.detach()

    @property
    def state(self) -> LinkState:
        """Public state of the link."""
        if self.step == "stopped":
            return "stopped"
        if self.step in JOINING:
            return "joining"
        if self.step in JOINED:
            return "joined"
        if self.step == "apart" and self.apart is not None:
            return self.apart.state
        return "outage" if self.epoch else "connecting"

    @property
    def settled(self) -> bool:
        """Whether this hub has joined, or has failed to."""
        return self.step != "starting" and self.step not in JOINING

    @property
    def joined(self) -> Link | None:
        """The link, once this hub has joined over it."""
        return self.link if self.step in JOINED else None

    @property
    def stands_apart(self) -> bool:
        """Whether joining would make a loop or too deep a tree, so that this hub is the root of its own."""
        return self.apart is not None

    @property
    def announces_presences(self) -> bool:
        """Whether there is a link over which it announces presences."""
        return self.joined is not None and self.joined.presence_cursor is not None

    @property
    def scope_alone(self) -> bytes:
        """The scope of a sync without the parent. A hub that stands apart is the root of its tree."""
        return control.SCOPE_TREE if self.stands_apart else b"partial"

    def wait_for_change(self, timeout: float | None = None) -> bool:
        """Wait, in a greenlet, until something has changed. Returns whether it has, within so many seconds."""
        return self._changed.wait(timeout)

    def report(self, reason: str) -> None:
        """Log why this hub has not joined, unless that was logged last."""
        if reason != self._last_reason:
            self._last_reason = reason
            log(logging.WARNING, "sbus hub at %s: relay to %s", self.context.address(), reason)

    def log_what_is_open(self, uid: int) -> None:
        """Log once that all that is wanted goes up, if the parent is that of another user: that may not be meant."""
        if uid != os.getuid() and not self.interest.is_bounded and not self._logged_open:
            self._logged_open = True
            text = "sbus hub at %s: what is wanted above goes up to the hub of user %s at %s: name what may with export"
            log(logging.WARNING, text, self.context.address(), name_of_user(uid), self.address)

    # -- its life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """The relay starts. Raises :exc:`~sbuslib.errors.StateError` if the hub has another."""
        self.tree.attach(self)
        self.on("start")

    def abandon(self) -> None:
        """In the child of a fork: close the child's copy of the connection only."""
        self.context.running.delivery_barrier.clear()  # the questions of the parent's clients
        self.step = "stopped"
        self.interest.abandon()
        connection = self._connection
        if connection is not None:
            self.end_link()
            connection.close()

    def found_nobody(self, address: str) -> None:
        """No hub listens there. The next one may be another program: it may know secrets, and be above this hub."""
        if address == self.address:
            self.secrets = True
            self.apart = None
            self.on("gone")

    def begin_link(self, link: Link, connection: Connection, address: str) -> None:
        """A hub has taken the connection. It may say something before this hub has joined."""
        if self.address != address:
            self.address, self.links_beside = address, 0
        self.link, self._connection = link, connection
        if self.interest.begin_anew():
            self.tree.propagation.want_any()

    def end_link(self) -> None:
        """The connection is about to be closed."""
        assert self._connection is not None
        self._received = self.received
        self.link = self._connection = None
        self.patterns = 0
        self.tree.loss_reports.end_link()
        self.up.disconnect()

    # -- what goes up -------------------------------------------------------------------------------

    def hello(self, words: frozenset[bytes]) -> Hello:
        """The hello of this hub, for a parent that lists these words among its features."""
        return Hello(self._id, self._process, self.links_beside, words & control.BETWEEN_HUBS)

    def is_sending(self) -> bool:
        """Whether something waits that can be sent."""
        return self.up.is_open and bool(self.up.waiting)

    # -- reports about it ---------------------------------------------------------------------------

    @property
    def received(self) -> int:
        """Messages that came down."""
        return self._received + (self._connection.received if self._connection is not None else 0)

    def may_import(self, key: bytes) -> bool:
        """Whether a message under this key may come down."""
        namespace = self.context.router.namespace
        if namespace.is_secret(key):
            return bool(namespace.prefix) and key.startswith(namespace.prefix)
        bounds = index(self.import_, self._separator)
        return bounds is None or bool(bounds.subscribers(key))

    def explain(self, key: bytes, carries: bool) -> ExplainedLink:
        """Explain the outcome on the link for a message under this key; ``carries``: it is a receiver."""
        # 1. Why it is none.
        reason = ""
        if not carries and self.context.router.namespace.is_secret(key):
            reason = "secret"
        elif not carries:
            is_pruned = key in self.interest.pruned
            reason = "export" if not self.interest.may_export(key) else "pruned" if is_pruned else "unwanted"

        # 2. Else whether it is sent, kept or lost.
        outcome = cause = ""
        if carries:
            is_kept = bool(self.up.waiting) or not self.up.is_open
            has_room = self.up.has_room(len(key))
            outcome, cause = ("sent", "") if not is_kept else ("waits", "") if has_room else ("lost", "upstream")
        return ExplainedLink(
            link=self.statistics(),
            carries=carries,
            reason=reason,
            outcome=outcome,
            cause=cause,
            away_since=0.0 if self.joined is not None else self.away_since,
        )

    def statistics(self) -> LinkStatistics:
        """The link."""
        up, path, link = self.up, self.tree.path, self.link
        peer = self._connection.credentials if self._connection is not None else _NOBODY

        return LinkStatistics(
            direction="parent",
            number=0,
            uid=peer.uid,
            pid=peer.pid,
            credentials=self.context.router.namespace.prefix[: -len(self._separator)].decode(),
            hub=path[1].decode() if len(path) > 1 else "",
            address=self.address,
            state=self.state,
            epoch=self.epoch,
            mode=link.mode if link is not None else "plain",
            patterns=self.patterns,
            pruned=len(self.interest.pruned),
            up=up.forwarded,
            down=self.received,
            waiting=len(up.waiting),
            lost=up.losses.lost,
            uncertain=up.losses.uncertain,
            lag=link.questions.lag if link is not None else 0.0,
            dropped=dict(self.dropped.counts),
        )
