"""What this hub and the hub above say to each other over one connection, from the greeting to its end.

:class:`Lasting` has what outlives the connection.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from gevent.timeout import Timeout

from ..core.callbacks import log
from ..core.client_role import TOKEN_BYTES
from ..core.losses import Losses
from ..errors import PacketError
from ..secrets import Credentials
from ..wire import control
from ..wire.packets import (
    Control,
    encode_control,
    encode_subscribe,
    encode_unsubscribe,
)
from ..wire.text import printable
from .above_role import AboveRole, Owner
from .asking import Asking
from .demand import Demand
from .greeting import LinkError, SecretsRefusedError, check_features, check_key, is_unknown
from .instances import Said
from .losses import LinkLosses
from .tree import Above
from .uplink import Up, Uplink
from .wanted import Wanted

__all__ = ["Conversation", "Lasting"]


class Lasting(Owner, Uplink, Above, Protocol):
    """What is known of the hub above beyond one connection."""

    wanted: Wanted
    """What this hub wants from above, and has still to tell of that."""
    demand: Demand
    """What the hub above wants."""
    downstream: LinkLosses
    """Messages for this hub that the hub above lost."""
    untold: Losses
    """What was lost on its way up, here and below, and the hub above was not told yet."""
    plain: bool
    """Whether the hub above knows no more than the plain protocol: then no secrets cross."""
    links_beside: int
    """How many links of trusted users the hub above has."""

    @property
    def said(self) -> Said:
        """What the hub above is told of this hub."""

    @property
    def secrets(self) -> bool:
        """Whether secrets cross: not where the hub above refused the pattern for them."""

    def wait_for_change(self) -> None:
        """Wait until something has changed."""

    def note_change(self) -> None:
        """Something has changed."""

    def end_link(self, why: str) -> None:
        """End the connection."""


class Conversation:
    """One connection to the hub above. Only :meth:`join` waits, in the relay's greenlet."""

    def __init__(self, lasting: Lasting, up: Up, sock: socket.SocketType) -> None:
        self._lasting = lasting
        self._tree = lasting.tree
        self._context = self._tree.context
        self._up = up
        self.mode = "plain"
        """How the hub above serves this one."""
        self.has_features = False
        self.ended = False
        self.joined = self._leaving = False
        self.why = ""
        """Why the hub above kicked this hub, if it said so."""
        self.error: LinkError | None = None
        """What this hub ended the link for."""
        self._key = b""
        self._secrets = b""  # the pattern for secrets, once the hub above was asked for them
        self._kicked = self._may_have_secrets = False
        self._features: control.Features | None = None
        self._features_seen = 0
        self._confirmed = self._answered = self._complete = self._has_said_all = False
        self._asking = Asking(up, self._context.limits.queued_answers)
        self._questions_below = 0  # those of the hub above that are open
        self._told_senders = self._told_all = False
        self.role = AboveRole(lasting, up)
        self._connection = self.role.connect(sock)
        up.connect(sock)

    @property
    def peer(self) -> Credentials:
        """The process of the hub above."""
        return self._connection.credentials

    @property
    def received(self) -> int:
        """Messages that came down."""
        return self._connection.publisher.received

    # -- the greeting -------------------------------------------------------------------------------

    def join(self) -> None:
        """Greet the hub above and join it.

        Raises :exc:`~sbuslib.tree.greeting.LinkError` and :exc:`TimeoutError`. The caller then has to end the
        connection.
        """
        tree, up = self._tree, self._up
        # A hub without features does not answer the first of these. So its first answer tells whether it has them.
        hello = [control.FEATURES, control.ECHO_OFF, control.NOTICES_ON, control.WHOAMI]
        up.say(*map(encode_control, hello))
        self._await(lambda: bool(self._key), "no answer to whoami")
        features = self._features
        if features is not None and control.INTEREST_ON in features.words:
            self._check(features)
            # Set the path first, then ask again: so of two hubs that join each other, at least one sees the loop.
            tree.set_path(features.path)
            seen = self._features_seen
            # interest/on comes first: a link is told when the path above changes, so that longer loops are found.
            up.say(encode_control(control.INTEREST_ON, self._lasting.said.encode()), encode_control(control.FEATURES))
            up.say(encode_control(control.SYNC, b"root\0root"))
            self._await(lambda: self._confirmed and self._features_seen > seen, "its path to the root is not settled")
            self._await(lambda: self._answered, "no answer to interest/on")
        elif features is not None:
            self._check(features)
            tree.set_path(features.path)
        else:
            tree.set_path(())
        if self._lasting.secrets and self.has_features:
            self._ask_for_secrets()
        if features is not None and control.BATCH_ON in features.words:
            up.say(encode_control(control.BATCH_ON))
            up.takes_batches = True
        if features is not None and control.LINKS in features.words:
            up.say(encode_control(control.INTEREST_ADDRESS, os.fsencode(os.path.abspath(self._context.address()))))
        self.joined = True

    def _ask_for_secrets(self) -> None:
        """Subscribe to the secrets below our key. A hub that serves us as any client may disconnect us for that.

        A hub without features is not asked: the C daemon disconnects a client that subscribes to credentials.
        """
        if is_unknown(self._key, self._context.router.namespace.separator):
            # Such a hub refuses the pattern, and does not disconnect a link for it.
            raise SecretsRefusedError("it does not know the ids of this process, so no secrets cross")
        self._subscribe_to_secrets()
        if self.mode in ("announce", "prune"):
            return
        self._up.say(encode_control(control.SYNC, b"secrets"))
        try:
            self._await(lambda: self._may_have_secrets, "no answer after the pattern for secrets")
        except LinkError as error:
            if not self._kicked:
                raise  # it has gone for another reason
            raise SecretsRefusedError(f"it refuses the pattern for secrets, so none cross ({error})") from None

    def _subscribe_to_secrets(self) -> None:
        secrets = self._key + self._context.router.namespace.separator
        if secrets != self._secrets:
            self._secrets = secrets
            self._up.say(encode_subscribe(secrets))

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        with Timeout(self._context.limits.link_wait, TimeoutError(what)):
            while self.ended or not condition():
                if self.ended:
                    raise self.error or LinkError(self.why)
                self._lasting.wait_for_change()

    def _check(self, features: control.Features) -> None:
        separator = self._context.router.namespace.separator
        check_features(features, self._tree.hub_id, separator, self._context.limits.path_hubs)

    def begin(self) -> None:
        """This hub has joined: take its prefix, tell the losses of the outage, and send what was kept."""
        self.take_key()
        self.tell_losses(after_outage=True)
        self._up.losses.report()
        self.let_through()

    def let_through(self) -> None:
        """Send messages up, once this hub has joined and the hub above has said what it wants."""
        if not self.joined or self._leaving:
            return
        if self.mode not in ("announce", "prune") or self._complete:
            self._lasting.demand.complete(self.mode != "announce")
            self._has_said_all = True
            self.demand_settled()

    def demand_settled(self) -> None:
        """What the hub above no longer wants may have been taken back: messages for that were kept in vain."""
        if self._has_said_all and not self._leaving and not self._lasting.demand.has_work:
            self._up.let_through()
        self._tree.wake()

    def hold(self) -> None:
        """This hub is about to leave: send no more messages, and ask about those that were sent."""
        self._leaving = True
        self._up.hold()

    def say_goodbye(self) -> None:
        """Send nothing more. The hub above then ends the connection, and all that it has sent before is received."""
        if self._up.socket is not None and not self.ended:
            with suppress(OSError):
                self._up.socket.shutdown(socket.SHUT_WR)

    def end(self, why: str) -> None:
        """Close the connection."""
        self.ended = True
        self.joined = False
        self.why = self.why or why
        self._up.disconnect()
        self._connection.close()

    def unanswered(self) -> list[bytes]:
        """The questions of the tree that the hub above did not answer."""
        return self._asking.unanswered()

    # -- what is said -------------------------------------------------------------------------------

    def take_key(self) -> None:
        """Use our credential key on the hub above as our prefix. Where no secrets cross, this hub needs none."""
        self._lasting.plain = not self.has_features
        if self._lasting.secrets:
            self._subscribe_to_secrets()
        self._tree.set_prefix(self._secrets)
        self._context.router.reconsider_all()

    def is_ours(self, key: bytes) -> bool:
        """Whether a secret key is one that the hub above was asked for."""
        return bool(self._secrets) and key.startswith(self._secrets)

    def tell_losses(self, after_outage: bool = False) -> None:
        """Tell the hub above what was lost on its way up and what is uncertain, here and below."""
        if not self.joined:
            return
        for notice in (control.Lost(*each) for each in self._lasting.untold.take_report()):
            if after_outage:
                text = "sbus hub at %s: %d messages to the hub above: %s"
                log(logging.WARNING, text, self._context.address(), notice.count, notice.cause)
            if self.mode == "announce":  # else the hub above does not trust this one, and tells nobody
                self._up.say(notice.encode())

    @property
    def is_full(self) -> bool:
        """Whether there is more to tell, but the hub above has to read first."""
        if not self.joined or self._up.room > 0:
            return False
        return not self._lasting.wanted.is_told or self._owes_senders

    @property
    def _owes_senders(self) -> bool:
        """Whether the hub above has still to be told whether this hub wants senders."""
        wanted = self._context.senders > self._up.wrap  # by anybody but the hub above
        return self._features is not None and self._told_senders is not wanted

    def tell(self) -> None:
        """Subscribe and unsubscribe above, and say whether senders are wanted, while there is room.

        Once all is told, send the questions that wait for that.
        """
        if not self.joined:
            return
        wanted, up = self._lasting.wanted, self._up
        if self._owes_senders and up.room > 0:
            self._told_senders = not self._told_senders
            up.say(encode_control(control.SENDERS_ON if self._told_senders else control.SENDERS_OFF))
        changes = wanted.take(max(0, up.room))
        up.say(*(encode_subscribe(p) if added else encode_unsubscribe(p) for added, p in changes))
        if not wanted.is_told:
            return
        if not self._told_all and self._tree.has_settled:
            self._told_all = True
            if self._features is not None and control.INTEREST_ON in self._features.words:
                up.say(encode_control(control.INTEREST_COMPLETE))
        if self._asking and self._up.open:  # messages that are kept come before a question that is younger
            self._asking.send(self.has_features)

    @property
    def has_more(self) -> bool:
        """Whether there is more to tell at once: so much that it was not told in one turn."""
        return self.joined and self._up.room > 0 and not self._lasting.wanted.is_told

    def ask(self, token: bytes) -> bool:
        """Ask the hub above about the rest of the tree, once this hub has joined and all is told.

        Returns ``False`` when too many questions wait for that.
        """
        return self._asking.ask(token)

    # -- what the hub above says --------------------------------------------------------------------

    def take_control(self, packet: Control) -> None:
        """Act on a control packet from above."""
        try:
            self._act_on(packet.key, packet.payload or b"")
        except PacketError as error:
            self._lasting.count_rubbish(error.reason)
        except LinkError as error:
            self.error = error
            self._lasting.end_link(str(error))
        self._lasting.note_change()

    def _act_on(self, key: bytes, payload: bytes) -> None:
        lasting, demand = self._lasting, self._lasting.demand
        match key:
            case control.WHOAMI:
                self._take_key(payload)
            case control.FEATURES:
                self._take_features(payload)
            case control.SYNC:
                self._take_sync(*payload.partition(b"\0")[::2])
            case control.INTEREST_ON:
                if payload not in (b"announce", b"prune", b"plain"):
                    raise PacketError("unknown mode")
                self.mode = payload.decode()
                self._answered = True
            case control.INTEREST_ADD:
                for pattern in control.decode_patterns(payload):
                    demand.announce(pattern)
            case control.INTEREST_REMOVE:
                for pattern in control.decode_patterns(payload):
                    demand.take_back(pattern)
            case control.INTEREST_COMPLETE:
                self._complete = True
                self.let_through()
            case control.INTEREST_PRUNE:
                if self.mode == "prune":
                    demand.prune(payload)
            case control.INTEREST_GRAFT:
                if demand.graft(payload):
                    self._tree.want_again(payload)
            case control.INTEREST_LINKS:
                if payload.isdigit() and len(payload) <= 6:
                    lasting.links_beside = int(payload)
            case control.INTEREST_WIDEN:
                lasting.wanted.widen()
                self._tree.wake()
            case control.INTEREST_SYNC:
                self._take_question(payload)
            case control.SENDERS_ON | control.SENDERS_OFF:
                self._up.set_senders(key == control.SENDERS_ON)
            case control.NOTICE_LOST | control.NOTICE_AWAY | control.NOTICE_KICKED | control.NOTICE_CREDENTIALS:
                self._take_notice(control.decode_notice(key, payload))
            case _:
                self._context.ignored += 1

    def _take_key(self, payload: bytes) -> None:
        if self._key and not self.has_features:
            asked = self._asking.take_whoami()
            if asked is None:
                self._up.take_answer(control.WHOAMI)
            else:
                self._tree.answered(asked, self._lasting, control.SCOPE_TREE)
        self._key = check_key(payload, self._context.router.namespace)

    def _take_features(self, payload: bytes) -> None:
        try:
            features = self._features = control.Features.decode(payload)
        except PacketError as error:
            if self.joined:
                raise
            raise LinkError(f"its features cannot be read: {error.reason}") from None
        self.has_features = True
        self._features_seen += 1
        if self._features_seen > 1:
            self._check(features)
            self._tree.set_path(features.path)

    def _take_notice(self, notice: control.Notice | None) -> None:
        match notice:
            case control.Kicked():
                self._kicked = True
                self.why = printable(notice.reason.encode())
            case control.NewCredentials():
                self._key = check_key(notice.credentials, self._context.router.namespace)
                if self.joined:
                    self.take_key()
            case control.Away() | control.Lost(cause=control.DOWNSTREAM):
                self._tree.pass_notice(notice, self._up)
            case control.Lost(cause=cause) if cause in control.UP_CAUSES:
                self._tree.pass_notice(notice, self._up)
            case control.Lost():  # the messages were for this link, and the hub above could not queue them
                self._lasting.downstream.note(control.DOWNSTREAM, notice.count, notice.since)

    def _take_sync(self, token: bytes, scope: bytes) -> None:
        if token == b"root":
            self._confirmed = True
        elif token == b"secrets":
            self._may_have_secrets = True
        elif (asked := self._asking.take(token)) is not None:
            self._tree.answered(asked, self._lasting, scope)
        else:
            self._up.take_answer(token)

    def _take_question(self, token: bytes) -> None:
        """The hub above asks when all that it told is in force below."""
        if len(token) > TOKEN_BYTES:
            raise PacketError("token too long")
        if self._questions_below >= self._context.limits.queued_answers:
            raise PacketError("too many questions")
        self._questions_below += 1
        self._tree.sync_below(lambda scope: self._say_synced(token, scope))

    def _say_synced(self, token: bytes, scope: bytes) -> None:
        self._questions_below -= 1
        if not self.ended:  # perhaps before this hub has joined: the hub above takes it for a link already
            self._up.say(encode_control(control.INTEREST_SYNC, token + b"\0" + scope))
