"""One link to the parent: :class:`ParentLink`. State that outlives it is in :mod:`sbuslib.tree.parent`.

Over each link everything is announced anew. The parent's earlier announcements hold until it has announced everything.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from time import time
from typing import Final

from ..core.client_role import TOKEN_BYTES
from ..core.connection import Connection
from ..core.publisher import Publisher
from ..errors import PacketError
from ..kernel.peers import peer_credentials
from ..keys.covering import narrow
from ..reasons import Reason
from ..secrets import Credentials
from ..wire import control, presence
from ..wire.packets import Control, Packet, encode_control, encode_subscribe, encode_unsubscribe
from ..wire.text import printable
from .handshake import ApartError, LinkError, check_features, check_key, is_unknown
from .interest import Changes, InterestCursor
from .link import MODES, Link
from .open_questions import OnAnswer
from .parent import Parent
from .parent_interest import index
from .presences import PARENT
from .remote_senders import RemoteSender
from .states import Event, LinkAction

_HELLO: Final = (control.FEATURES, control.ECHO_OFF, control.NOTICES_ON, control.SENDERS_ON, control.WHOAMI)
"""The first packets. A hub without features does not answer the first of them, so its first answer shows that."""

ALIVE_PAUSE: Final = 1.0
"""Seconds between an answer of the parent and the next question whether it is alive. When the link ends, messages
may be missing since the last question that it answered: either process may have been stopped since then."""


class ParentLink(Link):
    """The role of one connection to the parent.

    :param sock: is connected to ``address``.
    """

    asks = False  # the parent has asked already
    keeps_bounds = True  # import_ changes with the next link

    def __init__(self, parent: Parent, sock: socket.SocketType, address: str) -> None:
        context, credentials = parent.context, peer_credentials(sock)
        account = context.quotas.account(credentials.uid)

        #: At the parent this is a client; here it is read from and sent to as one.
        self._connection = Connection(context, parent.tree.clients.fan_outs, sock, credentials, account, self)
        super().__init__(parent.tree, self._connection, parent.up, address)
        self._parent = parent  # what outlives this link
        self._tree = parent.tree  # of this hub
        self._address = address  # of the parent
        self._separator = context.router.namespace.separator  # which the parent has to have, too
        self._features: control.Features | None = None  # None: it knows no extensions
        self._key = b""  # the credential key of this link
        self._secrets = b""  # the pattern for secrets, once the parent was asked for them
        self._bounds = parent.import_  # patterns that may come down; None: all
        self._imports = index(self._bounds, self._separator)  # the same, by key
        self._child_questions = 0  # its questions that are open
        self._controls: deque[Control] = deque()  # to be acted on after the turn, since they may end the link
        self._reason = ""  # why the parent kicked this hub, if it gave a reason
        # when the last question was asked that the parent has answered, in seconds since the epoch
        self._alive_at = 0.0
        self._reported_away = False  # whether the outage was reported to others and is not yet over
        self.why = ""
        """Why the link ended."""
        parent.begin_link(self, self._connection, address)
        parent.up.connect(self._ask_what_passed, self._on)

    # -- its life -----------------------------------------------------------------------------------

    @property
    def is_joined(self) -> bool:
        """Whether this hub has joined over this link."""
        return self._parent.joined is self

    def begin(self) -> None:
        """Greet the parent."""
        self._on("connect")

    def leave(self, why: str) -> None:
        """Lose nothing that is on its way, and end the link.

        The parent ends it, once it has acknowledged everything that was sent to it. Its own last packets are received.
        """
        self.why = why
        self._on("leave")

    def _end_sending(self) -> None:
        self.link_context.loss_reports.end_link()
        with suppress(OSError):
            self.outbound.socket.shutdown(socket.SHUT_WR)

    def _on(self, event: Event) -> None:
        """Do what the table says."""
        match self._parent.on(event):
            case LinkAction.GREET:
                self.say(*map(encode_control, _HELLO))
            case LinkAction.ASK:
                self._take_path()
                # The parent announces when the path above changes. So this comes first, and longer loops are found.
                words = self._features.words if self._features is not None else frozenset[bytes]()
                self.say(encode_control(control.INTEREST_ON, self._parent.hello(words).encode()))
            case LinkAction.PLACE:
                self._take_position()
            case LinkAction.JOIN:
                self._join()
            case LinkAction.JOIN_HEARD:
                self._join()
                self._take_back()
            case LinkAction.TAKE_BACK:
                self._take_back()
            case LinkAction.OPEN:
                self._parent.up.open(self.outbound)
                self.mark()
            case LinkAction.EMPTY:
                self._parent.up.empty()
            case LinkAction.HOLD:
                self._parent.up.hold()
            case LinkAction.FINISH:
                self._end_sending()
            case LinkAction.CLOSE:
                self._close()

    def _take_position(self) -> None:
        """Take a place below the parent, subscribe to secrets, and ask what its path is then.

        Of two hubs that join each other, at least one sees the loop: each has set its path before it asks.
        """
        parent = self._parent
        self._take_path()
        is_known = not is_unknown(self._key, self.context.router.namespace)
        if parent.secrets and not is_known:
            parent.report(f"{self._address}: it does not know the ids of this process, so no secrets cross")
        parent.secrets = is_known
        if is_known:
            self._subscribe_to_secrets()
        self.say(encode_control(control.FEATURES), encode_control(control.SYNC, b"root\0root"))

    def _take_path(self) -> None:
        """Check the parent's path. Raises :exc:`~sbuslib.tree.handshake.LinkError`."""
        features = self._features
        if features is not None:
            check_features(features, self._tree.hub_id, self._separator, self.context.limits.path_hubs)
        self._tree.set_path(features.path if features is not None else ())

    def _knows(self, word: bytes) -> bool:
        return self._features is not None and word in self._features.words

    def _join(self) -> None:
        parent = self._parent
        parent.epoch += 1
        parent.apart = None
        self.complete = not self._knows(control.INTEREST_ON)  # an older hub would not know the packet
        if self._features is None:
            parent.secrets = False
            self._tree.set_path(())
        if self._knows(control.BATCH_ON):
            self.say(encode_control(control.BATCH_ON))
            self.outbound.set_batches(True)
        if self._knows(control.LINKS):
            self.say(encode_control(control.INTEREST_ADDRESS, os.fsencode(os.path.abspath(self.context.address()))))

        # 1. This hub has another prefix, and announces everything anew.
        presumes = self.mode != "plain" and self._knows(control.INTEREST_PRESUMED)
        self.cursor = self.link_context.propagation.begin(self, presumes)
        self._take_prefix()

        # 2. Losses of the meantime are reported to others.
        if self.mode == "announce":
            self.link_context.loss_reports.attach(parent.up.check_passed)
            self.link_context.loss_reports.begin_link(self.say, self._ask_what_passed)
        else:  # the parent does not believe this one
            self.link_context.loss_reports.detach()
        parent.up.losses.report()
        parent.log_what_is_open(self.outbound.credentials.uid)

        # 3. Nothing that is wanted here is in force above yet, where it was before.
        self._alive_at = time()
        self.context.running.after(ALIVE_PAUSE, self._ask_whether_alive)
        if parent.away_since:
            self._ask_what_is_in_force()

        # 4. Questions that wait can be answered, and local interest is announced to the parent.
        self.link_context.questions.note_joined()
        self.mark()

    def _take_back(self) -> None:
        """Take back what the parent no longer wants, for which messages were kept in vain."""

        def steps() -> Iterator[None]:
            yield from self._parent.interest.settle(everything=self.mode != "announce")

        def on_end() -> None:
            if self.is_joined:
                self._on("settled")

        self.link_context.propagation.do_later(steps(), on_end)

    def _ask_whether_alive(self) -> None:
        """Ask now and then what the parent answers at once, after all that it has sent."""
        asked_at = time()

        def note(scope: bytes | None) -> None:
            if scope is not None:
                self._alive_at = asked_at
                self.context.running.after(ALIVE_PAUSE, self._ask_whether_alive)

        if self.is_joined and self._parent.step != "left":
            self.say_question(self.questions.ask(self.questions.put(note, b"local")), b"local")

    def _ask_what_is_in_force(self) -> None:
        """Ask when all that is wanted here is in force in the tree: until then, messages are missing here."""
        if self.is_joined and not self.ask(self._note_in_force):
            self._ask_again()

    def _ask_again(self) -> None:
        self.context.running.after(self.context.limits.sync_wait, self._ask_what_is_in_force)

    def _note_in_force(self, scope: bytes | None) -> None:
        """Report to others for how long the parent was away.

        Where a part of the tree does not answer, one report is sent at once, and another when all have answered.
        """
        if scope is None:
            return  # the link has ended: the time goes on
        parent, now, is_whole = self._parent, time(), scope in (control.SCOPE_TREE, control.SCOPE_TRUSTED)
        if is_whole or not self._reported_away:
            self.link_context.pass_notice(control.Away(parent.away_since, now), parent.up)
            self._reported_away, parent.away_since = True, now
        if is_whole:
            parent.away_since = 0.0
        else:
            self._ask_again()

    def end(self, why: str) -> None:
        """End the link, unless it has ended."""
        if self._parent.link is self:
            self.why = self.why or why
            self._on("end")

    def _fail(self, error: LinkError) -> None:
        """End the link for an answer of the parent."""
        self.why = str(error)
        if isinstance(error, ApartError):
            self._parent.apart = error
        self._on("loop" if isinstance(error, ApartError) else "end")

    def _close(self) -> None:
        parent = self._parent
        parent.away_since = parent.away_since or self._alive_at
        self.link_context.propagation.forget(self)
        self.link_context.presences.end_link(self.receiver)
        parent.end_link()
        self._connection.close()
        self._tree.clients.finish(self.publisher)
        self._tree.set_path(())

        # Nobody else will answer what waits for the parent.
        self.questions.close()
        self.link_context.questions.note_joined()

    # -- what comes from above ----------------------------------------------------------------------

    def key_of(self, credentials: Credentials) -> bytes:
        """Empty: a publisher is known only where the parent names it."""
        return b""

    def review(self, publisher: Publisher) -> Iterator[None]:
        """Nothing: the parent is not asked about."""
        return iter(())

    def may_come(self, key: bytes, times: int) -> bool:
        """Nobody receives what this hub did not ask for."""
        if key.startswith(self.context.router.namespace.start):
            may = bool(self._secrets) and key.startswith(self._secrets)
        else:
            may = self.may_be_present(key)
        if not may:
            # No rubbish: a wider pattern may have been asked for, and the C daemon delivers secrets to wildcards.
            self._parent.dropped.counts["not asked for"] += times
        return may

    def may_be_present(self, key: bytes) -> bool:
        return self._imports is None or bool(self._imports.subscribers(key))

    def remote_sender(self, name: bytes) -> RemoteSender:
        # Empty is a sender that nobody above knows: one beyond a hub without features.
        if name and not self.context.router.namespace.chain(name):
            raise PacketError(Reason.MALFORMED_SENDER)
        # Where no secrets cross, keys here begin as at a root: those from above would look like keys of clients here.
        return RemoteSender(self.outbound.credentials, name if self._parent.secrets else b"")

    def note_dropped(self, reason: Reason, times: int) -> bool:
        return self._parent.dropped.note(reason, self._address, times)

    def violated(self, publisher: Publisher, reason: Reason) -> None:
        """The parent broke the protocol."""
        self.ended(publisher, reason)

    def ended(self, publisher: Publisher, why: str) -> None:
        """The parent has gone. Its last packets still count: acknowledgements, and why it kicked us."""
        self.after_turn(publisher)
        self.end(f"the link ended: {self._reason or why}")

    def act_on(self, publisher: Publisher, packet: Packet) -> None:
        if not isinstance(packet, Control):
            raise PacketError(Reason.NOT_FOR_A_RELAY)
        self._controls.append(packet)

    def after_turn(self, publisher: Publisher) -> None:
        """Act on control packets, now that the hub's receive buffer is free again."""
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
        parent = self._parent
        match key:
            # The handshake, while this hub joins.
            case control.WHOAMI:
                self._take_key(payload)
            case control.FEATURES:
                self._take_features(payload)
            case control.INTEREST_ON:
                if payload not in MODES:
                    raise PacketError(Reason.UNKNOWN_MODE)
                if parent.step == "asking":
                    self.mode = MODES[payload]
                    if self.mode != "plain" and self._knows(presence.PRESENCE_ON):
                        # Now, since the parent announces presences at once. This hub announces its own once it has
                        # joined.
                        presences = self.link_context.presences
                        self.presence_cursor = presences.begin_link(
                            self.receiver,
                            PARENT,
                            self._address,
                            parent.up.account,
                            self.outbound.credentials.uid,
                            parent.interest.may_export,
                            named=self._knows(presence.PRESENCE_NAMED),
                        )
                        self.say(presences.greeting)
                    self._on("client" if self.mode == "plain" else "served")
            case control.SYNC:
                token, _, scope = payload.partition(b"\0")
                if not self.questions.answer(token, scope) and token == b"root":
                    self._on("placed")

            # Its interest.
            case control.INTEREST_ADD:
                for pattern in control.decode_patterns(payload):
                    parent.interest.announce(pattern)
            case control.INTEREST_REMOVE:
                for pattern in control.decode_patterns(payload):
                    parent.interest.take_back(pattern)
            case control.INTEREST_COMPLETE:
                self._on("complete")
            case control.INTEREST_PRUNE:
                if self.mode == "prune":
                    parent.interest.prune(payload)
            case control.INTEREST_GRAFT:
                parent.interest.graft(payload)
                self.link_context.propagation.want_key(payload)
            case control.SENDERS_ON:
                self.outbound.set_senders(True)

            # The rest.
            case _ if self._take_presence(key, payload):
                pass
            case control.INTEREST_LINKS:
                if payload.isdigit() and len(payload) <= 6:
                    parent.links_beside = int(payload)
            case control.INTEREST_WIDEN:
                if isinstance(self.cursor, InterestCursor):
                    self.cursor.widen()
                    self.mark()
            case control.INTEREST_LEAVE:
                self.leave("it asked this hub to leave")
            case control.INTEREST_SYNC:
                self._take_question(payload)
            case control.INTEREST_LOST:
                for report in control.decode_loss_reports(payload):
                    self.link_context.loss_reports.take(report, parent.up, is_parent=True)
            case control.NOTICE_LOST | control.NOTICE_AWAY | control.NOTICE_KICKED | control.NOTICE_CREDENTIALS:
                self._take_notice(control.decode_notice(key, payload))
            case _:
                self.context.counts.ignored += 1

    def _take_key(self, payload: bytes) -> None:
        """Take this hub's credential key. A parent without extensions also answers in order by this."""
        self._key = check_key(payload, self.context.router.namespace)
        if self._parent.step != "greeting":
            self.questions.answer_oldest(control.SCOPE_TREE)
        elif self._features is None:
            self._on("plain")
        else:
            self._on("known" if self._knows(control.INTEREST_ON) else "client")

    def _take_features(self, payload: bytes) -> None:
        try:
            self._features = control.Features.decode(payload)
        except PacketError as error:
            if self.is_joined:
                raise
            raise LinkError(f"its features cannot be read: {error.reason}") from None
        if self._parent.step != "greeting":
            self._take_path()

    def _take_notice(self, notice: control.Notice | None) -> None:
        match notice:
            case control.Kicked():
                self._reason = printable(notice.reason.encode())
            case control.NewCredentials():
                self._key = check_key(notice.credentials, self.context.router.namespace)
                if self.is_joined:
                    self._take_prefix()
            case control.Away() | control.Lost(cause=control.DOWNSTREAM):
                self.link_context.pass_notice(notice, self._parent.up)
            case control.Lost():  # the messages were for this link, and the parent could not queue them
                self._parent.downstream.note(control.DOWNSTREAM, notice.count, notice.since)

    def _take_prefix(self) -> None:
        """Use our credential key on the parent as our prefix. Where no secrets cross, this hub needs none."""
        if self._parent.secrets:
            self._subscribe_to_secrets()
        self._tree.set_prefix(self._secrets)
        self.context.router.reconsider_all()

    def _subscribe_to_secrets(self) -> None:
        secrets = self._key + self._separator
        if secrets != self._secrets:
            self._secrets = secrets
            self.say(encode_subscribe(secrets))

    # -- announcements to the parent -----------------------------------------------------------------

    @property
    def may_ask(self) -> bool:
        return self._parent.up.is_open  # messages that are kept come before a question that is younger

    def encode(self, changes: Changes) -> list[bytes]:
        packets: list[bytes] = []
        unmark = self.context.router.namespace.unmark
        # Elsewhere a mark says nothing, and what monitors want is what anybody wants.
        takes_marks = self.mode != "plain" and self._knows(control.MONITOR_ON)
        for wanted, name in changes:
            mark, pattern = unmark(name)
            # Subscriptions are counted there: what several patterns have in common stays until each was taken back.
            parts = narrow(pattern, self._bounds, self._separator)
            self._parent.patterns += len(parts) if wanted else -len(parts)
            if mark and takes_marks:
                parts = [mark + part for part in parts]
            packets += map(encode_subscribe if wanted else encode_unsubscribe, parts)
        return packets

    # -- questions ----------------------------------------------------------------------------------

    @property
    def has_too_many_questions(self) -> bool:
        return len(self.questions) >= 2 * self.context.limits.queued_answers

    def say_question(self, token: bytes, scope: bytes = control.SCOPE_TREE) -> None:
        """Ask a ``hub/sync``. A hub without features is asked ``whoami``, which it answers in order."""
        plain = self._features is None
        self.say(encode_control(control.WHOAMI) if plain else encode_control(control.SYNC, token + b"\0" + scope))

    def _ask_what_passed(self, on_answer: OnAnswer) -> None:
        """Ask now what the parent has passed on."""
        self.say_question(self.questions.ask(self.questions.put(on_answer, b"passed")), b"passed")

    def _take_question(self, token: bytes) -> None:
        """The parent asks when its announcements are in force below. It may do so before this hub has joined."""
        if len(token) > TOKEN_BYTES:
            raise PacketError(Reason.TOKEN_TOO_LONG)
        if self._child_questions >= self.context.limits.queued_answers:
            raise PacketError(Reason.TOO_MANY_QUESTIONS)
        self._child_questions += 1

        def answer(scope: bytes) -> None:
            self._child_questions -= 1
            self.say(encode_control(control.INTEREST_SYNC, token + b"\0" + scope))

        self._tree.sync_children(answer)
