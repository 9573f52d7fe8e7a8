"""Packets in a row, each with the user that sent it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import TypeAlias

__all__ = ["PacketRow", "SentPacket"]

SentPacket: TypeAlias = tuple[bytes, int | None]
"""A packet, and the user that it is charged to; ``None`` for an answer, which is charged to nobody."""


class PacketRow:
    """A queue of packets that can be taken from both ends.

    The users stand beside the packets, once for each run of packets of one user. A tuple for each packet would take a
    third more memory. The garbage collector would visit each tuple too, which costs more than all else that is done
    with a packet that waits.
    """

    __slots__ = ("_packets", "_runs")

    def __init__(self) -> None:
        self._packets: deque[bytes] = deque()
        self._runs: deque[tuple[int | None, int]] = deque()

    def __len__(self) -> int:
        return len(self._packets)

    def __iter__(self) -> Iterator[SentPacket]:
        return zip(self._packets, chain.from_iterable(repeat(*run) for run in self._runs), strict=True)

    def extend(self, packets: Sequence[bytes], sender: int | None) -> None:
        self._packets.extend(packets)
        runs, count = self._runs, len(packets)
        if runs and runs[-1][0] == sender:
            count += runs.pop()[1]
        runs.append((sender, count))

    def append(self, item: SentPacket) -> None:
        self.extend(item[:1], item[1])

    def appendleft(self, item: SentPacket) -> None:
        packet, sender = item
        self._packets.appendleft(packet)
        runs, count = self._runs, 1
        if runs and runs[0][0] == sender:
            count += runs.popleft()[1]
        runs.appendleft((sender, count))

    def take(self, count: int, newest: bool) -> list[SentPacket]:
        """Take up to ``count`` packets from the beginning; or, with ``newest``, from the end, the last one first."""
        count = min(count, len(self))
        pop = self._packets.pop if newest else self._packets.popleft
        packets = [pop() for _ in range(count)]
        taken: list[SentPacket] = []
        while count:
            sender, run = self._runs.pop() if newest else self._runs.popleft()
            if run > count:
                (self._runs.append if newest else self._runs.appendleft)((sender, run - count))
                run = count
            start = len(taken)
            taken += zip(packets[start : start + run], repeat(sender))
            count -= run
        return taken

    def clear(self) -> None:
        self._packets.clear()
        self._runs.clear()
