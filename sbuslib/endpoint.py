"""What the gevent and the blocking client share: everything but how to wait.

Several greenlets or threads may use one client at once. One of those that wait reads for all: it takes
the *lead*, sorts what comes into the session, and passes the lead on when it has what it wanted. Nobody
reads while nobody waits, so a client that does not receive leaves its packets in the kernel, where the
hub can see that they pile up.
"""

from __future__ import annotations

import os
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from itertools import islice
from time import monotonic
from types import TracebackType
from typing import Protocol, TypeVar

import msgspec

from . import control
from .backoff import Backoff
from .dialer import BROKEN, NO_MEMORY, Dialer
from .errors import DisconnectedError, PayloadError, PeerError, StateError, UsageError
from .limits import PACKET_BYTES, ClientLimits
from .matcher import Subscriptions
from .outbox import HARD, ORDER, SOFT, Hard, Order, Soft
from .packets import Control, Message, check_key, encode_message, message_header, parse
from .seqpacket import Gather, PlainArea, make_area
from .session import Session
from .statistics import HubStatistics

__all__ = ["Endpoint", "PreparedMessage", "WaitableCondition"]

Self = TypeVar("Self", bound="Endpoint")
Callback = Callable[[Message], object]


class WaitableCondition(AbstractContextManager[object], Protocol):
    """What is needed of :class:`threading.Condition`, and of gevent's stand-in for it."""

    def wait(self, timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class PreparedMessage:
    """A packet whose payload is still to be written: fill :attr:`payload`, then :meth:`send`.

    ``payload`` is a writable view of as many bytes as still fit the packet. May be sent many times.
    """

    def __init__(self, endpoint: Endpoint, key: bytes) -> None:
        header = message_header(key)
        if len(header) > PACKET_BYTES:
            raise PayloadError(f"a key of {len(key):,} bytes leaves no room in a packet of {PACKET_BYTES:,}")
        self._endpoint = endpoint
        self._start = len(header)
        self._packet = memoryview(bytearray(PACKET_BYTES))
        self._packet[: self._start] = header
        self.payload = self._packet[self._start :]

    def send(self, size: int, flags: int = 0) -> None:
        """Publish the first ``size`` bytes of :attr:`payload`. Raises as :meth:`Endpoint.publish` does."""
        if not 0 <= size <= len(self.payload):
            raise PayloadError(f"a payload of {size:,} bytes: there is room for {len(self.payload):,}")
        self._endpoint._send(self._packet[: self._start + size], flags)


class Endpoint(ABC):
    """A client of a hub. See :class:`sbuslib.Client` and :class:`sbuslib.blocking.Client`.

    :param address: where the hub listens; without one, ``SBUS_ADDRESS``, ``$XDG_RUNTIME_DIR/sbus/bus`` and
        ``/run/sbus.socket`` are tried.
    :param timeout: seconds that connecting, sending and questions to the hub may take; ``None``: for ever.
    :param reconnect: when the hub goes away, look for it until it is back, and subscribe again.
    :param hub_user: name or id of the user that the hub must run as.
    :param on_reconnect: called with this client after each reconnection; may use it.
    :param on_error: called with the exception and the message when a callback fails; without it, the
        exception leaves :meth:`run`.

    :param on_notice: called with what the hub notices about this client (a
        :class:`~sbuslib.control.Lost`, :class:`~sbuslib.control.Kicked` or
        :class:`~sbuslib.control.NewCredentials`), whenever the client waits for something.

    Raises :exc:`~sbuslib.errors.NoHubError`, :exc:`~sbuslib.errors.AddressError`,
    :exc:`~sbuslib.errors.HubIdentityError` and :exc:`TimeoutError`.
    """

    def __init__(
        self,
        address: str | os.PathLike[str] | None = None,
        *,
        timeout: float | None = 10.0,
        reconnect: bool = False,
        hub_user: int | str | None = None,
        on_reconnect: Callable[[Endpoint], object] | None = None,
        on_error: Callable[[Exception, Message], object] | None = None,
        on_notice: Callable[[control.Notice], object] | None = None,
        limits: ClientLimits | None = None,
    ) -> None:
        self.timeout = timeout
        self.limits = limits if limits is not None else ClientLimits()
        self.epoch = 0
        """Which connection this is: 1 for the first, one more after each reconnection."""
        self._dialer = Dialer(address, hub_user, self.limits)
        self._reconnect = reconnect
        self._on_reconnect = on_reconnect
        self._on_error = on_error
        self._on_notice = on_notice
        self._session = Session()
        self._callbacks: Subscriptions[Callback] = Subscriptions()
        self._area: PlainArea | None = None
        self._gather = Gather()
        self._leading = False
        self._ended = False
        self._closed = False
        self._turn = self._make_condition()
        self._gather_lock = self._make_lock()
        self._socket = self._connect(self._deadline(timeout))
        try:
            self._begin(self._deadline(timeout))
            if on_notice is not None:
                self.notices()
        except BaseException:
            self._release_socket()
            raise

    # -- how to wait: the difference between the clients ---------------------------------------------

    @abstractmethod
    def _make_condition(self) -> WaitableCondition: ...

    @abstractmethod
    def _make_lock(self) -> AbstractContextManager[object]: ...

    @abstractmethod
    def _wait(self, sock: socket.SocketType, events: int, timeout: float | None) -> bool:
        """Wait for ``select.POLLIN`` or ``select.POLLOUT``; ``False`` after ``timeout`` seconds."""

    @abstractmethod
    def _sleep(self, seconds: float) -> None: ...

    # -- connecting ---------------------------------------------------------------------------------

    @staticmethod
    def _deadline(timeout: float | None) -> float | None:
        return None if timeout is None else monotonic() + timeout

    @staticmethod
    def _left(deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - monotonic())

    def _connect(self, deadline: float | None) -> socket.SocketType:
        """A connection, for which a full backlog is waited out."""
        backoff = Backoff(self.limits.connect_pause, self.limits.connect_pause_most)
        while True:
            try:
                return self._dialer.dial()
            except BlockingIOError as error:
                left = self._left(deadline)
                if left == 0:
                    raise TimeoutError(error.strerror) from None
                self._sleep(min(backoff.next(), left if left is not None else self.limits.connect_pause_most))

    def _begin(self, deadline: float | None) -> None:
        """Learn who we are and what the hub offers, and restore what an earlier connection held."""
        session = self._session
        old = session.credentials
        self._send_all(session.hello(), deadline)
        while not session.knows_itself():
            if self._read(deadline):
                raise self._disconnected()
        self._send_all(session.restore(old), deadline)
        self.epoch += 1

    def _connect_again(self, deadline: float | None) -> None:
        """Reconnect, trying until the deadline, with decorrelated jitter between attempts."""
        self._release_socket()
        backoff = Backoff(self.limits.reconnect_pause, self.limits.reconnect_pause_most)
        while True:
            try:
                self._socket = self._connect(self._deadline(self.timeout))
                self._begin(self._deadline(self.timeout))
                return
            except (OSError, TimeoutError):
                self._release_socket()
                if self._closed:
                    raise DisconnectedError("the client was closed") from None
                left = self._left(deadline)
                if left == 0:
                    raise TimeoutError(f"{self.address}: the hub is away") from None
            pause = backoff.next()
            self._sleep(pause if left is None else min(pause, left))

    def _release_socket(self) -> None:
        """The socket is about to be closed: let go of whatever waits on it."""
        self._socket.close()

    # -- reading ------------------------------------------------------------------------------------

    def _read(self, deadline: float | None) -> bool:
        """Wait for packets and sort them into the session; ``True`` when the connection ended."""
        if self._area is None:
            self._area = make_area(self.limits.batch)
        while True:
            lengths = self._receive(self._area)
            if lengths:
                return self._session.take(self._area.data, self._area.offsets, lengths)
            if not self._wait(self._socket, select.POLLIN, self._left(deadline)):
                raise TimeoutError(f"{self.address}: nothing came in time")

    def _receive(self, area: PlainArea) -> list[int]:
        try:
            return area.receive(self._socket)
        except OSError as error:
            if error.errno in BROKEN:
                return [0]
            raise

    def _lead(self, ready: Callable[[], bool], deadline: float | None, what: str) -> bool:
        """Wait until ``ready()`` holds or the lead is ours; ``True`` for the lead, to be given back."""
        with self._turn:
            while not ready():
                if self._ended:
                    raise self._disconnected()
                if not self._leading:
                    self._leading = True
                    return True
                if not self._turn.wait(self._left(deadline)):
                    raise TimeoutError(what)
            return False

    def _disconnected(self) -> DisconnectedError:
        if self._closed:
            return DisconnectedError("the client is closed")
        why = f" ({self._session.kicked})" if self._session.kicked is not None else ""
        return DisconnectedError(f"{self.address}: the hub closed the connection{why}")

    def _give_lead_back(self) -> None:
        with self._turn:
            self._leading = False
            if self._closed:
                self._ended = True
                self._release_socket()
            self._turn.notify_all()

    def _until(self, ready: Callable[[], bool], deadline: float | None, what: str) -> None:
        """Read, or let another read, until ``ready()`` holds."""
        while self._lead(ready, deadline, what):
            again = False
            try:
                if self._read(deadline):
                    if self._reconnect and not self._closed:
                        self._connect_again(deadline)
                        again = True
                    else:
                        self._ended = True
            except TimeoutError:
                raise TimeoutError(what) from None
            except PeerError:
                self._ended = True
                raise
            finally:
                self._give_lead_back()
            if again and self._on_reconnect is not None:
                self._on_reconnect(self)
            self._tell_notices()

    def _tell_notices(self) -> None:
        notices = self._session.notices
        while notices:
            notice = notices.popleft()
            if self._on_notice is not None:
                self._on_notice(notice)

    # -- sending ------------------------------------------------------------------------------------

    def _send(self, packet: bytes | memoryview, flags: int = 0) -> None:
        """Send one packet, waiting for room. Raises as :meth:`publish` does."""
        flags |= socket.MSG_NOSIGNAL
        deadline: float | None = None
        started = False
        while True:
            epoch = self.epoch
            try:
                self._socket.send(packet, flags)
                return
            except BlockingIOError:
                if flags & socket.MSG_DONTWAIT:
                    raise
                if not started:
                    deadline, started = self._deadline(self.timeout), True
                if not self._wait(self._socket, select.POLLOUT, self._left(deadline)):
                    raise TimeoutError(f"{self.address}: the hub takes no more for now") from None
            except OSError as error:
                if error.errno in NO_MEMORY:
                    self._sleep(self.limits.connect_pause_most)
                    continue
                self._broken(error, epoch)

    def _broken(self, error: OSError, epoch: int) -> None:
        """A send failed: return once a new connection stands, or raise."""
        if error.errno not in BROKEN:
            raise error
        if self._closed or not self._reconnect:
            raise self._disconnected() from error
        self._until(lambda: self.epoch > epoch, self._deadline(self.timeout), f"{self.address}: the hub is away")

    def _send_all(self, packets: list[bytes], deadline: float | None) -> None:
        """Send packets on the connection at hand, without reconnecting."""
        done = 0
        while done < len(packets):
            try:
                with self._gather_lock:
                    done += self._gather.send(self._socket, packets[done:])
            except OSError as error:
                if error.errno in BROKEN:
                    raise self._disconnected() from error
                raise
            if done < len(packets) and not self._wait(self._socket, select.POLLOUT, self._left(deadline)):
                raise TimeoutError(f"{self.address}: the hub takes no more for now")

    def _say(self, packets: list[bytes]) -> None:
        """Send packets that the session remembers: after a break, :meth:`Session.restore` says them."""
        epoch = self.epoch
        try:
            self._send_all(packets, self._deadline(self.timeout))
        except DisconnectedError as error:
            if self._closed or not self._reconnect:
                raise
            cause = error.__cause__
            assert isinstance(cause, OSError)
            self._broken(cause, epoch)

    def publish(self, key: bytes, payload: bytes = b"", *, flags: int = 0) -> None:
        """Publish one message; waits while the hub has no room for it.

        ``flags`` are those of send(2). Raises :exc:`~sbuslib.errors.KeyFormatError`,
        :exc:`~sbuslib.errors.PayloadError`, :exc:`~sbuslib.errors.DisconnectedError`, :exc:`TimeoutError`,
        and :exc:`BlockingIOError` with ``MSG_DONTWAIT``.
        """
        self._send(encode_message(key, payload), flags)

    def publish_many(self, messages: Iterable[tuple[bytes, bytes]]) -> int:
        """Publish pairs of key and payload in order, many with each system call; how many there were.

        Raises as :meth:`publish`; what came before the pair at fault was published.
        """
        count = 0
        pairs = iter(messages)
        while True:
            packets: list[bytes] = []
            try:
                for key, payload in islice(pairs, self.limits.batch):
                    packets.append(encode_message(key, payload))
            finally:
                self._send_in_order(packets)
            count += len(packets)
            if len(packets) < self.limits.batch:
                return count

    def _send_in_order(self, packets: list[bytes]) -> None:
        while packets:
            epoch = self.epoch
            try:
                with self._gather_lock:
                    sent = self._gather.send(self._socket, packets)
            except OSError as error:
                self._broken(error, epoch)
                continue
            packets = packets[sent:]
            if packets:
                self._send(packets[0])  # waits for room
                packets = packets[1:]

    def prepare_message(self, key: bytes) -> PreparedMessage:
        """A packet under ``key`` to write a payload straight into."""
        return PreparedMessage(self, key)

    # -- subscribing --------------------------------------------------------------------------------

    def subscribe(self, *patterns: bytes, callback: Callback | None = None) -> None:
        """Subscribe, and return once the hub has it in force: what is published from then on comes.

        With ``callback``, :meth:`run` hands the matching messages to it. Raises
        :exc:`~sbuslib.errors.KeyFormatError`, :exc:`TimeoutError` and
        :exc:`~sbuslib.errors.DisconnectedError`: a hub closes the connection of a client that asks for what
        is not its own.
        """
        if not patterns:
            raise UsageError("subscribe to at least one pattern; b'' is everything")
        for pattern in patterns:
            check_key(pattern, "pattern")
        if callback is not None:
            for pattern in patterns:
                self._callbacks.add(pattern, callback)
        self._say(self._session.subscribe(patterns))
        self.sync()

    def unsubscribe(self, *patterns: bytes) -> None:
        """Take one subscription to each pattern back. Callbacks for it are forgotten with its last one."""
        self._say(self._session.unsubscribe(patterns))
        for pattern in patterns:
            if not self._session.held[pattern]:
                for callback in self._callbacks.holders(pattern):
                    while self._callbacks.remove(pattern, callback) is False:
                        pass

    def sync(self, scope: str = "local") -> str:
        """Wait until all that this client said is in force; how far: ``local``, ``tree`` or ``partial``.

        Raises :exc:`TimeoutError` and :exc:`~sbuslib.errors.DisconnectedError`.
        """
        if scope not in ("local", "tree"):
            raise UsageError(f"a scope is 'local' or 'tree', not {scope!r}")
        deadline = self._deadline(self.timeout)
        what = f"{self.address}: the hub did not answer in time"
        if not self._session.can(control.SYNC):
            self._ask_whoami(deadline, what)
            return "local"
        epoch = self.epoch
        token, packet = self._session.sync(scope.encode())
        try:
            self._say([packet])
            # A new connection has restored everything, so that answers as well.
            self._until(lambda: self._session.scope_of(token) is not None or self.epoch > epoch, deadline, what)
            return (self._session.scope_of(token) or b"local").decode()
        finally:
            self._session.forget_sync(token)

    def _ask_whoami(self, deadline: float | None, what: str) -> None:
        epoch = self.epoch
        ticket, packet = self._session.whoami()
        self._say([packet])
        self._until(lambda: self._session.knows_itself(ticket) or self.epoch > epoch, deadline, what)

    def whoami(self) -> bytes:
        """Ask the hub for this client's credential key, ``!/cred/<gid>/<uid>/<pid>``."""
        self._ask_whoami(self._deadline(self.timeout), f"{self.address}: the hub did not answer in time")
        return self._session.credentials

    @property
    def address(self) -> str:
        """The address of the hub."""
        return self._dialer.address

    @property
    def credentials(self) -> bytes:
        """The credential key that the hub told last."""
        return self._session.credentials

    @property
    def features(self) -> control.Features | None:
        """What the hub offers; ``None`` for one that knows no features, such as the C daemon."""
        return self._session.features

    def echo(self, on: bool = True) -> None:
        """Whether messages of our own that match our own patterns come back. They do by default."""
        self._choose(b"echo", control.ECHO_ON if on else control.ECHO_OFF)

    def senders(self, on: bool = True) -> None:
        """Whether messages carry who sent them, as the hub vouches.

        Raises :exc:`~sbuslib.errors.StateError` when the hub cannot tell.
        """
        self._require(control.SENDERS_ON, "tell senders")
        self._choose(b"senders", control.SENDERS_ON if on else control.SENDERS_OFF)

    def notices(self, on: bool = True) -> None:
        """Whether the hub tells of messages lost for us (counted in :attr:`lost`) and why it lets us go.

        Raises :exc:`~sbuslib.errors.StateError` when the hub cannot.
        """
        self._require(control.NOTICES_ON, "give notices")
        self._choose(b"notices", control.NOTICES_ON if on else control.NOTICES_OFF)

    @property
    def lost(self) -> dict[str, int]:
        """Messages for this client that the hub lost, by cause, as far as :meth:`notices` told."""
        return dict(self._session.lost)

    def flood_control(self, *, soft: Soft | None = None, hard: Hard | None = None, order: Order | None = None) -> None:
        """Choose what the hub does with messages that this client does not read in time.

        ``soft`` while its queue has room: ``"queue"`` (the default), ``"discard"``, ``"block"`` or ``"error"``;
        ``hard`` when it is full: ``"discard"`` (the default), ``"block"`` or ``"error"``; ``order`` of what waits:
        ``"queue"`` (the default), ``"stack"`` or ``"random"``. See ``docs/flood-control.md``. ``None`` leaves a choice as it is.
        Raises :exc:`~sbuslib.errors.UsageError`.
        """
        choices: list[tuple[str, str | None, tuple[str, ...], bytes]] = [
            ("soft", soft, SOFT, control.SOFT),
            ("hard", hard, HARD, control.HARD),
            ("order", order, ORDER, control.ORDER),
        ]
        for name, choice, known, _ in choices:
            if choice is not None and choice not in known:
                raise UsageError(f"{name} is one of {', '.join(known)}, not {choice!r}")
        for _, choice, _, key in choices:
            if choice is not None:
                self._choose(key, key + choice.encode())

    def _choose(self, kind: bytes, key: bytes) -> None:
        self._say(self._session.choose(kind, key))

    def _require(self, feature: bytes, what: str) -> None:
        if not self._session.can(feature):
            raise StateError(f"{self.address}: this hub cannot {what}")

    def statistics(self) -> HubStatistics:
        """The hub's statistics.

        Raises :exc:`~sbuslib.errors.StateError` when the hub has none or does not trust this user with them,
        :exc:`TimeoutError` and :exc:`~sbuslib.errors.DisconnectedError`.
        """
        self._require(control.STATISTICS, "give statistics")
        self._say(self._session.ask_statistics())
        self._until(
            lambda: self._session.statistics is not None,
            self._deadline(self.timeout),
            f"{self.address}: the hub did not answer in time",
        )
        if not self._session.statistics:
            raise StateError(f"{self.address}: the hub gives its statistics to trusted users only")
        return msgspec.json.decode(self._session.statistics, type=HubStatistics)

    # -- receiving ----------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None, *, flags: int = 0) -> Message:
        """The next message.

        ``flags`` are those of recv(2), and concern one packet: ``MSG_PEEK`` leaves it where it is. Raises
        :exc:`TimeoutError` after ``timeout`` seconds, :exc:`BlockingIOError` with ``MSG_DONTWAIT``, and
        :exc:`~sbuslib.errors.DisconnectedError`.
        """
        inbox = self._session.inbox
        if flags:
            return self._receive_flagged(timeout, flags)
        self._until(lambda: bool(inbox), self._deadline(timeout), f"no message within {timeout} s")
        return inbox.popleft()

    def _receive_flagged(self, timeout: float | None, flags: int) -> Message:
        inbox = self._session.inbox
        deadline = self._deadline(timeout)
        what = f"no message within {timeout} s"
        while self._lead(lambda: bool(inbox), deadline, what):
            try:
                if self._area is None:
                    self._area = make_area(self.limits.batch)
                with memoryview(self._area.data) as view:
                    room = view[: self._area.slot_bytes]
                    try:
                        size = self._area.receive_one(self._socket, room, flags)
                    except BlockingIOError:
                        if flags & socket.MSG_DONTWAIT:
                            raise
                        if not self._wait(self._socket, select.POLLIN, self._left(deadline)):
                            raise TimeoutError(what) from None
                        continue
                    finally:
                        room.release()
                if flags & socket.MSG_PEEK and size:
                    packet = parse(self._area.packet(0, min(size, self._area.slot_bytes)))
                    if not isinstance(packet, Control):
                        assert isinstance(packet, Message)
                        return packet
                    size = self._area.receive(self._socket, 1)[0]  # an answer, not what was asked for
                if self._session.take(self._area.data, self._area.offsets, [min(size, self._area.slot_bytes)]):
                    self._ended = True
            finally:
                self._give_lead_back()
        return inbox[0] if flags & socket.MSG_PEEK else inbox.popleft()

    def receive_many(self, most: int | None = None, timeout: float | None = None) -> list[Message]:
        """At least one message, and all others that are here, up to ``most``. Raises as :meth:`receive`."""
        inbox = self._session.inbox
        self._until(lambda: bool(inbox), self._deadline(timeout), f"no message within {timeout} s")
        count = len(inbox) if most is None else min(most, len(inbox))
        return [inbox.popleft() for _ in range(count)]

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until :meth:`close`. Leaving the loop loses nothing.

        Raises :exc:`~sbuslib.errors.DisconnectedError` when the hub closes the connection.
        """
        inbox = self._session.inbox
        take = inbox.popleft
        while True:
            try:
                self._until(lambda: bool(inbox), None, "")
            except DisconnectedError:
                if self._closed:
                    return
                raise
            while inbox:
                yield take()

    def run(self, timeout: float | None = None) -> None:
        """Hand messages to the callbacks of their patterns until :meth:`close`, or for ``timeout`` seconds.

        Messages that no callback wants are dropped.
        """
        deadline = self._deadline(timeout)
        inbox = self._session.inbox
        while True:
            try:
                self._until(lambda: bool(inbox), deadline, "")
            except TimeoutError:
                return
            except DisconnectedError:
                if self._closed:
                    return
                raise
            while inbox:
                message = inbox.popleft()
                for callback in self._callbacks.subscribers(message.key):
                    try:
                        callback(message)
                    except Exception as error:
                        if self._on_error is None:
                            raise
                        self._on_error(error, message)

    # -- the rest -----------------------------------------------------------------------------------

    @property
    def socket(self) -> socket.SocketType:
        """The connection's socket, non-blocking, to set options on; a reconnection makes another."""
        return self._socket

    def fileno(self) -> int:
        """The descriptor, for select and its kin. Empty the client first: it may hold messages already."""
        return self._socket.fileno()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def close(self) -> None:
        """Close the connection. What was published before is still delivered."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes whoever leads, who then closes
            if not self._leading:
                self._ended = True
                self._release_socket()
            self._turn.notify_all()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} of {self.address}>"
