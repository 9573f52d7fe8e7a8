"""``Relay``: joins a hub, the slave, to the one above it, its master. Trees are made of nothing else.

:class:`Relay` is a greenlet that dials, waits for the end of the link and dials again, and holds what outlives a
link. What is said over one is in :mod:`sbuslib.tree.handshake`, what passes, and what is kept meanwhile, in
:mod:`sbuslib.tree.uplink`, and what the hub above wants in :mod:`sbuslib.tree.demand`.

What goes up: never what came from above, never a secret under the slave's own prefix; else what the hub
above announced that it wants or, where it only prunes, what it did not prune. Until it has said that its interest is
complete, and while it is away, everything is kept. What goes down is what was subscribed to up there.

Each connection is an epoch: the hub above is told everything again, and what it said before is forgotten.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias

import gevent
from gevent.event import Event
from gevent.timeout import Timeout

from .clients.reconnect import Backoff
from .core.service import ServiceGreenlets
from .errors import SbusError, StateError, UsageError
from .kernel.dialer import Dialer
from .limits import ClientLimits
from .statistics import RelayStatistics
from .tree.demand import Demand, index
from .tree.handshake import Conversation, LinkError, LoopError
from .tree.interest import Feed, Interest, narrow
from .tree.uplink import Down, Up
from .wire.packets import Control, check_key

if TYPE_CHECKING:
    from .hub import Hub

__all__ = ["STATES", "Relay"]

logger = logging.getLogger("sbuslib")

State: TypeAlias = Literal["stopped", "connecting", "joining", "joined", "outage", "loop"]
STATES: tuple[State, ...] = ("stopped", "connecting", "joining", "joined", "outage", "loop")
"""Of a link: ``connecting`` before it ever joined, ``outage`` between two epochs, and ``loop`` while the hub above is
below this one."""


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
        self._import = _patterns("import_", import_)
        self._imports = index(self._import, self._separator)
        self.demand = Demand(hub.router, hub.limits, _patterns("export", export), hub.tree.on_above)
        self.interest = Interest(self._separator, hub.limits.link_patterns)
        self._feed = Feed()
        self._greenlet: gevent.Greenlet[..., object] | None = None
        self.service = ServiceGreenlets("relay", self.stop)
        self._changed = Event()
        self._address = self._dialers[0].address
        self.state: State = "stopped"
        self.settled = True
        self.epoch = 0
        self.dropped: Counter[str] = Counter()
        self.up: Up | None = None
        self.lost_above = 0
        self._talk: Conversation | None = None
        self._received = 0
        self._baseline = 0
        self._last_reason = ""
        self._apart = False

    # -- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> Relay:
        """Begin to look for the hub above; this relay itself. Returns at once.

        Raises :exc:`~sbuslib.errors.StateError` when the hub is not started or has a relay.
        """
        if self._greenlet is not None:
            raise StateError("this relay is started already")
        self.hub.check_here()
        # From here on changes of what is wanted come by watch(); what was wanted before is fed in slices.
        self.hub.tree.attach(self)
        self.interest = Interest(self._separator, self.hub.limits.link_patterns)
        self._feed = Feed(patterns for _, patterns in self.hub.router.plain_patterns())
        if self.up is None:
            self.up = Up(self)
        self._baseline = self.hub.statistics().received
        self.state = "connecting"
        self.settled = False
        self.hub.router.set_above(self.up, self.wants)
        self.demand.want_all(True)
        self.hub.tree.wake()
        self.service = ServiceGreenlets(f"relay to {self._address}", self.stop)
        self._greenlet = self.service.spawn(self._run)
        return self

    def stop(self) -> None:
        """Leave the hub above; the hub is a root again. Stopping one that is not started does nothing.

        Raises :exc:`~sbuslib.errors.StateError` in another thread than the hub's.
        """
        if self._greenlet is None:
            return
        self.hub.check_here()
        greenlet, self._greenlet = self._greenlet, None
        greenlet.kill(block=greenlet is not gevent.getcurrent())
        self._end_link("stopped")
        self.state = "stopped"
        self.settled = True
        if self.up is not None:
            self.hub.tree.backlog.note(self.up, False)
        self.hub.router.set_above(None, self.wants)
        self.demand.end()
        self.hub.tree.joined()
        self.hub.tree.detach()
        self.note_change()

    close = stop

    def abandon(self) -> None:
        """In the child of a fork: let go of the connection, and leave the parent's alone."""
        self._greenlet = None  # of which there is a copy here: it finds that it is not wanted
        self.state = "stopped"
        self.settled = True
        self.hub.router.set_above(None, self.wants)
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.end("forked")

    def __enter__(self) -> Relay:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until this relay has joined.

        Raises :exc:`TimeoutError` after ``timeout`` seconds, :exc:`~sbuslib.errors.StateError` when it is not
        started, is stopped meanwhile, or in a forked child, and :exc:`~sbuslib.errors.ServiceError` when an error that
        nobody foresaw has ended it.
        """
        with Timeout(timeout, TimeoutError(f"{self._address}: not joined within {timeout} s")):
            while self.state != "joined":
                if self._greenlet is None:
                    self.service.check()
                    raise StateError(f"{self!r}: start it first")
                self.wait_for_change()

    def wait_for_change(self) -> None:
        """Wait until something has changed: for this greenlet and others."""
        changed = self._changed
        changed.wait()

    def note_change(self) -> None:
        """Something has changed."""
        changed, self._changed = self._changed, Event()
        changed.set()

    # -- the link -----------------------------------------------------------------------------------

    def _run(self) -> None:
        limits = self.hub.limits
        backoff = Backoff(limits.link_pause, limits.link_pause_most)
        while self._greenlet is gevent.getcurrent():  # not in the child of a fork
            for dialer in self._dialers:
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

    def _stay(self, sock: socket.SocketType) -> bool:
        """Join over a connection, and stay until it ends; whether it came to joining."""
        assert self.up is not None
        self.state = "joining"
        self.settled = False
        talk = self._talk = Conversation(self, self.up, sock)
        joined = False
        try:
            talk.join()
            joined = True
            self._joined(talk)
            while not talk.ended:
                self.wait_for_change()
        except LoopError as error:
            self.stand_apart(error)
        except (LinkError, TimeoutError) as error:
            self._end_link(str(error))
            self._tell(f"{self._address}: {error}")
        except BaseException:
            self._end_link("stopped")
            raise
        if self.state not in ("loop", "stopped"):
            self.state = "outage" if self.epoch else "connecting"
        if joined:
            self._tell(f"{self._address}: the link ended: {talk.why}")
        return joined

    def _joined(self, talk: Conversation) -> None:
        self.epoch += 1
        self.state = "joined"
        self._apart = False
        self.settled = True
        self.interest.restart()
        talk.begin()
        self.hub.tree.joined()
        self.hub.tree.wake()
        self.note_change()

    def _tell(self, reason: str) -> None:
        """Log what keeps this hub apart, unless it was the last thing logged."""
        if reason != self._last_reason:
            self._last_reason = reason
            logger.warning("sbus hub at %s: relay to %s", self.hub.address, reason)

    def stand_apart(self, error: LoopError) -> None:
        """The hub above is below this one: end the link."""
        self._end_link(str(error))
        self.state = "loop"
        self._apart = True
        self._tell(f"{self._address}: {error}")

    def link_ended(self, down: Down, why: str) -> None:
        """The connection ended: for the reading half."""
        if self._talk is not None and down is self._talk.down:
            self._end_link(why)

    def _end_link(self, why: str) -> None:
        talk, self._talk = self._talk, None
        if talk is None:
            return
        tree = self.hub.tree
        was_joined = talk.joined
        self._received += talk.down.received
        talk.end(why)
        self.demand.begin_anew()  # and what comes is kept
        if was_joined:
            self.state = "outage"
        self.settled = True
        tree.set_path(())
        for token in talk.unanswered():
            tree.answered(token, self, True)
        tree.wake()
        self.note_change()

    def take_control(self, packet: Control) -> None:
        """Act on a control packet from above: for the reading half."""
        if self._talk is not None:
            self._talk.take_control(packet)

    @property
    def has_features(self) -> bool:
        """Whether the hub above knows more than the plain protocol: for the sending half."""
        return self._talk is not None and self._talk.has_features

    def tell_losses(self) -> None:
        """Tell what was lost on its way up, if anybody can be told now: for the sending half."""
        if self._talk is not None:
            self._talk.tell_losses()

    # -- what the hub asks --------------------------------------------------------------------------

    def wants(self, key: bytes, secret: bool) -> bool:
        """Whether a message goes up: what the hub's router asks."""
        if secret:
            namespace = self.hub.router.namespace
            # Before the first prefix is known, nobody can tell whose a secret is: it goes both ways.
            return not (namespace.prefix and key.startswith(namespace.prefix + namespace.start))
        return self.demand.wants(key)

    def may_come(self, key: bytes) -> bool:
        """Whether a message may come down."""
        if key.startswith(self.hub.router.namespace.start):
            return self._talk is not None and self._talk.is_ours(key)
        return self._imports is None or bool(self._imports.subscribers(key))

    def wanted_above(self) -> list[bytes]:
        """The patterns that the hub above is taken to want. Implements :class:`~sbuslib.tree.tree.Above`."""
        return self.demand.patterns()

    @property
    def is_feeding(self) -> bool:
        """Whether some of what was wanted here before this relay was started is still to be told."""
        return bool(self._feed)

    def watch(self, pattern: bytes, wanted: bool) -> None:
        """Somebody here began or ceased to want a pattern. Implements :class:`~sbuslib.tree.tree.Above`."""
        for one in narrow(pattern, self._import, self._separator):
            if wanted:
                self.interest.add(one)
            else:
                self.interest.remove(one)

    def pump(self, steps: int) -> bool:
        """Subscribe and unsubscribe above, some of what is due. Implements :class:`~sbuslib.tree.tree.Above`."""
        for pattern in self._feed.take(steps):
            self.watch(pattern, True)
        more = self.interest.work(steps)
        more = self.demand.work(steps) or more or self.is_feeding
        if self._talk is not None and self._talk.joined:
            more = self._talk.tell() or more
        return more

    def ask(self, token: bytes) -> bool:
        """Ask the hub above about the rest of the tree. Implements :class:`~sbuslib.tree.tree.Above`."""
        return self._talk is not None and self._talk.ask(token)

    @property
    def stands_apart(self) -> bool:
        """Whether joining would make a loop, so that this hub is the root of its tree."""
        return self._apart

    def is_sending(self) -> bool:
        """Whether something waits that can be sent. Implements :class:`~sbuslib.tree.tree.Above`."""
        return self.up is not None and self.up.open and bool(self.up.waiting)

    # -- the rest -----------------------------------------------------------------------------------

    def statistics(self) -> RelayStatistics:
        """What this relay did and holds at this instant."""
        up, talk = self.up, self._talk
        received = self._received + (talk.down.received if talk is not None else 0)
        published = self.hub.statistics().received - self._baseline if self.hub.started else 0
        return RelayStatistics(
            state=self.state,
            upstream=self._address,
            epoch=self.epoch,
            mode=talk.mode if talk is not None else "plain",
            prefix=self.hub.router.namespace.prefix.decode(errors="replace"),
            path=tuple(hub_id.decode(errors="replace") for hub_id in self.hub.tree.path),
            interest_up=len(self.interest),
            interest_down=len(self.demand),
            pruned=len(self.demand.pruned),
            forwarded=up.forwarded if up is not None else 0,
            suppressed=max(0, published - up.offered) + up.suppressed if up is not None else 0,
            buffered=up.messages if up is not None else 0,
            buffered_bytes=up.bytes if up is not None else 0,
            lost=up.lost if up is not None else 0,
            uncertain=up.uncertain if up is not None else 0,
            received=received,
            lost_above=self.lost_above,
            dropped=dict(self.dropped),
        )

    def __repr__(self) -> str:
        return f"<Relay of {self.hub!r} to {self._address}: {self.state}>"


def _patterns(name: str, patterns: Iterable[bytes] | None) -> list[bytes] | None:
    """The checked list of patterns of an argument."""
    if patterns is None:
        return None
    if isinstance(patterns, (str, bytes)):
        raise UsageError(f"{name} is a list of patterns, not {patterns!r}")
    found = list(patterns)
    for pattern in found:
        check_key(pattern, "pattern")
    return found
