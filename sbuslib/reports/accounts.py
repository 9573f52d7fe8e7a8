"""What journals, hubs and links had and lost, as a page: see :mod:`sbuslib.spark.completeness`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..spark.completeness import Account, Ledger, Loss
from .exports import Table
from .html import Column, HtmlPage, Report, human, losses, show

__all__ = ["completeness"]

_COUNTS = ("published", "routed", "delivered", "queued", "recorded", "lost", "unknown")
_ACCOUNTS = {"kind": "string", "name": "string"} | dict.fromkeys(_COUNTS, "int64")
_LOSSES = {"kind": "string", "name": "string", "cause": "string", "lost": "int64", "unknown": "int64"}


def completeness(ledger: Ledger) -> Report:
    """The report, with the tables ``accounts`` and ``losses``. ``lost`` is null where nothing is known of it."""
    tables = {
        "accounts": Table(_ACCOUNTS, [*map(_known, ledger.accounts)]),
        "losses": Table(_LOSSES, [*map(_known, ledger.losses)]),
    }
    return Report(tables, lambda: _page(tables, ledger))


def _known(one: Account | Loss) -> tuple[Any, ...]:
    values = one._asdict()
    if one.unknown and not one.lost:
        values["lost"] = None
    return tuple(values.values())


def _page(tables: dict[str, Table], ledger: Ledger) -> str:
    verdict, accounts = ledger.verdict(), tables["accounts"]
    page = HtmlPage("Completeness", f"{verdict[0].upper()}{verdict[1:]}.")
    page.tile("yes" if ledger.complete else "no", "every message is accounted for", bad=not ledger.complete)
    page.tile(human(accounts.total("recorded")), "recorded")
    figure, _, bad = losses(accounts.total("lost"), accounts.total("unknown"), "")
    page.tile(figure, "lost", bad)

    who: Sequence[Column] = (("kind", "what", "text"), ("name", "name", "text"))
    page.section(
        "Accounts",
        "What each journal, hub and link had. Hubs count from their start on, and links from when they were made. "
        "Unknown: how many times nobody knows how many messages are missing, and how many were on a link that broke.",
        show(accounts, *who, *((name, name, "count") for name in _COUNTS)),
    )
    page.section(
        "Lost",
        "By whom, and why.",
        show(
            tables["losses"],
            *who,
            ("cause", "cause", "text"),
            ("lost", "lost", "count"),
            ("unknown", "unknown", "count"),
        ),
    )
    return page.html()
