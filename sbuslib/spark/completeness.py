"""A ledger: what journals, hubs and links say of how many messages they had, and of those that they lost.

A journal knows what it recorded and what its recorder missed, by cause. A hub counts what was published and routed, and
what became of it; a link likewise. This reads the journals and asks the hubs; it needs no Spark.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ..segments.directory import read_journal
from ..segments.layout import GAP, Skipped
from ..statistics import LinkStatistics
from ..survey import SeenHub
from ..wire.text import escape

__all__ = ["Account", "Ledger", "Loss"]

DAMAGED = "damaged"
"""The cause of rows that were in a journal and cannot be read."""

NOT_ASKED = "not asked: "
"""The start of the cause of what a hub may have lost that could not be asked."""


class Account(NamedTuple):
    """What one journal, hub or link had: ``None`` for what it does not count.

    Of a journal, ``unknown`` is how many times messages are missing whose number nobody knows; of a link, how many
    messages were on their way when it broke; of a hub, 1 if it could not be asked.
    """

    kind: str
    name: str
    published: int | None = None
    routed: int | None = None
    delivered: int | None = None
    queued: int | None = None
    recorded: int | None = None
    lost: int = 0
    unknown: int = 0


class Loss(NamedTuple):
    """Messages that were lost: by whom, why, how many, and how many times nobody knows how many."""

    kind: str
    name: str
    cause: str
    lost: int
    unknown: int


class Ledger:
    """Accounts, and the losses in them."""

    def __init__(self) -> None:
        self.accounts: list[Account] = []
        self.losses: list[Loss] = []

    def add_journal(self, directory: str | os.PathLike[str]) -> None:
        """Read a journal. Raises :exc:`~sbuslib.errors.JournalError` and :exc:`OSError`."""
        recorded, lost, unknown = 0, Counter[str](), Counter[str]()
        for piece in read_journal(directory, on_corrupt="skip"):
            if isinstance(piece.block, Skipped):
                rows = piece.block.rows
                lost[DAMAGED] += rows or 0
                unknown[DAMAGED] += rows is None
            elif piece.block.kind == GAP:
                for row in piece.block.records():
                    lost[row.cause or ""] += row.lost or 0
                    unknown[row.cause or ""] += row.lost is None
            else:
                recorded += piece.block.rows
        self._add(Account("journal", os.fspath(directory), recorded=recorded), lost, unknown)

    def add_tree(self, hub: SeenHub) -> None:
        """Take over what a hub and those below it told."""
        told = hub.statistics
        counts = (told.received, told.routed, told.delivered, told.queued)
        self._add(Account("hub", told.hub_id, *counts), told.lost)
        if hub.above is not None:
            self._add_link(told.hub_id, hub.above)
        for below in hub.below:
            self._add_link(told.hub_id, below.link)
            if below.hub is not None:
                self.add_tree(below.hub)
            else:
                name = below.link.hub or below.link.address or "below"
                self._add(Account("hub", name), {}, {NOT_ASKED + below.why: 1})

    def _add_link(self, hub: str, link: LinkStatistics) -> None:
        name = f"{hub} \N{RIGHTWARDS ARROW} {link.hub or 'a hub'} {link.direction}"
        account = Account("link", name, link.received, None, link.delivered, link.queued)
        self._add(account, link.lost, {"uncertain": link.uncertain})

    def _add(self, account: Account, lost: Mapping[str, int], unknown: Mapping[str, int] | None = None) -> None:
        unknown = unknown or {}
        self.accounts.append(account._replace(lost=sum(lost.values()), unknown=sum(unknown.values())))
        for cause in sorted({*lost, *unknown}):
            missing = lost.get(cause, 0), unknown.get(cause, 0)
            if any(missing):
                self.losses.append(Loss(account.kind, account.name, cause, *missing))

    @property
    def complete(self) -> bool:
        """Whether each message that is missing was counted by somebody."""
        return not any(account.unknown for account in self.accounts)

    def verdict(self) -> str:
        """Whether every message is accounted for, in one line."""
        recorded, lost = (sum(getattr(one, name) or 0 for one in self.accounts) for name in ("recorded", "lost"))
        if self.complete:
            return f"every message is accounted for: {recorded:,} recorded, {lost:,} lost by known causes"
        causes = dict.fromkeys("".join(map(escape, loss.cause)) for loss in self.losses if loss.unknown)
        return (
            f"not every message is accounted for: {recorded:,} recorded, {lost:,} lost by known causes, "
            f"and nobody knows how many by {', '.join(_first(causes))}"
        )


def _first(causes: Iterable[str], most: int = 5) -> Iterator[str]:
    for number, cause in enumerate(causes):
        if number == most:
            yield "others"
            return
        yield cause
