"""``Relay``: joins a hub, the slave, to the one above it, its master. Trees are made of nothing else.

:class:`Relay` is a greenlet that dials, greets, waits for the end of the link and dials again; it keeps what the hub
above said. What passes, and what is kept meanwhile, is in :mod:`sbuslib.uplink`.

What goes up: never what came from above, never a secret under the slave's own prefix; else what the hub
above announced that it wants or, where it only prunes, what it did not prune. Until it has said that its interest is
complete, and while it is away, everything is kept. What goes down is what was subscribed to up there.

Each connection is an epoch: the hub above is told everything again, and what it said before is forgotten.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias

import gevent
from gevent.event import Event
from gevent.timeout import Timeout

from . import control
from .backoff import Backoff
from .dialer import Dialer
from .errors import PacketError, PeerError, SbusError, StateError, UsageError
from .interest import Interest, KeyTable, in_loop, narrow
from .limits import ClientLimits
from .matcher import Subscriptions
from .packets import Control, check_key, encode_control, encode_subscribe, encode_unsubscribe
from .statistics import RelayStatistics
from .uplink import Down, Up

if TYPE_CHECKING:
    from .hub import Hub

__all__ = ["STATES", "Relay"]

logger = logging.getLogger("sbuslib")

State: TypeAlias = Literal["stopped", "connecting", "joining", "joined", "outage", "loop"]
STATES: tuple[State, ...] = ("stopped", "connecting", "joining", "joined", "outage", "loop")
"""Of a link: ``connecting`` before it ever joined, ``outage`` between two epochs, and ``loop`` while the hub above is
below this one."""


class _LinkError(PeerError):
    """The hub above is not one to join, or has gone."""


class _LoopError(_LinkError):
    """Joining would make this hub stand above itself."""


class Relay:
    """Joins ``hub`` to the one above it, for as long as it is started.

    ::

        relay = Relay(hub, upstream="/run/master.sock").start()

    **Greenlets:** one, which dials and waits. What passes between the hubs does so in callbacks of the event
    loop, as between clients. One relay a hub, in the hub's thread; it ends with the hub.

    :param upstream: the address of the hub above, or several, which are tried in order.
    :param export: patterns that may go up; ``None``: all. Secrets always may.
    :param import_: patterns that may come down, likewise.
    :param upstream_user: name or id of the user that the hub above must run as.
    :param client_limits: how to dial, see :class:`~sbuslib.limits.ClientLimits`.

    Raises :exc:`~sbuslib.errors.UsageError`.
    """

    def __init__(
        self,
        hub: Hub,
        upstream: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        export: Iterable[bytes] | None = None,
        import_: Iterable[bytes] | None = None,
        upstream_user: int | str | None = None,
        client_limits: ClientLimits | None = None,
    ) -> None:
        self.hub = hub
        addresses = [upstream] if isinstance(upstream, (str, os.PathLike)) else list(upstream)
        if not addresses:
            raise UsageError("a relay needs the address of a hub above")
        client_limits = client_limits if client_limits is not None else ClientLimits()
        self._dialers = [Dialer(address, upstream_user, client_limits) for address in addresses]
        self._separator = hub.router.namespace.separator
        self._export = self._patterns("export", export)
        self._import = self._patterns("import_", import_)
        self._exports = self._index(self._export)
        self._imports = self._index(self._import)
        self._greenlet: gevent.Greenlet[[], None] | None = None
        self._changed = Event()
        self._address = self._dialers[0].address
        self.state: State = "stopped"
        self.settled = True
        self.epoch = 0
        self.dropped: Counter[str] = Counter()
        self.up: Up | None = None
        self._interest = Interest(self._separator, hub.limits.link_patterns)
        self._begin_epoch()
        self._received = 0
        self._lost_above = 0
        self._baseline = 0
        self._last_reason = ""
        self._apart = False

    @staticmethod
    def _patterns(name: str, patterns: Iterable[bytes] | None) -> list[bytes] | None:
        if patterns is None:
            return None
        if isinstance(patterns, (str, bytes)):
            raise UsageError(f"{name} is a list of patterns, not {patterns!r}")
        found = list(patterns)
        for pattern in found:
            check_key(pattern, "pattern")
        return found

    def _index(self, patterns: list[bytes] | None) -> Subscriptions[bytes] | None:
        if patterns is None:
            return None
        index: Subscriptions[bytes] = Subscriptions(self._separator)
        for pattern in patterns:
            index.add(pattern, b"")
        return index

    def _begin_epoch(self) -> None:
        self.mode = "plain"
        self.has_features = False
        self._down: Down | None = None
        self._why = ""
        self._key = b""
        self._features: control.Features | None = None
        self._features_seen = 0
        self._confirmed = False
        self._answered = self._complete = False
        self._all = True  # whether the hub above is taken to want everything
        self._wanted: Subscriptions[bytes] = Subscriptions(self._separator)
        self._announced: dict[bytes, list[bytes]] = {}
        self._pruned = KeyTable(self.hub.limits.pruned_keys, self.hub.limits.pruned_bytes)
        self._questions: deque[bytes] = deque()
        self._rounds: dict[bytes, bytes] = {}
        self._secrets = b""

    # -- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> Relay:
        """Begin to look for the hub above; this relay itself. Returns at once.

        Raises :exc:`~sbuslib.errors.StateError` when the hub is not started or has a relay.
        """
        if self._greenlet is not None:
            raise StateError("this relay is started already")
        self.hub.check_here()
        self.hub.tree.attach(self)
        if self.up is None:
            self.up = Up(self)
        self._baseline = self.hub.statistics().received
        self._interest = Interest(self._separator, self.hub.limits.link_patterns)
        self.state = "connecting"
        self.settled = False
        for _, patterns in self.hub.router.plain_patterns():
            for pattern in patterns:
                self.watch(pattern, True)
        self.hub.router.set_above(self.up, self.wants)
        self._all = False
        self._want_all(True)
        self._greenlet = gevent.spawn(self._run)
        return self

    def stop(self) -> None:
        """Leave the hub above; the hub is a root again. Stopping one that is not started does nothing."""
        greenlet, self._greenlet = self._greenlet, None
        if greenlet is None:
            return
        greenlet.kill(block=greenlet is not gevent.getcurrent())
        self._end_link("stopped")
        self.state = "stopped"
        self.settled = True
        self.hub.router.set_above(None, self.wants)
        for pattern in self.wanted_above():
            self.hub.tree.on_above(pattern, False)
        self.hub.tree.joined()
        self.hub.tree.detach()

    close = stop

    def abandon(self) -> None:
        """In the child of a fork: let go of the connection, and leave the parent's alone."""
        self._greenlet = None
        if self.up is not None:
            self.up.disconnect()
        if self._down is not None:
            self._down.close()

    def __enter__(self) -> Relay:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until this relay has joined. Raises :exc:`TimeoutError` after ``timeout`` seconds."""
        with Timeout(timeout, TimeoutError(f"{self._address}: not joined within {timeout} s")):
            while self.state != "joined":
                self._wait_for_change()

    def _wait_for_change(self) -> None:
        changed = self._changed
        changed.wait()

    def _note_change(self) -> None:
        changed, self._changed = self._changed, Event()
        changed.set()

    # -- the link -----------------------------------------------------------------------------------

    def _run(self) -> None:
        limits = self.hub.limits
        backoff = Backoff(limits.link_pause, limits.link_pause_most)
        while True:
            for dialer in self._dialers:
                self._begin_epoch_if_needed()
                try:
                    sock = dialer.dial()
                except (OSError, SbusError) as error:
                    self._tell(f"{dialer.address}: {error}")
                    continue
                self._address = dialer.address
                if self._stay(sock):
                    backoff.reset()
                    break  # the first of the addresses comes first again
            self.settled = True
            self.hub.tree.joined()
            gevent.sleep(backoff.next())

    def _begin_epoch_if_needed(self) -> None:
        if self.state == "joined":
            self.state = "outage"

    def _stay(self, sock: socket.SocketType) -> bool:
        """Join over a connection, and stay until it ends; whether it came to joining."""
        joined = False
        try:
            self._join(sock)
            joined = True
            while self._down is not None:
                self._wait_for_change()
        except _LoopError as error:
            self._end_link(str(error))
            self.state = "loop"
            self._apart = True
            self._tell(f"{self._address}: {error}")
        except (_LinkError, TimeoutError) as error:
            self._end_link(str(error))
            self._tell(f"{self._address}: {error}")
        except BaseException:
            self._end_link("stopped")
            raise
        if self.state != "loop":
            self.state = "outage" if self.epoch else "connecting"
        if joined:
            self._tell(f"{self._address}: the link ended: {self._why}")
        return joined

    def _tell(self, reason: str) -> None:
        """Log what keeps this hub apart, unless it was the last thing logged."""
        if reason != self._last_reason:
            self._last_reason = reason
            logger.warning("sbus hub at %s: relay to %s", self.hub.address, reason)

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        with Timeout(self.hub.limits.link_wait, TimeoutError(what)):
            while not condition():
                if self._down is None:
                    raise _LoopError(self._why) if self.state == "loop" else _LinkError(self._why)
                self._wait_for_change()

    def _join(self, sock: socket.SocketType) -> None:
        tree = self.hub.tree
        assert self.up is not None
        up = self.up
        self.state = "joining"
        self.settled = False
        self._down = Down(self, sock)
        up.connect(sock)
        # A hub that knows no features stays silent about them: whichever answer comes first tells.
        hello = [control.FEATURES, control.ECHO_OFF, control.NOTICES_ON, control.WHOAMI]
        up.say(*map(encode_control, hello))
        self._await(lambda: bool(self._key), "no answer to whoami")
        features = self._features
        if features is not None and control.INTEREST_ON in features.words:
            if features.separator != self._separator:
                raise _LinkError(f"its separator is {features.separator!r}, ours {self._separator!r}")
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
        self.epoch += 1
        self.state = "joined"
        self._apart = False
        self.settled = True
        self._take_key()
        self.tell_senders()
        self._interest.restart()
        tree.joined()
        tree.wake()
        for notice in up.take_report():
            self._tell_lost(notice)
        self._let_through()
        self._note_change()

    def _let_through(self) -> None:
        """Send messages up, once the hub above knows what it wants and this one has joined it."""
        if self.state != "joined" or self.up is None:
            return
        if self.mode not in ("announce", "prune"):
            self.up.let_through()
        elif self._complete:
            if self.mode == "announce":
                self._want_all(False)
            self.up.let_through()

    def _check_path(self, features: control.Features) -> None:
        if in_loop(self.hub.hub_id, features.path, self.hub.limits.path_hubs):
            raise _LoopError("this hub is above that one: joining it would make a loop, so it stays apart")

    def _take_key(self) -> None:
        """Stand under our credential key on the hub above."""
        assert self.up is not None
        secrets = self._key + self._separator
        if secrets != self._secrets:
            self._secrets = secrets
            self.up.say(encode_subscribe(secrets))
            self.hub.tree.set_prefix(secrets)
            self.hub.router.reconsider_all()

    def _tell_lost(self, notice: control.Lost) -> None:
        logger.warning(
            "sbus hub at %s: %d messages to %s: %s", self.hub.address, notice.count, self._address, notice.cause
        )
        self.hub.tree.pass_notice(notice, None)
        if self.mode in ("announce", "prune") and self.up is not None:
            self.up.say(notice.encode())

    def link_ended(self, down: Down, why: str) -> None:
        """The connection ended: for the reading half."""
        if down is self._down:
            self._end_link(self._why or why)

    def _end_link(self, why: str) -> None:
        down = self._down
        if down is None:
            return
        assert self.up is not None
        tree = self.hub.tree
        rounds = list(self._rounds.values())
        self._received += down.received
        self.up.disconnect()
        down.close()
        was_joined = self.state == "joined"
        had = self.wanted_above()
        self._begin_epoch()
        self._why = why
        # From here on everything is taken to be wanted, and kept.
        self._all = False
        self._wanted_swap(had)
        if was_joined:
            self.state = "outage"
        self.settled = True
        self.hub.router.reconsider_all()
        tree.set_path(())
        for token in rounds:
            tree.answered(token, self, True)
        self._note_change()

    def _wanted_swap(self, had: list[bytes]) -> None:
        self._want_all(True)
        for pattern in had:
            self.hub.tree.on_above(pattern, False)

    # -- what the hub above says --------------------------------------------------------------------

    def take_control(self, packet: Control) -> None:
        """Act on a control packet from above: for the reading half."""
        payload = packet.payload or b""
        assert self.up is not None
        match packet.key:
            case control.WHOAMI:
                if self._key and not self.has_features:
                    self.up.acknowledged(control.WHOAMI)
                self._key = payload
            case control.FEATURES:
                self._take_features(payload)
            case control.SYNC:
                self._take_sync(*payload.partition(b"\0")[::2])
            case control.INTEREST_ON:
                self.mode = payload.decode("ascii", "replace")
                self._answered = True
            case control.INTEREST_ADD:
                self._announce(payload)
            case control.INTEREST_REMOVE:
                self._take_back(payload)
            case control.INTEREST_COMPLETE:
                self._complete = True
                self._let_through()
            case control.INTEREST_PRUNE:
                if self.mode == "prune":
                    for key in (payload, *self._pruned.add(payload)):
                        self.hub.router.reconsider(key)
            case control.INTEREST_GRAFT:
                if self._pruned.discard(payload):
                    self.hub.router.reconsider(payload)
                    self.hub.tree.on_above(payload, True)
                    self.hub.tree.on_above(payload, False)
            case control.INTEREST_WIDEN:
                self._interest.widen()
                self.hub.tree.wake()
            case control.INTEREST_SYNC:
                self.hub.tree.sync_below(lambda scope, token=payload: self._say_synced(token, scope))  # type: ignore[misc]
            case control.SENDERS_ON | control.SENDERS_OFF:
                self.up.wrap = packet.key == control.SENDERS_ON
            case control.NOTICE_CREDENTIALS:
                self._key = payload
                if self.state == "joined":
                    self._take_key()
            case control.NOTICE_KICKED:
                self._why = payload.decode(errors="replace")
            case control.NOTICE_LOST:
                self._take_lost(payload)
            case _:
                self.hub.ignored += 1
        self._note_change()

    def _take_features(self, payload: bytes) -> None:
        try:
            self._features = control.Features.decode(payload)
        except PacketError as error:
            self.dropped[error.reason] += 1
            return
        self.has_features = True
        self._features_seen += 1
        if self._features_seen == 1:
            return
        try:
            self._check_path(self._features)
        except _LoopError as error:
            self._end_link(str(error))
            self.state = "loop"
            self._apart = True
            self._tell(f"{self._address}: {error}")
            return
        self.hub.tree.set_path(self._features.path)

    def _take_lost(self, payload: bytes) -> None:
        try:
            notice = control.decode_notice(control.NOTICE_LOST, payload)
        except PacketError as error:
            self.dropped[error.reason] += 1
            return
        # Of the other causes, what was lost is ours: messages for this link that the hub above could not queue.
        if isinstance(notice, control.Lost) and notice.cause in control.LINK_CAUSES:
            self.hub.tree.pass_notice(notice, None)
        elif isinstance(notice, control.Lost):
            self._lost_above += notice.count

    def _take_sync(self, token: bytes, scope: bytes) -> None:
        assert self.up is not None
        if token == b"root":
            self._confirmed = True
        elif token in self._rounds:
            self.hub.tree.answered(self._rounds.pop(token), self, scope != b"tree")
        else:
            self.up.acknowledged(token)

    def _say_synced(self, token: bytes, scope: bytes) -> None:
        if self.up is not None and self.state == "joined":
            self.up.say(encode_control(control.INTEREST_SYNC, token + b"\0" + scope))

    def _announce(self, pattern: bytes) -> None:
        if pattern in self._announced:
            return
        narrowed = self._announced[pattern] = narrow(pattern, self._export, self._separator)
        for one in narrowed:
            if self._wanted.add(one, b""):
                self.hub.router.reconsider(one)
                self.hub.tree.on_above(one, True)

    def _take_back(self, pattern: bytes) -> None:
        for one in self._announced.pop(pattern, ()):
            if self._wanted.remove(one, b""):
                self.hub.router.reconsider(one)
                self.hub.tree.on_above(one, False)

    def _want_all(self, everything: bool) -> None:
        """Whether the hub above is taken to want all that may go up."""
        if everything is self._all:
            return
        self._all = everything
        for pattern in self._everything():
            self.hub.tree.on_above(pattern, everything)
        self.hub.router.reconsider_all()

    def _everything(self) -> list[bytes]:
        return [b""] if self._export is None else self._export

    # -- what the hub asks --------------------------------------------------------------------------

    def wants(self, key: bytes, secret: bool) -> bool:
        """Whether a message goes up: what the hub's router asks."""
        if secret:
            namespace = self.hub.router.namespace
            # Before the first prefix is known, nobody can tell whose a secret is: it goes both ways.
            return not (namespace.prefix and key.startswith(namespace.prefix + namespace.start))
        if self._exports is not None and not self._exports.subscribers(key):
            return False
        if self._all:
            return key not in self._pruned
        return bool(self._wanted.subscribers(key))

    def may_come(self, key: bytes) -> bool:
        """Whether a message may come down."""
        if key.startswith(self.hub.router.namespace.start):
            return key.startswith(self._secrets) and bool(self._secrets)
        return self._imports is None or bool(self._imports.subscribers(key))

    def wanted_above(self) -> list[bytes]:
        """The patterns that the hub above is taken to want. Implements :class:`~sbuslib.tree.Above`."""
        return [*(self._everything() if self._all else ()), *self._wanted.patterns(b"")]

    def watch(self, pattern: bytes, wanted: bool) -> None:
        """Somebody here began or ceased to want a pattern. Implements :class:`~sbuslib.tree.Above`."""
        for one in narrow(pattern, self._import, self._separator):
            if wanted:
                self._interest.add(one)
            else:
                self._interest.remove(one)

    def pump(self) -> bool:
        """Subscribe and unsubscribe above, some of what is due. Implements :class:`~sbuslib.tree.Above`."""
        more = self._interest.work(self.hub.limits.interest_steps)
        up = self.up
        if up is None or self.state != "joined":
            return more
        changes = self._interest.take(max(0, up.room))
        up.say(*(encode_subscribe(p) if added else encode_unsubscribe(p) for added, p in changes))
        if self.state != "joined":
            return False
        if self._interest.settled:
            while self._questions:
                token = self._questions.popleft()
                asked = b"r" + token
                if self.has_features:
                    self._rounds[asked] = token
                    up.say(encode_control(control.SYNC, asked + b"\0tree"))
                else:
                    self.hub.tree.answered(token, self, False)
        return not self._interest.settled

    def ask(self, token: bytes) -> bool:
        """Ask the hub above about the rest of the tree. Implements :class:`~sbuslib.tree.Above`."""
        if self.state != "joined":
            return False
        self._questions.append(token)
        return True

    @property
    def stands_apart(self) -> bool:
        """Whether joining would make a loop, so that this hub is the root of its tree."""
        return self._apart

    def tell_senders(self) -> None:
        """Whether senders are wanted here has changed. Implements :class:`~sbuslib.tree.Above`."""
        if self.up is not None and self.state == "joined" and self._features is not None:
            self.up.say(encode_control(control.SENDERS_ON if self.hub.tree.senders else control.SENDERS_OFF))

    def is_sending(self) -> bool:
        """Whether something waits that can be sent. Implements :class:`~sbuslib.tree.Above`."""
        return self.up is not None and self.up.open and bool(self.up.waiting)

    # -- the rest -----------------------------------------------------------------------------------

    def statistics(self) -> RelayStatistics:
        """What this relay did and holds at this instant."""
        up = self.up
        received = self._received + (self._down.received if self._down is not None else 0)
        published = self.hub.statistics().received - self._baseline if self.hub.started else 0
        return RelayStatistics(
            state=self.state,
            upstream=self._address,
            epoch=self.epoch,
            mode=self.mode,
            prefix=self.hub.router.namespace.prefix.decode(errors="replace"),
            path=tuple(hub_id.decode(errors="replace") for hub_id in self.hub.tree.path),
            interest_up=len(self._interest),
            interest_down=len(self._announced),
            pruned=len(self._pruned),
            forwarded=up.forwarded if up is not None else 0,
            suppressed=max(0, published - up.offered) + up.suppressed if up is not None else 0,
            buffered=up.messages if up is not None else 0,
            buffered_bytes=up.bytes if up is not None else 0,
            lost=up.lost if up is not None else 0,
            uncertain=up.uncertain if up is not None else 0,
            received=received,
            lost_above=self._lost_above,
            dropped=dict(self.dropped),
        )

    def __repr__(self) -> str:
        return f"<Relay of {self.hub!r} to {self._address}: {self.state}>"
