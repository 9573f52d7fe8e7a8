"""The other bridges and gateways of the bus, as one bridge knows them. The rules: :mod:`sbuslib.border.neighbours`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final

from ..aio import Client
from ..border.keys import CONTROL, user_of
from ..border.neighbours import (
    ASK,
    TWO_PATHS,
    Counts,
    Doubled,
    Expected,
    Here,
    Members,
    announcement_of,
    decode_here,
    digest,
    encode_here,
)
from ..wire.packets import Message

__all__ = ["Neighbours"]

_EXPECTED: Final = 65_536
_EXPECTED_SECONDS: Final = 10.0
"""What others said they would publish is waited for so long."""
_HEARTBEAT: Final = 1.0
_PLACE: Final = "engine"
"""To what a bridge says that it is connected: the engine of all that are set up alike."""


class Neighbours:
    """Tells them of this bridge, and hears of them.

    :param client: of the bus.
    :param me: the id of this bridge.
    :param group: the same for bridges that are set up alike: they are each other's spares.
    :param tell: what is told of this bridge, in one line and in numbers.
    :param refused: counts what is not heard.
    :param warn: logs what goes wrong.
    """

    def __init__(
        self,
        client: Client,
        me: str,
        group: str,
        separator: bytes,
        tell: Callable[[], tuple[str, Counts]],
        refused: Counter[str],
        warn: Callable[[str], object],
    ) -> None:
        self._warn = warn
        self.leads = True
        """Whether this bridge takes messages out, and not a spare."""
        self._client = client
        self._me = me
        self._group = group
        self._separator = separator
        self._tell = tell
        self._refused = refused
        self._expected = Expected(_EXPECTED, _EXPECTED_SECONDS)
        self._doubled = Doubled()
        self._members = Members(me, group, 3 * _HEARTBEAT)
        self._changed = asyncio.Event()

    @property
    def spares(self) -> int:
        """How many bridges are set up like this one."""
        return self._members.spares

    def has_brought(self, message: Message) -> bool:
        """Whether one of them has brought this message to the bus."""
        return bool(self._expected) and self._expected.take(message.sender, digest(message.key, message.payload))

    def announcement(self, messages: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """What to publish before messages that this bridge brings."""
        if not self._members.others:
            return []
        said = announcement_of(messages)
        self._doubled.bring(said, monotonic())
        return [(CONTROL, said)]

    def hear(self, message: Message) -> None:
        """Take what was said under :data:`~sbuslib.border.keys.CONTROL`."""
        now, said = monotonic(), message.payload
        user = user_of(message.sender, self._client.credentials, self._separator)
        if self._expected.hear(message.sender, said, now, user):
            self._doubled.hear(said, now)
            return
        if said == ASK:
            self._changed.set()
        here = decode_here(said)
        if here is None:
            return
        if here.gateway == self._me or not self._members.has_room_for(here):
            self._refused["forged word or too many gateways"] += 1
            return
        if not here.leaving and self._members.is_new(here.gateway):
            self._changed.set()  # so that the new one hears of this one
        if self._members.hear(here, now):
            self._settle()

    async def say_here(self, leaving: bool = False) -> None:
        """Tell them that this bridge is here."""
        told, counts = self._tell()
        here = Here(
            self._me,
            self._group,
            (_PLACE,),
            leaving,
            told="" if leaving else told,
            counts=counts,
            doubled=self._doubled.is_so,
        )
        if not leaving:  # one that leaves still takes out what the bus has sent to it before
            self._members.hear(here, monotonic())
            self._settle()
        await self._client.publish(CONTROL, encode_here(here))

    def _settle(self) -> None:
        self.leads = self._members.is_ours(_PLACE)

    async def beat(self) -> None:
        """Wait for the next heartbeat. Then tell them, if there are any, and forget those that say nothing."""
        before = monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(_HEARTBEAT):
                await self._changed.wait()
        has_changed = self._changed.is_set()
        self._changed.clear()
        now = monotonic()
        if self._doubled.look():
            self._warn(TWO_PATHS)
        self._expected.expire(now)
        if self._members.expire(before, now):
            self._settle()
        if self._members.others or has_changed:
            await self.say_here()
