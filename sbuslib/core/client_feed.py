"""Feed of one client that watches something: sent in turns of its own user, as fast as it reads."""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from ..reasons import Reason
from .context import Context
from .outbound import Outbound
from .recurring_job import RecurringJob, Steps
from .send_watcher import SEND_RETRY

SENT_A_STEP: Final = 64
"""Packets of one step: some 0.1 ms."""


class ClientFeed(RecurringJob):
    """Sends one client what there is for it, whenever it is woken."""

    def __init__(self, context: Context, client: Outbound) -> None:
        super().__init__(context, client.account.uid)
        self.client = client

    @abstractmethod
    def take(self, most: int) -> tuple[list[bytes], bool]:
        """Take up to so many packets, and whether there are more. It need not find any in one step."""

    def steps(self) -> Steps:
        """Send all that there is, or as much as the client has room for."""
        client, has_more = self.client, True
        try:
            while has_more and not client.closed:
                room = self._room
                if room <= 0:
                    return SEND_RETRY  # when it has read
                packets, has_more = self.take(min(SENT_A_STEP, room))
                if packets:
                    client.answer(*packets)
                yield
        except Exception:
            self._context.running.kick_later(client, Reason.ERROR_IN_THE_HUB)  # its state is unknown
            raise
        return None

    @property
    def _room(self) -> int:
        """How many packets may wait for the client. Half of the room is kept for answers to its questions."""
        return self._context.limits.queued_answers // 2 - self.client.answers
