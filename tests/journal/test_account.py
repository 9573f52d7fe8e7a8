"""What journals, hubs and links had and lost, and whether every message is accounted for."""

from __future__ import annotations

from pathlib import Path

import msgspec
from lake.journals import START_NS, rows, segment
from support import HubThread

from sbuslib.blocking import Client
from sbuslib.journal.account import Account, Ledger, Loss
from sbuslib.statistics import LinkStatistics
from sbuslib.survey import SeenHub, SeenLink, survey


def test_every_message_of_a_whole_journal_is_accounted_for(tmp_path: Path) -> None:
    segment(tmp_path / "journal", 1, rows(20), (START_NS, "overflow", 7), rows(5), (START_NS, "overflow", 2))
    ledger = Ledger()
    ledger.add_journal(tmp_path / "journal")
    assert ledger.accounts == [Account("journal", str(tmp_path / "journal"), recorded=25, lost=9)]
    assert ledger.losses == [Loss("journal", str(tmp_path / "journal"), "overflow", 9, 0)]
    assert ledger.verdict() == "every message is accounted for: 25 recorded, 9 lost by known causes"


def test_gaps_of_unknown_size_and_damage_are_told(tmp_path: Path) -> None:
    segment(tmp_path / "journal", 1, rows(20), (START_NS, "outage", -1), rows(5))
    path = segment(tmp_path / "journal", 27, rows(4), rows(3))
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    ledger = Ledger()
    ledger.add_journal(tmp_path / "journal")
    (account,) = ledger.accounts
    assert (account.recorded, account.lost, account.unknown) == (28, 4, 1)
    assert [loss[2:] for loss in ledger.losses] == [("damaged", 4, 0), ("outage", 0, 1)]
    assert ledger.verdict() == (
        "not every message is accounted for: 28 recorded, 4 lost by known causes, and nobody knows how many by outage"
    )


def test_a_hub_is_asked(folder: str) -> None:
    with HubThread(f"{folder}/bus"), Client(f"{folder}/bus") as client:
        client.subscribe(b"a")
        for _ in range(3):
            client.publish(b"a", b"")
        client.sync()
        ledger = Ledger()
        ledger.add_tree(survey(f"{folder}/bus"))
    (account,) = ledger.accounts
    assert (account.kind, account.published, account.routed) == ("hub", 3, 3)
    assert ledger.complete


def test_links_and_hubs_that_could_not_be_asked_are_told(folder: str) -> None:
    with HubThread(f"{folder}/bus"):
        alone = survey(f"{folder}/bus")
    link = LinkStatistics(
        direction="below",
        number=1,
        uid=0,
        pid=1,
        credentials="",
        hub="low",
        address="",
        state="joined",
        epoch=1,
        mode="announce",
        patterns=0,
        pruned=0,
        received=9,
        delivered=4,
        queued=0,
        lost={"outage": 2},
        uncertain=3,
        lag=0,
        carries=None,
    )
    statistics = msgspec.structs.replace(alone.statistics, hub_id="high", lost={"overflow": 1})
    ledger = Ledger()
    ledger.add_tree(SeenHub(statistics=statistics, above=None, below=(SeenLink(link=link, hub=None, why="gone"),)))
    assert [(one.kind, one.name, one.lost, one.unknown) for one in ledger.accounts] == [
        ("hub", "high", 1, 0),
        ("link", "high \N{RIGHTWARDS ARROW} low below", 2, 3),
        ("hub", "low", 0, 1),
    ]
    assert [(loss.kind, loss.cause, loss.lost, loss.unknown) for loss in ledger.losses] == [
        ("hub", "overflow", 1, 0),
        ("link", "outage", 2, 0),
        ("link", "uncertain", 0, 3),
        ("hub", "not asked: gone", 0, 1),
    ]
    assert ledger.verdict().endswith("nobody knows how many by uncertain, not asked: gone")
