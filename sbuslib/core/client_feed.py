"""Feed of one client that watches something: sent in turns of its own user, as fast as it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

from ..reasons import Reason
from .context import Context
from .outbound import Outbound
from .send_watcher import SEND_RETRY

SENT_A_STEP: Final = 64
"""Packets of one step: some 0.1 ms."""


class ClientFeed:
    """Sends one client what there is for it, whenever it is woken.

    :param take: returns up to so many packets, and whether there are more. It need not find any in one step.
    """

    def __init__(self, context: Context, client: Outbound, take: Callable[[int], tuple[list[bytes], bool]]) -> None:
        self._context = context
        self._client = client
        self._take = take
        self._is_awake = False  # whether it has a turn, or waits for one
        self._has_more = False  # whether there may be something to send
        self._rests_until = 0.0  # by the monotonic clock

    def wake(self) -> None:
        """There may be something. It rests for as long as it took the last time: so many changes are sent at once."""
        self._has_more = True  # even where it has just taken the last: other jobs of its user come in between
        if self._is_awake or self._client.closed:
            return
        self._is_awake = True
        rest = self._rests_until - monotonic()
        if rest > 0:
            self._context.running.after(rest, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        self._context.running.work.add(self._client.account.uid, self._steps(), self._on_end)

    def _steps(self) -> Iterator[None]:
        client, began = self._client, monotonic()
        try:
            while self._has_more and not client.closed and (room := self._room) > 0:
                packets, self._has_more = self._take(min(SENT_A_STEP, room))
                if packets:
                    client.answer(*packets)
                yield
        except BaseException:
            self._has_more = False
            self._context.running.kick_later(client, Reason.ERROR_IN_THE_HUB)  # its state is unknown
            raise
        now = monotonic()
        self._rests_until = now + min(now - began, SEND_RETRY)

    @property
    def _room(self) -> int:
        """How many packets may wait for the client. Half of the room is kept for answers to its questions."""
        return self._context.limits.queued_answers // 2 - self._client.answers

    def _on_end(self) -> None:
        self._is_awake = False
        if self._has_more and not self._client.closed and self._context.is_serving:
            self._context.running.after(SEND_RETRY, self.wake)  # when it has read
