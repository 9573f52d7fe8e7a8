"""Which of the messages that were sent to the hub above it has passed on.

The hub above is asked now and then. Its answer *acknowledges* all that was sent before the question. What was sent and
not acknowledged when the connection breaks is *uncertain*: the hub above may have passed it on, or not.
"""

from __future__ import annotations

from collections import deque
from time import monotonic

from ..wire import control
from ..wire.packets import encode_control

__all__ = ["Acknowledgements"]


class Acknowledgements:
    """The questions that are open, and how many messages each is about: all that were sent until it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        """Messages about which the hub above was asked."""
        self.acknowledged = 0
        """Messages that it acknowledged."""
        self._open: deque[tuple[bytes, int, float]] = deque()  # each with when it was asked
        self._tokens = 0

    def __len__(self) -> int:
        """How many questions are open."""
        return len(self._open)

    @property
    def lag(self) -> float:
        """For how many seconds the oldest question has been open; 0 if none is."""
        return monotonic() - self._open[0][2] if self._open else 0.0

    def ask(self, sent: int, has_features: bool) -> bytes:
        """A question about the ``sent`` messages, as a packet for the hub above.

        A hub without features is asked ``whoami``, which it answers in order.
        """
        if has_features:
            self._tokens += 1
            token = b"a%x" % self._tokens
            packet = encode_control(control.SYNC, token + b"\0passed")
        else:
            token, packet = control.WHOAMI, encode_control(control.WHOAMI)
        self._open.append((token, sent, monotonic()))
        self.asked = sent
        return packet

    def answered(self, token: bytes) -> None:
        """The hub above answered a question, and with it all that were asked before."""
        if all(token != asked for asked, _, _ in self._open):
            return
        asked = b""
        while asked != token:
            asked, self.acknowledged, _ = self._open.popleft()

    def end(self, sent: int) -> int:
        """The connection has ended: how many of the ``sent`` messages are uncertain. These are never sent again."""
        uncertain = sent - self.acknowledged
        self._open.clear()
        self.asked = self.acknowledged = sent
        return uncertain
