"""In-memory channels of one process, and their groups, for the Django Channels layer in :mod:`.channels`. No bus here.

Any thread may call all of this, and tasks of any event loop receive. Each method is atomic, and none waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import TypeAlias

import msgspec

from ..connecting import BusUrl

logger = logging.getLogger("sbuslib.integrations")

Receiver: TypeAlias = "asyncio.Future[None]"
"""The future of a task that waits for a message; when it is done, the task looks again."""


class LayerSettings(msgspec.Struct, frozen=True):
    """Settings of a layer: see :class:`.channels.SbusChannelLayer`."""

    url: BusUrl
    prefix: str
    expiry: float
    group_expiry: float
    users: frozenset[int]
    capacity_of: Callable[[str], int]

    def key(self, *segments: str) -> str:
        """A key of the layer."""
        return "/".join((self.prefix, *segments))

    def queue(self, channel: str) -> str:
        """Return the queue in which messages for an ordinary channel wait."""
        return f"{self.prefix}-{channel}"


class _Channel:
    """Messages that wait, and tasks that wait for them."""

    __slots__ = ("groups", "has_expired", "messages", "receivers", "used")

    def __init__(self, now: float) -> None:
        self.messages: deque[tuple[float, bytes]] = deque()  # each behind the time when it expires, oldest first
        self.receivers: set[Receiver] = set()  # tasks that wait
        self.groups: set[str] = set()  # that it is in
        self.used = now  # when a task last looked for a message
        self.has_expired = False  # whether a message has expired since the last one that was received

    def drop_expired(self, now: float) -> None:
        """Forget messages that were not received in time."""
        while self.messages and self.messages[0][0] <= now:
            self.messages.popleft()
            self.has_expired = True


class LocalChannels:
    """All channels of a process.

    A channel exists from its first message, receiver or group on. If nobody has received from it for twice the expiry,
    and a message has expired since, its consumer has ended: it leaves its groups. Source: the section on persistence in
    Django Channels' specification of channel layers.
    """

    def __init__(self, settings: LayerSettings) -> None:
        self._settings = settings
        self._lock = Lock()  # for all that follows
        self._channels: dict[str, _Channel] = {}
        self._groups: dict[str, dict[str, float]] = {}  # by group its channels, each with the time when it leaves
        self._ended: set[str] = set()  # groups whose last channel has left, until somebody takes them
        self._swept = monotonic()  # when all channels were last looked through

    # -- messages -----------------------------------------------------------------------------------

    def put(self, name: str, message: bytes) -> bool:
        """Put a message into a channel. Returns whether there was room."""
        with self._lock:
            woken = self._put(name, message, self._look())
        _wake(woken or ())
        return woken is not None

    def put_into_group(self, group: str, message: bytes) -> list[str]:
        """Put a message into all channels of a group that have room.

        Returns the group's ordinary channels, which are shared queues and not in this memory: the caller sends to them.
        """
        with self._lock:
            now = self._look()
            members = [name for name, until in self._groups.get(group, {}).items() if until > now]
            woken = [self._put(name, message, now) for name in members if "!" in name]
        if full := woken.count(None):
            logger.info("%d of %d channels over capacity in group %s", full, len(members), group)
        _wake({receiver for each in woken if each for receiver in each})
        return [name for name in members if "!" not in name]

    def _put(self, name: str, message: bytes, now: float) -> set[Receiver] | None:
        """Put a message in; return the tasks to wake, *None* without room."""
        channel = self._channel(name, now)
        channel.drop_expired(now)
        if len(channel.messages) >= self._settings.capacity_of(name):
            return None
        channel.messages.append((now + self._settings.expiry, message))
        woken, channel.receivers = channel.receivers, set()
        return woken

    def take(self, name: str) -> bytes | Receiver:
        """Take the oldest message of a channel; or return the future that the calling task awaits before it looks
        again.
        """
        with self._lock:
            now = self._look()
            channel = self._channel(name, now)
            channel.used = now
            channel.drop_expired(now)
            if channel.messages:
                channel.has_expired = False
                return channel.messages.popleft()[1]
            receiver = asyncio.get_running_loop().create_future()
            channel.receivers.add(receiver)
            return receiver

    def give_up(self, name: str, receiver: Receiver) -> None:
        """End a task's wait for a channel."""
        with self._lock:
            if (channel := self._channels.get(name)) is not None:
                channel.receivers.discard(receiver)

    def clear(self) -> None:
        """Forget all messages and groups. Tasks that wait look again."""
        with self._lock:
            woken = {receiver for channel in self._channels.values() for receiver in channel.receivers}
            self._channels.clear()
            self._groups.clear()
        _wake(woken)

    # -- groups -------------------------------------------------------------------------------------

    def join(self, group: str, name: str) -> None:
        """Put a channel into a group, or let it stay for another ``group_expiry``."""
        with self._lock:
            now = self._look()
            self._channel(name, now).groups.add(group)
            self._groups.setdefault(group, {})[name] = now + self._settings.group_expiry

    def leave(self, group: str, name: str) -> None:
        """Take a channel out of a group, if it is in it."""
        with self._lock:
            self._leave(group, name)

    def take_ended(self) -> set[str]:
        """Return the groups whose last channel has left since the last call."""
        with self._lock:
            self._look()
            ended, self._ended = self._ended, set()
            return ended

    def has_group(self, group: str) -> bool:
        """Return whether any channel is in a group."""
        with self._lock:
            return group in self._groups

    def _leave(self, group: str, name: str) -> None:
        if (channel := self._channels.get(name)) is not None:
            channel.groups.discard(group)
        members = self._groups.get(group, {})
        members.pop(name, None)
        if not members and self._groups.pop(group, None) is not None:
            self._ended.add(group)

    # -- expiry -------------------------------------------------------------------------------------

    def _channel(self, name: str, now: float) -> _Channel:
        if (channel := self._channels.get(name)) is None:
            channel = self._channels[name] = _Channel(now)
        return channel

    def _look(self) -> float:
        """Return the time; once in an ``expiry``, forget all that is over by then."""
        now = monotonic()
        if now >= self._swept + self._settings.expiry:
            self._swept = now
            self._sweep(now)
        return now

    def _sweep(self, now: float) -> None:
        # 1. Channels that were put into a group too long ago leave it.
        for group, members in list(self._groups.items()):
            for name in [name for name, until in members.items() if until <= now]:
                self._leave(group, name)

        # 2. So do those from which nobody receives any more. Empty channels and groups are forgotten.
        for name, channel in list(self._channels.items()):
            channel.drop_expired(now)
            if channel.receivers or channel.used + 2 * self._settings.expiry > now:
                continue
            if channel.has_expired:
                for group in list(channel.groups):
                    self._leave(group, name)
            if not (channel.messages or channel.groups):
                del self._channels[name]


def _wake(receivers: Iterable[Receiver]) -> None:
    """Wake tasks of any event loops, each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Receiver]] = {}
    for receiver in receivers:
        by_loop.setdefault(receiver.get_loop(), []).append(receiver)
    for loop, some in by_loop.items():
        with suppress(RuntimeError):  # it is closed, and its tasks with it
            loop.call_soon_threadsafe(_set_all, some)


def _set_all(receivers: Iterable[Receiver]) -> None:
    for receiver in receivers:
        if not receiver.done():
            receiver.set_result(None)
