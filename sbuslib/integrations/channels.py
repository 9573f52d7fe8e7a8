"""A channel layer for Django Channels: consumers in several processes send to each other, and to groups.

::

    CHANNEL_LAYERS = {"default": {"BACKEND": "sbuslib.integrations.channels.SbusChannelLayer"}}

The channels that a process makes have its name before a ``!``, and are in its memory (:mod:`.channels_memory`): so are
its groups. Messages between processes are in :mod:`.channels_process`. Ordinary channels, from which any process may
receive, are shared queues (:mod:`.channels_queues`). Source: Django Channels' specification of channel layers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from secrets import token_hex
from threading import Lock
from typing import Any

import msgspec
from channels.exceptions import ChannelFull, MessageTooLarge
from channels.layers import BaseChannelLayer

from ..connecting import parse_url
from ..keys.own_keys import ASGI
from .channels_memory import LayerSettings, LocalChannels
from .channels_process import MOST_BYTES, Process
from .channels_queues import Readers

__all__ = ["SbusChannelLayer"]


class SbusChannelLayer(BaseChannelLayer):  # type: ignore[misc]  # Channels has no types
    """A channel layer on a bus. Any event loop, and any thread through ``async_to_sync``, may use it.

    :param url: ``sbus:///path/of/socket``, see :class:`~sbuslib.connecting.BusUrl`; ``sbus://`` looks where clients
        look without an address.
    :param prefix: how its keys and queues begin; layers of several applications on one bus have their own.
    :param expiry: seconds that a message is kept.
    :param group_expiry: seconds that a channel stays in a group.
    :param capacity: messages that a channel keeps.
    :param channel_capacity: the same of channels by pattern.
    :param users: names or ids of users whose messages are taken, besides the own user and root. The kernel proves the
        user of a message.

    While the hub is away, calls that need it wait for the ``timeout`` of the URL, and then raise :exc:`TimeoutError`.
    """

    extensions = ["groups", "flush"]  # noqa: RUF012  # as its base class has it

    def __init__(
        self,
        url: str = "sbus://",
        prefix: str = ASGI,
        expiry: float = 60,
        capacity: int = 100,
        channel_capacity: Mapping[Any, int] | None = None,
        group_expiry: float = 86_400,
        *,
        users: Iterable[int | str] = (),
    ) -> None:
        super().__init__(expiry=expiry, capacity=capacity)
        self.channel_capacity = self.compile_capacities(channel_capacity or {})  # as its base class has it
        self.group_expiry = group_expiry
        bus = parse_url(url)
        #: Settings that its parts share.
        self._settings = LayerSettings(bus, prefix, expiry, group_expiry, bus.user_ids(users), self.get_capacity)
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Begin with no channels. The child of a fork has a connection and channels of its own."""
        self.client_prefix = token_hex(12)
        """The name of this process, in those of its channels."""
        self._channels = LocalChannels(self._settings)
        self._readers = Readers(self._settings)  # of ordinary channels
        self._opening = Lock()  # held while the process connects
        self._opened: Process | None = None  # once the layer is used

    async def _process(self) -> Process:
        """Return this process's part of the bus. It connects when it is first used."""
        opened = self._opened
        return await asyncio.to_thread(self._open) if opened is None else opened

    def _open(self) -> Process:
        with self._opening:
            if self._opened is None:
                self._opened = Process(self._settings, self.client_prefix, self._channels)
            return self._opened

    def serialize(self, message: Any) -> bytes:
        """Return the bytes of a message: MessagePack."""
        return msgspec.msgpack.encode(message)

    def deserialize(self, message: bytes) -> Any:
        """Return the message of some bytes."""
        return msgspec.msgpack.decode(message)

    def _encode(self, message: Any) -> bytes:
        encoded = self.serialize(message)
        if len(encoded) > MOST_BYTES:
            raise MessageTooLarge(f"a message has at most {MOST_BYTES:,} bytes, not {len(encoded):,}")
        return encoded

    # -- channels -----------------------------------------------------------------------------------

    async def new_channel(self, prefix: str = "specific") -> str:
        """Return the name of a new channel of this process."""
        await self._process()  # others may send to it from now on
        return f"{prefix.rstrip('.')}.{self.client_prefix}!{token_hex(8)}"

    async def send(self, channel: str, message: Any) -> None:
        """Send a message to a channel.

        Raises :exc:`channels.exceptions.ChannelFull` where that has no room,
        :exc:`channels.exceptions.MessageTooLarge`, and :exc:`~sbuslib.errors.NoServerError` for an ordinary channel
        without a service of queues. After :exc:`TimeoutError` the message may be there.
        """
        self.require_valid_channel_name(channel)
        process, encoded, owner = await self._process(), self._encode(message), _owner_of(channel)
        if owner is None:
            has_room = await process.run(process.queues.submit, channel, encoded)
        elif owner == self.client_prefix:
            has_room = self._channels.put(channel, encoded)
        else:
            has_room = await process.send_to(owner, channel, encoded)
        if not has_room:
            raise ChannelFull(channel)

    async def receive(self, channel: str) -> Any:
        """Receive the next message of an ordinary channel, or of one of this process. Of several tasks one gets it."""
        self.require_valid_channel_name(channel)
        if (owner := _owner_of(channel)) is None:
            return self.deserialize(await self._readers.receive(channel))
        assert owner == self.client_prefix, f"{channel} is a channel of another process"

        while True:
            await self._process()  # without it, others could not send here
            taken = self._channels.take(channel)
            if isinstance(taken, bytes):
                return self.deserialize(taken)
            try:
                await taken
            finally:
                self._channels.give_up(channel, taken)

    # -- groups -------------------------------------------------------------------------------------

    async def group_add(self, group: str, channel: str) -> None:
        """Put a channel into a group. An ordinary one is in it for this process, and as long as that lives."""
        self.require_valid_group_name(group)
        self.require_valid_channel_name(channel)
        process, owner = await self._process(), _owner_of(channel)
        if owner is not None and owner != self.client_prefix:
            await process.change_group_at(owner, "add", group, channel)
            return
        try:
            await asyncio.shield(asyncio.wrap_future(process.join(group, channel)))
        except Exception:
            process.leave(group, channel)
            raise

    async def group_discard(self, group: str, channel: str) -> None:
        """Take a channel out of a group."""
        self.require_valid_group_name(group)
        self.require_valid_channel_name(channel)
        process, owner = await self._process(), _owner_of(channel)
        if owner is not None and owner != self.client_prefix:
            await process.change_group_at(owner, "discard", group, channel)
        else:
            process.leave(group, channel)

    async def group_send(self, group: str, message: Any) -> None:
        """Send a message to all channels of a group that have room. After an error, no channel has it."""
        self.require_valid_group_name(group)
        process = await self._process()
        await process.send_to_group(group, self._encode(message))

    # -- the end ------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Forget all channels and groups of this process, and the messages in ordinary channels; and disconnect.

        The layer can be used again after it.
        """
        process, self._opened = await self._process(), None
        self._readers.close(asyncio.get_running_loop())
        self._channels.clear()
        try:
            await process.run(process.queues.purge)
        finally:
            await asyncio.to_thread(process.close)

    async def close_pools(self) -> None:
        """Do nothing: all event loops share the connection. Applications call it of ``channels_redis``."""


def _owner_of(channel: str) -> str | None:
    """Return the process that owns the channel; *None* for an ordinary one."""
    before, mark, _ = channel.partition("!")
    return before.rpartition(".")[2] if mark else None
