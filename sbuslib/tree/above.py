"""The hub above, as a hub with a relay knows it: over one connection after another, and in the outages between them.

:class:`LinkAbove` is the role of each of these connections, and has what outlives them: what this hub wants from above
(:class:`~sbuslib.tree.interest.Wanted`), what the hub above wants (:mod:`sbuslib.tree.demand`), and the messages that
are kept for it (:mod:`sbuslib.tree.uplink`). What happens when is a table (:mod:`sbuslib.tree.states`).
:class:`sbuslib.relay.Relay` dials.

Each connection is an *epoch*: the hub above is told everything again. What it said before holds until it has said all.

Messages from above never go up, nor secrets under this hub's own prefix. Of the other messages, those go up that the
hub above announced that it wants or, if it only prunes, those that it did not prune. Until it has said for the first
time that its interest is complete, all messages are kept. Messages come down if this hub subscribed to them there.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic, time
from typing import Final, Literal, Protocol, TypeAlias

import gevent
from gevent.event import Event as Changed
from gevent.timeout import Timeout

from ..core.callbacks import log
from ..core.client_role import TOKEN_BYTES
from ..core.connection import Connection
from ..core.losses import Losses
from ..core.outgoing import Outgoing
from ..core.protocols import Routes
from ..core.publisher import Publisher
from ..core.violations import Violations
from ..errors import PacketError, ReservedKeyError
from ..kernel.sockets import peer_credentials
from ..secrets import Credentials
from ..statistics import LinkStatistics
from ..wire import control
from ..wire.packets import MSG, Control, Packet, encode_control, encode_subscribe, encode_unsubscribe
from ..wire.text import printable
from .demand import Demand, index
from .greeting import ApartError, LinkError, check_features, check_key, is_unknown
from .instances import Said, new_epoch, stable_id
from .interest import Wanted
from .link import Link, Voucher
from .losses import LinkLosses
from .open_questions import Answer
from .states import Action, Event, State, step
from .tree import Tree
from .uplink import Uplink

__all__ = ["STATES", "Keeper", "LinkAbove", "LinkState"]

LinkState: TypeAlias = Literal["stopped", "connecting", "joining", "joined", "outage", "loop", "deep"]
STATES: tuple[LinkState, ...] = ("stopped", "connecting", "joining", "joined", "outage", "loop", "deep")
"""States of the link to the hub above, as they are told: ``connecting`` until it first joins, ``outage`` between two
epochs, ``loop`` while the hub above is below this one, and ``deep`` while it is so deep in its tree that no hub may
join it."""

_WAITS: Final[dict[State, str]] = {
    "greeting": "no answer to whoami",
    "asking": "no answer to interest/on",
    "placing": "its path to the root is not settled",
}
"""States in which the hub above has to answer soon, and what is said if it does not."""

_LOOK: Final = 0.01
"""Seconds between two looks whether what is on its way has arrived, before a hub is left."""

_HELLO: Final = (control.FEATURES, control.ECHO_OFF, control.NOTICES_ON, control.WHOAMI)
"""What is said first. A hub without features does not answer the first: so its first answer tells that."""


class Keeper(Protocol):
    """The relay, which dials the hub above."""

    def stop(self) -> None:
        """Leave the hub above for good."""

    def abandoned(self) -> None:
        """This is the child of a fork: do nothing from now on."""

    def report(self, reason: str) -> None:
        """Log why this hub has not joined."""


class LinkAbove(Link):
    """The link to the hub above. Implements :class:`~sbuslib.tree.tree.Above`.

    :param keeper: the relay. It is told why a connection ended, and stops with the hub.
    :param export: patterns that may go up; ``None``: all.
    :param import_: patterns that may come down, likewise.
    """

    asks = False  # the hub above has asked already
    tree: Tree

    def __init__(self, tree: Tree, keeper: Keeper, export: list[bytes] | None, import_: list[bytes] | None) -> None:
        super().__init__(tree)
        self._keeper = keeper
        self._router = self.context.router
        self._separator = self._router.namespace.separator
        self._imports = index(import_, self._separator)
        self.demand = Demand(self.context, export)
        self.wanted = Wanted(tree.telling.interest, import_, self._separator)
        self.up: Uplink | None = None
        """What routes hold for it; ``None`` before the first start."""
        self.epoch = 0
        """How many times this hub has joined."""
        self.links_beside = 0
        """How many links of trusted users the hub above has, as it says."""
        self.downstream = LinkLosses(self.context, lambda lost: tree.pass_notice(lost, self.up))
        """Messages for this hub that the hub above lost."""
        self.untold = Losses()
        """What was lost on its way up, here and below, and the hub above was not told yet."""
        self._step: State = "stopped"
        self._changed = Changed()  # set, and replaced, with each step
        self._apart: ApartError | None = None  # why this hub stays apart from the hub above, until it joins one
        self._away_since = 0.0  # when the last link ended, in seconds since the epoch; 0: none did, or it was told
        self._address = ""  # of the hub above that was dialled last
        self._refusing: set[str] = set()  # addresses of hubs that refused the pattern for secrets
        self._plain = False  # whether the last hub knew no more than the plain protocol: then no secrets cross
        self._dropped = Violations(self.context.limits.logged_breaches)
        self._former = 0  # messages that came down over earlier connections
        self._why, self._refused = "", False  # why the last link ended; whether since secrets were refused
        self._told_open = False  # whether it was logged that all goes up to another user's hub
        self._id, self._process = b"", 0  # this hub's instance and epoch, as it says
        self._forget_connection()

    def _forget_connection(self) -> None:
        """There is no connection: nothing is known of one."""
        self._connection: Connection | None = None
        self.mode = "plain"
        """How the hub above serves this one."""
        self._features: control.Features | None = None  # None: it knows no extensions
        self._key = b""  # the credential key of this link
        self._secrets = b""  # the pattern for secrets, once the hub above was asked for them
        self._reason = ""  # why the hub above kicked this hub, if it said so
        self._joined = False  # whether this hub has joined over it
        self._complete = False  # whether the hub above has said all that it wants
        self._told_senders = self._told_all = False
        self._questions_below = 0  # those of the hub above that are open
        self._tokens = 0  # of questions, so far
        self._controls: deque[Control] = deque()  # to be acted on after the turn, since they may end the connection
        self._vouchers.clear()

    # -- its states ---------------------------------------------------------------------------------

    def _on(self, event: Event) -> None:
        """Do what the table says."""
        action, self._step = step(self._step, event)
        match action:
            case Action.BEGIN:
                self._begin()
            case Action.GREET:
                self._say(*map(encode_control, _HELLO))
            case Action.ASK:
                self._take_path()
                # A link is told when the path above changes. So this comes first, and longer loops are found.
                self._say(encode_control(control.INTEREST_ON, self.said.encode()))
            case Action.PLACE:
                self._place()
            case Action.JOIN:
                self._join()
            case Action.OPEN:
                self.tree.do_later(self._settle_demand())
            case Action.HOLD:
                self._uplink.hold()
            case Action.CLOSE:
                self._close()
            case Action.SETTLE:
                self._answer_for_above()
                self.tree.joined()
            case Action.END:
                self._end()
        changed, self._changed = self._changed, Changed()
        changed.set()

    @property
    def said(self) -> Said:
        """What the hub above is told of this hub."""
        return Said(self._id, self._process, self.links_beside)

    @property
    def state(self) -> LinkState:
        """How the link is, as it is told."""
        match self._step:
            case "stopped":
                return "stopped"
            case "greeting" | "asking" | "placing":
                return "joining"
            case "joined" | "open" | "leaving":
                return "joined"
            case "apart" if self._apart is not None:
                return self._apart.state
        return "outage" if self.epoch else "connecting"

    @property
    def settled(self) -> bool:
        """Whether it has joined, or has failed to join."""
        return self._step != "starting" and self._step not in _WAITS

    @property
    def stands_apart(self) -> bool:
        """Whether joining would make a loop or too deep a tree, so that this hub is the root of its own."""
        return self._apart is not None

    def wait_for_change(self) -> None:
        """Wait until something has changed: for greenlets."""
        changed = self._changed
        changed.wait()

    # -- its life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """The relay starts. Raises :exc:`~sbuslib.errors.StateError` if the hub has another."""
        self.tree.attach(self)
        self._on("start")

    def _begin(self) -> None:
        if self.up is None:
            self.up = Uplink(self.context, self._tell_loss)
        self.wanted.begin(self.up)
        self._id, self._process = stable_id(self.context.address(), self.tree.hub_id), new_epoch()
        self._router.adjust = self._adjust
        self.demand.begin(self.up)
        self.tree.telling.add(self)
        self.tree.wake()

    def leave(self) -> None:
        """The relay stops: the hub is a root again."""
        self.end_link("stopped")
        self._on("stop")

    def _end(self) -> None:
        self._away_since = 0.0
        self.context.unsent.note(self._uplink, False)
        self.demand.end()
        self._stop_adjusting()
        self.tree.telling.forget(self)
        self.wanted.end()
        self._answer_for_above()
        self.tree.joined()
        self.tree.detach()

    def close(self) -> None:
        """The hub stops. Implements :class:`~sbuslib.tree.tree.Above`."""
        self._keeper.stop()

    def abandon(self) -> None:
        """In the child of a fork: close the child's copy of the connection only."""
        self._keeper.abandoned()
        self.context.unsent.clear()  # the questions of the parent's clients
        self._step = "stopped"
        self._stop_adjusting()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._uplink.disconnect()
            connection.close()

    def set_bounds(self, export: list[bytes] | None, import_: list[bytes] | None) -> None:
        """From now on other patterns may go up and come down. The link stays."""
        review = self.demand.set_export(export)
        self._imports = index(import_, self._separator)
        self.wanted.set_bounds(import_)
        if self._step != "stopped":
            self.tree.do_later(review)
            self.tree.telling.mark([self])
            self.tree.wake()

    def found_nobody(self, address: str) -> None:
        """No hub listens there. The next one may be another program: it may know secrets, and be above this hub."""
        self._refusing.discard(address)
        if address == self._address:
            self._plain = False
            self._apart = None
            self._on("gone")

    def missed(self) -> None:
        """No hub above could be joined for now."""
        self._on("missed")

    # -- one connection -----------------------------------------------------------------------------

    def stay(self, sock: socket.SocketType, address: str) -> float | None:
        """Join over a connection, and stay until it ends. For the relay's greenlet.

        Returns for how many seconds this hub was joined, and ``None`` if it has to try the next address.
        """
        self._connect(sock, address)
        connection = self._connection
        joined_at: float | None = None
        try:
            while self._connection is connection:
                waits = _WAITS.get(self._step)
                if waits is None and joined_at is None:
                    joined_at = monotonic()
                with Timeout(self.context.limits.link_wait if waits else None, TimeoutError(waits)):
                    self.wait_for_change()
        except TimeoutError as error:
            self.end_link(str(error))
        except BaseException:
            self.end_link("stopped")
            raise
        self._keeper.report(f"{address}: {self._why}")
        if self._refused:
            return 0.0
        return monotonic() - joined_at if joined_at is not None else None

    def _connect(self, sock: socket.SocketType, address: str) -> None:
        if self._address != address:
            self._address, self.links_beside = address, 0
        self._why, self._refused = "", False
        if self.demand.begin_anew():  # before the hub above says anything: it may do so before this hub has joined
            self.tree.want_again(b"")
        credentials = peer_credentials(sock)
        account = self.context.quotas.account(credentials.uid)
        self._connection = connection = Connection(self.context, sock, credentials, account, self)
        self._uplink.connect(connection.outgoing, self._ask_passed)
        self._on("connect")

    def _place(self) -> None:
        """Take a place below the hub above, subscribe to secrets, and ask what its path is then.

        Of two hubs that join each other, at least one sees the loop: each has set its path before it asks. A hub that
        serves us as any client may disconnect us for the pattern for secrets.
        """
        self._take_path()
        if self.secrets and is_unknown(self._key, self._separator):
            self._refusing.add(self._address)
            self._keeper.report(f"{self._address}: it does not know the ids of this process, so no secrets cross")
        if self.secrets:
            self._subscribe_to_secrets()
        self._say(encode_control(control.FEATURES), encode_control(control.SYNC, b"root\0root"))

    def _take_path(self) -> None:
        """Check what the hub above says of itself. Raises :exc:`~sbuslib.tree.greeting.LinkError`."""
        features = self._features
        if features is not None:
            check_features(features, self.tree.hub_id, self._separator, self.context.limits.path_hubs)
        self.tree.set_path(features.path if features is not None else ())

    def _join(self) -> None:
        self.epoch += 1
        self._joined = True
        self._apart = None
        self._plain = self._features is None
        words = self._features.words if self._features is not None else frozenset()
        if self._plain:
            self.tree.set_path(())
        if control.BATCH_ON in words:
            self._say(encode_control(control.BATCH_ON))
            self.outgoing.set_batches(True)
        if control.LINKS in words:
            self._say(encode_control(control.INTEREST_ADDRESS, os.fsencode(os.path.abspath(self.context.address()))))

        # 1. This hub has another prefix, and tells everything anew.
        self.wanted.begin(self._uplink)
        self._take_prefix()

        # 2. Others are told of what was lost meanwhile.
        self._tell_losses(after_outage=True)
        self._uplink.losses.report()
        if self._away_since:
            self.tree.pass_notice(control.Away(self._away_since, time()), self.up)
            self._away_since = 0.0
        self._tell_open()

        # 3. Those who wait can be answered.
        self.tree.joined()
        self.tree.telling.mark([self])
        self.tree.wake()
        if self._complete or self.mode == "plain":
            self._on("complete")

    def _settle_demand(self) -> Iterator[None]:
        """Take back what the hub above no longer wants, for which messages were kept in vain. Then send the rest."""
        yield from self.demand.settle(everything=self.mode != "announce")
        if self._step == "open":
            self._uplink.let_through()
            self.tree.telling.mark([self])

    def _tell_open(self) -> None:
        """Log once that all that is wanted goes up to another user's hub."""
        uid = self.peer.uid
        if self.demand.is_bounded or self._told_open or uid == os.getuid():
            return
        self._told_open = True
        text = "sbus hub at %s: what is wanted above goes up to the hub of user %d at %s: name what may with export"
        log(logging.WARNING, text, self.context.address(), uid, self._address)

    def end_link(self, why: str) -> None:
        """End the connection, if there is one."""
        if self._connection is not None:
            self._why = why
            self._on("end")

    def _fail(self, error: LinkError) -> None:
        """What the hub above said ends the link."""
        self._why = str(error)
        if isinstance(error, ApartError):
            self._apart = error
        self._on("loop" if isinstance(error, ApartError) else "end")

    def _close(self) -> None:
        connection, was_joined = self._connection, self._joined
        assert connection is not None
        if self._secrets and not was_joined and self._reason and self.mode == "plain":
            self._refused = True
            self._refusing.add(self._address)
            self._why = f"it refuses the pattern for secrets, so none cross ({self._reason})"
        if was_joined:
            self._away_since = time()
        self._former += connection.publisher.received
        self._uplink.disconnect()
        self._forget_connection()
        connection.close()
        self.tree.clients.finish(connection.publisher)
        self.tree.set_path(())
        self._answer_for_above()
        self.tree.wake()

    def leave_for(self, address: str) -> None:
        """End the link, to join another hub instead, and lose nothing that is on its way. For a greenlet.

        The hub above ends it, once it has acknowledged all that was sent to it. What it has sent is received.
        """
        up, connection = self._uplink, self._connection
        if connection is None or not self._joined:
            self.end_link(f"on to {address}")
            return
        self._wait_until(lambda: not up.waiting)  # what waits would reach the next hub later than it might this one
        self._on("leave")
        self._wait_until(lambda: up.acknowledged == up.forwarded)
        if self._connection is connection:
            with suppress(OSError):
                connection.outgoing.socket.shutdown(socket.SHUT_WR)
        self._wait_until(lambda: False)
        if self._connection is connection:
            self.end_link(f"on to {address}")

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds, the link has ended, or the hub above had time enough."""
        connection, latest = self._connection, monotonic() + self.context.limits.link_wait
        while self._connection is connection is not None and not condition() and monotonic() < latest:
            gevent.sleep(_LOOK)

    # -- what comes from above ----------------------------------------------------------------------

    def key_of(self, credentials: Credentials) -> bytes:
        """Empty: who published is known only where the hub above tells."""
        return b""

    def review(self, publisher: Publisher) -> Iterator[None]:
        """Nothing: the hub above is not asked about."""
        return iter(())

    def look_up(self, publisher: Publisher, header: bytes, times: int) -> Routes:
        """The receivers here but the relay. Nobody receives what this hub did not ask for."""
        try:
            receivers = self.receivers_of(header)
        except ReservedKeyError as error:
            self.drop(error.reason, times)
            return ()
        if not self._may_come(header[len(MSG) : -1]):
            # No rubbish: a wider pattern may have been asked for, and the C daemon delivers secrets to wildcards.
            self._dropped.counts["not asked for"] += times
            return ()
        self.remember(publisher, header, receivers)
        return receivers

    def _may_come(self, key: bytes) -> bool:
        """Whether a message may come down."""
        if key.startswith(self._router.namespace.start):
            return bool(self._secrets) and key.startswith(self._secrets)
        return self._imports is None or bool(self._imports.subscribers(key))

    def vouch(self, name: bytes) -> Voucher:
        # Empty is a sender that nobody above knows: one beyond a hub without features.
        if name and not self._router.namespace.is_credential(name):
            raise PacketError("malformed sender")
        return Voucher(bytes, self.peer, name)

    def note_dropped(self, reason: str, times: int) -> bool:
        return self._dropped.note(reason, self._address, times)

    def violated(self, publisher: Publisher, reason: str) -> None:
        """The hub above broke the protocol."""
        self.ended(publisher, reason)

    def ended(self, publisher: Publisher, why: str) -> None:
        """The hub above has gone. What it said before that still counts: acknowledgements, and why it kicked us."""
        self.after_turn(publisher)
        if not publisher.closed:
            self.end_link(f"the link ended: {self._reason or why}")

    def act_on(self, publisher: Publisher, packet: Packet) -> None:
        if not isinstance(packet, Control):
            raise PacketError("not for a relay")
        self._controls.append(packet)

    def after_turn(self, publisher: Publisher) -> None:
        """Act on control packets, now that the hub's area is free again."""
        while self._controls and not publisher.closed:
            packet = self._controls.popleft()
            try:
                self._take_control(packet.key, packet.payload or b"")
            except PacketError as error:
                self.drop(error.reason)
            except LinkError as error:
                self._fail(error)
        super().after_turn(publisher)

    def _take_control(self, key: bytes, payload: bytes) -> None:
        match key:
            case control.WHOAMI:
                self._take_key(payload)
            case control.FEATURES:
                self._take_features(payload)
            case control.SYNC:
                token, _, scope = payload.partition(b"\0")
                if not self.questions.answer(token, scope) and token == b"root":
                    self._on("placed")
            case control.INTEREST_ON:
                if payload not in (b"announce", b"prune", b"plain"):
                    raise PacketError("unknown mode")
                self.mode = payload.decode()
                self._on("served")
            case control.INTEREST_ADD:
                for pattern in control.decode_patterns(payload):
                    self.demand.announce(pattern)
            case control.INTEREST_REMOVE:
                for pattern in control.decode_patterns(payload):
                    self.demand.take_back(pattern)
            case control.INTEREST_COMPLETE:
                self._complete = True
                self._on("complete")
            case control.INTEREST_PRUNE:
                if self.mode == "prune":
                    self.demand.prune(payload)
            case control.INTEREST_GRAFT:
                if self.demand.graft(payload):
                    self.tree.want_again(payload)
            case control.INTEREST_LINKS:
                if payload.isdigit() and len(payload) <= 6:
                    self.links_beside = int(payload)
            case control.INTEREST_WIDEN:
                self.wanted.widen()
                self.tree.telling.mark([self])
                self.tree.wake()
            case control.INTEREST_SYNC:
                self._take_question(payload)
            case control.SENDERS_ON | control.SENDERS_OFF:
                self._uplink.set_senders(key == control.SENDERS_ON)
            case control.NOTICE_LOST | control.NOTICE_AWAY | control.NOTICE_KICKED | control.NOTICE_CREDENTIALS:
                self._take_notice(control.decode_notice(key, payload))
            case _:
                self.context.ignored += 1

    def _take_key(self, payload: bytes) -> None:
        """The hub above says who this one is. If it knows no extensions, that is also how it answers in order."""
        self._key = check_key(payload, self._router.namespace)
        if self._step != "greeting":
            self.questions.answer_oldest(control.SCOPE_TREE)
        elif self._features is None:
            self._on("plain")
        else:
            self._on("known" if control.INTEREST_ON in self._features.words else "served")

    def _take_features(self, payload: bytes) -> None:
        try:
            self._features = control.Features.decode(payload)
        except PacketError as error:
            if self._joined:
                raise
            raise LinkError(f"its features cannot be read: {error.reason}") from None
        if self._step != "greeting":
            self._take_path()

    def _take_notice(self, notice: control.Notice | None) -> None:
        match notice:
            case control.Kicked():
                self._reason = printable(notice.reason.encode())
            case control.NewCredentials():
                self._key = check_key(notice.credentials, self._router.namespace)
                if self._joined:
                    self._take_prefix()
            case control.Away() | control.Lost(cause=control.DOWNSTREAM):
                self.tree.pass_notice(notice, self.up)
            case control.Lost(cause=cause) if cause in control.UP_CAUSES:
                self.tree.pass_notice(notice, self.up)
            case control.Lost():  # the messages were for this link, and the hub above could not queue them
                self.downstream.note(control.DOWNSTREAM, notice.count, notice.since)

    def _take_prefix(self) -> None:
        """Use our credential key on the hub above as our prefix. Where no secrets cross, this hub needs none."""
        if self.secrets:
            self._subscribe_to_secrets()
        self.tree.set_prefix(self._secrets)
        self._router.reconsider_all()

    def _subscribe_to_secrets(self) -> None:
        secrets = self._key + self._separator
        if secrets != self._secrets:
            self._secrets = secrets
            self._say(encode_subscribe(secrets))

    # -- what goes up -------------------------------------------------------------------------------

    def _adjust(self, key: bytes, secret: bool, found: Routes) -> Routes:
        """The receivers of a key that the router found, without what was pruned, and with secrets that go up."""
        up, namespace = self._uplink, self._router.namespace
        if not secret:
            return tuple(one for one in found if one is not up) if key in self.demand.pruned else found
        # Until the first prefix is known, this hub does not know whose a secret is. So it goes up and stays here.
        ours = bool(namespace.prefix) and key.startswith(namespace.prefix + namespace.start)
        return found if ours or not self.secrets else (*found, up)

    def _stop_adjusting(self) -> None:
        self._router.adjust = None
        self._router.reconsider_all()

    def _tell_loss(self, lost: control.Lost) -> None:
        """Tell all others of messages that were lost on their way up."""
        if self._step != "stopped":  # in the child of a fork, the clients are the parent's
            self.tree.pass_notice(lost, None)

    def pass_notice(self, notice: control.Lost | control.Away) -> None:
        """Tell the hub above, now or once it is there, what was lost here or below on its way up."""
        if isinstance(notice, control.Lost):
            self.untold.add(notice.cause, notice.count, notice.since)
            self._tell_losses()

    def _tell_losses(self, after_outage: bool = False) -> None:
        if not self._joined:
            return
        for notice in (control.Lost(*each) for each in self.untold.take_report()):
            if after_outage:
                text = "sbus hub at %s: %d messages to the hub above: %s"
                log(logging.WARNING, text, self.context.address(), notice.count, notice.cause)
            if self.mode == "announce":  # else the hub above does not trust this one, and tells nobody
                self._say(notice.encode())

    # -- what the hub above is told -----------------------------------------------------------------

    @property
    def _uplink(self) -> Uplink:
        assert self.up is not None, "the relay was started"
        return self.up

    @property
    def outgoing(self) -> Outgoing:
        assert self._connection is not None
        return self._connection.outgoing

    @property
    def receiver(self) -> Uplink:
        return self._uplink

    @property
    def name(self) -> str:
        return f"the hub above at {self._address}"

    @property
    def peer(self) -> Credentials:
        """The process of the hub above."""
        return self._connection.credentials if self._connection is not None else Credentials(gid=-1, uid=-1, pid=-1)

    def _say(self, *packets: bytes) -> None:
        self.outgoing.answer_all([*packets])

    @property
    def is_up(self) -> bool:
        return self._joined

    @property
    def asked_for_senders(self) -> bool:
        return self._uplink.wrap

    @property
    def room(self) -> int:
        return self.context.limits.queued_answers - self.outgoing.answers

    @property
    def has_changes(self) -> bool:
        return not self.wanted.is_told

    @property
    def is_told(self) -> bool:
        return super().is_told if self._features is not None else not self.has_changes

    @property
    def may_ask(self) -> bool:
        return self.is_told and self._uplink.open  # messages that are kept come before a question that is younger

    def tell_changes(self, most: int) -> int:
        changes = self.wanted.take(most)
        self._say(*(encode_subscribe(p) if added else encode_unsubscribe(p) for added, p in changes))
        return len(changes) if self.wanted.is_told else most

    def tell_complete(self) -> None:
        if not self._told_all and self.tree.has_settled:
            self._told_all = True
            if self._features is not None and control.INTEREST_ON in self._features.words:
                self._say(encode_control(control.INTEREST_COMPLETE))

    # -- questions ----------------------------------------------------------------------------------

    def ask(self, token: bytes) -> bool:
        """Ask the hub above about the rest of the tree, once joined and told all. ``False``: it cannot be asked."""
        most = self.context.limits.queued_answers
        if (self.settled and not self._joined) or len(self._to_ask) + len(self.questions) >= 2 * most:
            return False
        self._to_ask.append(token)
        self.tree.telling.mark([self])
        return True

    def ask_now(self, token: bytes) -> None:
        def answered(scope: bytes | None) -> None:
            self.tree.answered(token, self, self._scope_alone if scope is None else scope)

        self._ask(control.SCOPE_TREE, answered)

    def _ask_passed(self, on_answer: Answer) -> None:
        self._ask(b"passed", on_answer)

    def _ask(self, scope: bytes, on_answer: Answer) -> None:
        """Ask a ``hub/sync``. A hub without features is asked ``whoami``, which it answers in order."""
        self._tokens += 1
        token = b"%b%x" % (scope[:1], self._tokens)
        self.questions.add(token, on_answer)
        plain = self._features is None
        self._say(encode_control(control.WHOAMI) if plain else encode_control(control.SYNC, token + b"\0" + scope))

    @property
    def _scope_alone(self) -> bytes:
        """What is known of the tree without the hub above. A hub that stands apart is the root of its tree."""
        return control.SCOPE_TREE if self._apart is not None else b"partial"

    def _answer_for_above(self) -> None:
        """Answer the questions that the hub above will not answer."""
        self.questions.close()
        waiting = [*self._to_ask]
        self._to_ask.clear()
        for token in waiting:
            self.tree.answered(token, self, self._scope_alone)

    def _take_question(self, token: bytes) -> None:
        """The hub above asks when all that it told is in force below."""
        if len(token) > TOKEN_BYTES:
            raise PacketError("token too long")
        if self._questions_below >= self.context.limits.queued_answers:
            raise PacketError("too many questions")
        self._questions_below += 1
        connection = self._connection

        def answer(scope: bytes) -> None:
            if self._connection is connection:  # perhaps before this hub has joined: it is taken for a link already
                self._questions_below -= 1
                self._say(encode_control(control.INTEREST_SYNC, token + b"\0" + scope))

        self.tree.sync_below(answer)

    # -- what is told of it -------------------------------------------------------------------------

    @property
    def secrets(self) -> bool:
        """Whether secrets cross: not where the hub above refused the pattern for them, or was not asked."""
        return not self._plain and self._address not in self._refusing

    @property
    def received(self) -> int:
        """Messages that came down."""
        return self._former + (self._connection.publisher.received if self._connection is not None else 0)

    @property
    def dropped(self) -> dict[str, int]:
        """Packets from above that should not have come, by reason."""
        return dict(self._dropped.counts)

    def is_sending(self) -> bool:
        """Whether something waits that can be sent."""
        return self.up is not None and self.up.open and bool(self.up.waiting)

    def statistics(self, receivers: Routes | None = None) -> LinkStatistics:
        """This link; it carries what has these receivers if it is one of them."""
        up, path = self._uplink, self.tree.path
        return LinkStatistics(
            direction="above",
            number=0,
            uid=self.peer.uid,
            pid=self.peer.pid,
            credentials=self._router.namespace.prefix[: -len(self._separator)].decode(),
            hub=path[1].decode() if len(path) > 1 else "",
            address=self._address,
            state=self.state,
            epoch=self.epoch,
            mode=self.mode,
            patterns=len(self.wanted),
            pruned=len(self.demand.pruned),
            received=self.received,
            delivered=up.forwarded,
            queued=len(up.waiting),
            lost={"upstream": up.losses.lost} if up.losses.lost else {},
            uncertain=up.losses.uncertain,
            lag=self.questions.lag,
            carries=None if receivers is None else up in receivers,
        )
