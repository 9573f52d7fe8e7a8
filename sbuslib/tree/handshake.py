"""What a relay and the hub above say to each other over one connection, from the greeting to its end.

Each is an epoch of its own: the hub above is told everything again, and what it said before is forgotten. What
outlives the connection belongs to :class:`sbuslib.relay.Relay`.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from gevent.timeout import Timeout

from ..core.callbacks import log
from ..errors import PacketError, PeerError
from ..wire import control
from ..wire.packets import (
    Control,
    encode_control,
    encode_subscribe,
    encode_unsubscribe,
)
from .interest import in_loop
from .uplink import Down

if TYPE_CHECKING:
    from ..relay import Relay
    from .uplink import Up

__all__ = ["Conversation", "LinkError", "LoopError"]

logger = logging.getLogger("sbuslib")


class LinkError(PeerError):
    """The hub above is not one to join, or has gone."""


class LoopError(LinkError):
    """Joining would make this hub stand above itself."""


class Conversation:
    """One connection to the hub above. :meth:`join` waits, in the relay's greenlet; nothing else does."""

    def __init__(self, relay: Relay, up: Up, sock: socket.SocketType) -> None:
        self._relay = relay
        self._hub = relay.hub
        self._up = up
        self.mode = "plain"
        """How the hub above serves this one."""
        self.has_features = False
        self.ended = False
        self.joined = False
        self.why = ""
        """Why the hub above let this one go, if it said so."""
        self._loop: LoopError | None = None
        self._key = b""
        self._secrets = b""
        self._features: control.Features | None = None
        self._features_seen = 0
        self._confirmed = self._answered = self._complete = False
        self._questions: deque[bytes] = deque()
        self._rounds: dict[bytes, bytes] = {}
        self._told_senders = False
        self.down = Down(relay, sock)
        up.connect(sock)

    # -- the greeting -------------------------------------------------------------------------------

    def join(self) -> None:
        """Greet the hub above and stand below it.

        Raises :exc:`LinkError`, :exc:`LoopError` and :exc:`TimeoutError`; the connection is then to be ended.
        """
        tree, up = self._hub.tree, self._up
        # A hub that knows no features stays silent about them: whichever answer comes first tells.
        hello = [control.FEATURES, control.ECHO_OFF, control.NOTICES_ON, control.WHOAMI]
        up.say(*map(encode_control, hello))
        self._await(lambda: bool(self._key), "no answer to whoami")
        features = self._features
        if features is not None and control.INTEREST_ON in features.words:
            separator = self._hub.router.namespace.separator
            if features.separator != separator:
                raise LinkError(f"its separator is {features.separator!r}, ours {separator!r}")
            self._check_path(features)
            # Say under whom we would stand, then ask again: of two that join each other, one sees the other.
            tree.set_path(features.path)
            seen = self._features_seen
            # As a link, so that a change of its path is told: that is how longer rings are found out.
            up.say(*map(encode_control, (control.INTEREST_ON, control.FEATURES)))
            up.say(encode_control(control.SYNC, b"root\0root"))
            self._await(lambda: self._confirmed and self._features_seen > seen, "its path to the root is not settled")
            self._await(lambda: self._answered, "no answer to interest/on")
        elif features is not None:
            self._check_path(features)
            tree.set_path(features.path)
        else:
            tree.set_path(())
        if features is not None and control.BATCH_ON in features.words:
            up.say(encode_control(control.BATCH_ON))
            up.takes_batches = True
        self.joined = True

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        with Timeout(self._hub.limits.link_wait, TimeoutError(what)):
            while not condition():
                if self.ended:
                    raise self._loop or LinkError(self.why)
                self._relay.wait_for_change()

    def _check_path(self, features: control.Features) -> None:
        if in_loop(self._hub.hub_id, features.path, self._hub.limits.path_hubs):
            raise LoopError("this hub is above that one: joining it would make a loop, so it stays apart")

    def begin(self) -> None:
        """This hub has joined: say all that the hub above has to know, and send what was kept."""
        self.take_key()
        self.tell_losses(after_outage=True)
        self.let_through()

    def let_through(self) -> None:
        """Send messages up, once the hub above knows what it wants and this one has joined it."""
        if not self.joined:
            return
        if self.mode not in ("announce", "prune"):
            self._up.let_through()
        elif self._complete:
            if self.mode == "announce":
                self._relay.demand.want_all(False)
            self._up.let_through()

    def end(self, why: str) -> None:
        """Close the connection. For the relay."""
        self.ended = True
        self.joined = False
        self.why = self.why or why
        self._up.disconnect()
        self.down.close()

    def unanswered(self) -> list[bytes]:
        """The questions of the tree that the hub above did not answer."""
        return [*self._rounds.values(), *self._questions]

    # -- what is said -------------------------------------------------------------------------------

    def take_key(self) -> None:
        """Stand under our credential key on the hub above."""
        secrets = self._key + self._hub.router.namespace.separator
        if secrets != self._secrets:
            self._secrets = secrets
            self._up.say(encode_subscribe(secrets))
            self._hub.tree.set_prefix(secrets)
            self._hub.router.reconsider_all()

    def is_ours(self, key: bytes) -> bool:
        """Whether a secret key is one that the hub above was asked for."""
        return bool(self._secrets) and key.startswith(self._secrets)

    def tell_losses(self, after_outage: bool = False) -> None:
        """Tell, here and above, what was lost on its way up and what is uncertain."""
        if not self.joined:
            return
        for notice in self._up.take_report():
            if after_outage:
                text = "sbus hub at %s: %d messages to the hub above: %s"
                log(logger, logging.WARNING, text, self._hub.address, notice.count, notice.cause)
            self._hub.tree.pass_notice(notice, None)
            if self.mode in ("announce", "prune"):
                self._up.say(notice.encode())

    def tell(self) -> bool:
        """Subscribe and unsubscribe above and say whether senders are wanted, as far as there is room.

        Then ask what waits for that to be in force. Whether there is more to tell.
        """
        interest, up = self._relay.interest, self._up
        senders = bool(self._hub.tree.senders)
        if self._told_senders is not senders and self._features is not None and up.room > 0:
            self._told_senders = senders
            up.say(encode_control(control.SENDERS_ON if senders else control.SENDERS_OFF))
        changes = interest.take(max(0, up.room))
        up.say(*(encode_subscribe(p) if added else encode_unsubscribe(p) for added, p in changes))
        if not interest.is_told or self._relay.is_feeding:
            return self.joined
        while self._questions and self.joined:
            token = self._questions.popleft()
            asked = b"r" + token
            if self.has_features:
                self._rounds[asked] = token
                up.say(encode_control(control.SYNC, asked + b"\0tree"))
            else:
                self._hub.tree.answered(token, self._relay, False)
        return False

    def ask(self, token: bytes) -> bool:
        """Ask the hub above about the rest of the tree, in time; ``False`` when it cannot be asked."""
        if self.joined:
            self._questions.append(token)
        return self.joined

    # -- what the hub above says --------------------------------------------------------------------

    def take_control(self, packet: Control) -> None:
        """Act on a control packet from above: for the reading half."""
        payload = packet.payload or b""
        relay, demand = self._relay, self._relay.demand
        match packet.key:
            case control.WHOAMI:
                if self._key and not self.has_features:
                    self._up.acknowledged(control.WHOAMI)
                self._key = payload
            case control.FEATURES:
                self._take_features(payload)
            case control.SYNC:
                self._take_sync(*payload.partition(b"\0")[::2])
            case control.INTEREST_ON:
                self.mode = payload.decode("ascii", "replace")
                self._answered = True
            case control.INTEREST_ADD:
                demand.announce(payload)
            case control.INTEREST_REMOVE:
                demand.take_back(payload)
            case control.INTEREST_COMPLETE:
                self._complete = True
                self.let_through()
            case control.INTEREST_PRUNE:
                if self.mode == "prune":
                    demand.prune(payload)
            case control.INTEREST_GRAFT:
                demand.graft(payload)
            case control.INTEREST_WIDEN:
                relay.interest.widen()
                self._hub.tree.wake()
            case control.INTEREST_SYNC:
                self._hub.tree.sync_below(lambda scope, token=payload: self._say_synced(token, scope))  # type: ignore[misc]
            case control.SENDERS_ON | control.SENDERS_OFF:
                self._up.wrap = packet.key == control.SENDERS_ON
            case control.NOTICE_CREDENTIALS:
                self._key = payload
                if self.joined:
                    self.take_key()
            case control.NOTICE_KICKED:
                self.why = payload.decode(errors="replace")
            case control.NOTICE_LOST:
                self._take_lost(payload)
            case _:
                self._hub.ignored += 1
        relay.note_change()

    def _take_features(self, payload: bytes) -> None:
        try:
            self._features = control.Features.decode(payload)
        except PacketError as error:
            self._relay.dropped[error.reason] += 1
            return
        self.has_features = True
        self._features_seen += 1
        if self._features_seen == 1:
            return
        try:
            self._check_path(self._features)
        except LoopError as error:
            self._loop = error
            self._relay.stand_apart(error)
            return
        self._hub.tree.set_path(self._features.path)

    def _take_lost(self, payload: bytes) -> None:
        try:
            notice = control.decode_notice(control.NOTICE_LOST, payload)
        except PacketError as error:
            self._relay.dropped[error.reason] += 1
            return
        # Of the other causes, what was lost is ours: messages for this link that the hub above could not queue.
        if isinstance(notice, control.Lost) and notice.cause in control.LINK_CAUSES:
            self._hub.tree.pass_notice(notice, None)
        elif isinstance(notice, control.Lost):
            self._relay.lost_above += notice.count

    def _take_sync(self, token: bytes, scope: bytes) -> None:
        if token == b"root":
            self._confirmed = True
        elif token in self._rounds:
            self._hub.tree.answered(self._rounds.pop(token), self._relay, scope != b"tree")
        else:
            self._up.acknowledged(token)

    def _say_synced(self, token: bytes, scope: bytes) -> None:
        if self.joined:
            self._up.say(encode_control(control.INTEREST_SYNC, token + b"\0" + scope))
