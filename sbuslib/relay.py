"""``Relay``: joins a hub, the child, to another one, its parent. Trees of hubs are made of relays.

:class:`Relay` is a greenlet that dials, stays until the link ends, and dials again. The rest is in
:mod:`sbuslib.tree.parent` and :mod:`sbuslib.tree.parent_link`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING

import gevent
import msgspec
from gevent.event import Event
from gevent.timeout import Timeout

from .clients.reconnect import NOBODY_PAUSE_MOST, Backoff
from .core.supervision import Supervisor
from .errors import NoHubError, SbusError, StateError, UsageError
from .kernel.dialer import Dialer
from .limits import ClientLimits, check_seconds
from .statistics import RelayStatistics
from .tree.parent import WAITS, LinkState, Parent
from .tree.parent_link import ParentLink
from .wire.packets import check_key
from .wire.text import plainly

if TYPE_CHECKING:
    from .hub import Hub

__all__ = ["Relay"]


class Relay:
    """Joins ``hub`` to its parent, for as long as it is started.

    ::

        relay = Relay(hub, upstream="/run/master.sock").start()

    **Greenlets:** one, which dials and waits. Messages pass between the hubs in callbacks of the event loop, as between
    clients. One relay a hub, in the hub's thread; it ends with the hub.

    :param upstream: the address of the parent, or several, which are tried in order. It stays with the first that it
        could join until that link ends.
    :param export: patterns that may go up; ``None``: all. Secrets always may.
    :param import_: patterns that may come down, likewise.
    :param upstream_user: name or id of the user that the parent must run as.
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
        self._client_limits = client_limits if client_limits is not None else ClientLimits()  # for dialling
        self._upstream_user = upstream_user
        self._dialers = self._make_dialers(upstream, upstream_user)  # in the order in which they are tried
        self.parent = Parent(hub.tree, self, _patterns("export", export), _patterns("import_", import_))
        """The parent, as this hub knows it."""

        self._link: ParentLink | None = None  # the last one
        self._greenlet: gevent.Greenlet[..., object] | None = None  # dials and waits
        self.service = Supervisor("relay", self.stop)
        """The greenlets, and the error that ended them."""
        self._address = self._dialers[0].address  # that is joined, or was dialled last
        self._moving = False  # from the hub that it has joined to one that is configured now
        self._may_dial = Event()  # not set after :meth:`leave`
        self._may_dial.set()
        self._somebody = False  # whether anybody listened at one of the addresses, in the last round of them

    @property
    def _is_started(self) -> bool:
        return self.parent.state != "stopped"

    @property
    def state(self) -> LinkState:
        """How the link is: one of :data:`~sbuslib.tree.parent.STATES`."""
        return self.parent.state

    @property
    def epoch(self) -> int:
        """How many times it has joined."""
        return self.parent.epoch

    # -- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> Relay:
        """Begin to look for the parent; this relay itself. Returns at once.

        Raises :exc:`~sbuslib.errors.StateError` when the hub is not started or has a relay.
        """
        if self._is_started:
            raise StateError("this relay is started already")
        self.hub.context.check_here()
        self.parent.start()
        self._may_dial.set()
        self.service = Supervisor(f"relay to {self._address}", self.stop)
        self._greenlet = self.service.spawn(self._run)
        return self

    def stop(self) -> None:
        """Leave the parent; the hub is a root again. Stopping one that is not started does nothing.

        Raises :exc:`~sbuslib.errors.StateError` in another thread than the hub's.
        """
        if not self._is_started:
            return
        self.hub.context.check_here()
        if self._greenlet is not None:
            self._greenlet.kill(block=self._greenlet is not gevent.getcurrent())
        if self._link is not None:
            self._link.end("stopped")
        self.parent.on("stop")

    close = stop

    def leave(self, timeout: float) -> bool:
        """Leave the parent in good order, and join none until :meth:`join_again`. Waits.

        Sent messages are acknowledged, and later ones are kept. Returns whether that took at most ``timeout`` seconds:
        else the link is ended, and messages that were not acknowledged are uncertain.
        """
        timeout = check_seconds(timeout, "timeout")
        self._may_dial.clear()
        link = self._link
        if link is None:
            return True
        link.leave("this hub leaves")
        deadline = monotonic() + timeout
        while self.parent.link is link and (left := deadline - monotonic()) > 0:
            self.parent.wait_for_change(left)
        has_left = self.parent.link is not link
        link.end("this hub leaves")
        return has_left

    def join_again(self) -> None:
        """Join a hub again after :meth:`leave`."""
        self._may_dial.set()

    def __enter__(self) -> Relay:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until this relay has joined.

        Raises :exc:`TimeoutError` after ``timeout`` seconds, :exc:`~sbuslib.errors.StateError` when it is not
        started, is stopped meanwhile, or in a forked child, and :exc:`~sbuslib.errors.ServiceError` when an error that
        nobody foresaw has ended it.
        """
        with Timeout(
            check_seconds(timeout, "timeout"), TimeoutError(f"{self._address}: not joined within {timeout} s")
        ):
            while self.state != "joined":
                if not self._is_started:
                    self.service.check()
                    raise StateError(f"{self!r}: start it first")
                self.parent.wait_for_change()

    def _make_dialers(
        self, upstream: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], user: int | str | None
    ) -> list[Dialer]:
        addresses = [upstream] if isinstance(upstream, (str, os.PathLike)) else list(upstream)
        if not addresses:
            raise UsageError("a relay needs the address of a parent")
        return [Dialer(address, user, self._client_limits) for address in addresses]

    def reconfigure(
        self,
        upstream: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        export: Iterable[bytes] | None = None,
        import_: Iterable[bytes] | None = None,
        upstream_user: int | str | None = None,
    ) -> None:
        """From now on relay by these settings, which mean what they mean to the constructor.

        The link stays if its hub is still among the addresses, and the same user and ``import_`` hold. Otherwise this
        hub leaves that hub without losing a message on its way up, and joins one anew.

        Raises :exc:`~sbuslib.errors.UsageError`, before anything has changed, and
        :exc:`~sbuslib.errors.StateError`.
        """
        dialers = self._make_dialers(upstream, upstream_user)
        exports, imports = _patterns("export", export), _patterns("import_", import_)
        if self._is_started:
            self.hub.context.check_here()
        stays = self._upstream_user == upstream_user and self._address in [dialer.address for dialer in dialers]
        stays = stays and self.parent.import_ == imports
        self._dialers, self._upstream_user, self.parent.import_ = dialers, upstream_user, imports
        self.parent.interest.set_export(exports)
        self.parent.tree.propagation.want_any()
        self.parent.tree.presences.look_at_link(self.parent.up)
        if self._is_started and not stays:
            self._moving = True
            if self._link is not None:
                self._link.leave(f"on to {dialers[0].address}")

    def _run(self) -> None:
        limits = self.hub.limits
        backoff = Backoff(limits.link_pause, limits.link_pause_most)
        while self._is_started and self._greenlet is gevent.getcurrent():  # not in the child of a fork
            self._may_dial.wait()
            self._moving = self._somebody = False
            for dialer in self._dialers:
                lasted = self._stay_at(dialer)
                if lasted is not None:
                    if lasted >= limits.link_pause_most:
                        backoff.reset()  # a hub that lets relays join and then ends the link is not joined ever faster
                    break  # the first of the addresses comes first again
                if self._moving:
                    break  # there are other addresses now

            if not self._moving:
                self.parent.on("missed")
                if self._somebody:
                    gevent.sleep(backoff.next())
                else:
                    backoff.reset()  # the next hub that listens there is another one
                    gevent.sleep(min(NOBODY_PAUSE_MOST, limits.link_pause_most))

    def _stay_at(self, dialer: Dialer) -> float | None:
        """Join the hub at one of the addresses, and stay until the link ends.

        Returns for how many seconds this hub was joined, and ``None`` if it has to try the next address.
        """
        try:
            sock = dialer.dial()
        except (OSError, SbusError) as error:
            if isinstance(error, NoHubError):
                self.parent.found_nobody(dialer.address)
            else:
                self._somebody = True
            self.parent.report(f"{dialer.address}: {plainly(error)}")
            return None

        if not self._may_dial.is_set():  # no more
            sock.close()
            return None
        self._address = dialer.address
        self._somebody = True
        self._link = link = ParentLink(self.parent, sock, dialer.address)
        try:
            joined_at = self._stay(link)
        except BaseException:
            link.end("stopped")
            raise
        if self._may_dial.is_set():  # else it left on request
            self.parent.report(f"{dialer.address}: {link.why}")
        return monotonic() - joined_at if joined_at is not None else None

    def _stay(self, link: ParentLink) -> float | None:
        """Wait for the end of a link, and while the parent has to answer, not for long. Returns when this joined."""
        parent = self.parent
        joined_at: float | None = None
        waits, deadline = "", 0.0
        link.begin()
        while parent.link is link:
            if link.is_joined and joined_at is None:
                joined_at = monotonic()

            # It has some time for each of its answers.
            before, waits = waits, WAITS.get(parent.step, "")
            if waits != before:
                deadline = monotonic() + self.hub.limits.link_wait
            if not parent.wait_for_change(max(0.0, deadline - monotonic()) if waits else None):
                link.end(waits)
        return joined_at

    # -- the rest -----------------------------------------------------------------------------------

    def statistics(self) -> RelayStatistics:
        """Return the statistics of this relay at this instant."""
        parent = self.parent
        return RelayStatistics(
            **msgspec.structs.asdict(parent.statistics()),
            path=tuple(hub_id.decode(errors="replace") for hub_id in self.hub.tree.path),
            announced=len(parent.interest),
            waiting_bytes=parent.up.waiting_bytes,
            secrets=parent.secrets,
            lost_by_parent=parent.downstream.total.total(),
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
