"""Rules rehearsed on what was recorded."""

from __future__ import annotations

from typing import Any

import pytest
from reports.rows import START_NS, gap, in_memory, message

from sbuslib.keys.policy import Policy, Rule
from sbuslib.reports.proposal import allowing
from sbuslib.reports.rehearsal import MissingMessages, PolicyTrial, flows, rehearse
from sbuslib.secrets import OVERFLOW_ID

ANN, BOB, RELAY = 1000, 1001, 50
NAMES = {ANN: b"ann", BOB: b"bob", RELAY: b"relay"}
RULES = [
    Rule(users=frozenset({ANN}), publish=(b"log/", b"old/"), label="new.toml:1"),
    Rule(everybody=True, publish=(b"t/%u/", b"late/"), subscribe=(b"",), label="new.toml:5"),
]


def trial(rules: list[Rule] = RULES, users: set[int] | None = None) -> PolicyTrial:
    return PolicyTrial(Policy(rules, lambda uid: (NAMES.get(uid, b""), frozenset()), b"/"), users, b"/")


def sent_by(*way: int) -> dict[str, Any]:
    """The columns of a message over links of these users; the last one is its publisher, and answers for it."""
    chain = "/".join(f"!/cred/100/{uid}/{uid + 1}" for uid in way)
    return {"sender": chain.encode(), "gid": 100, "uid": way[-1], "pid": way[-1] + 1}


def test_what_would_be_refused_is_told_by_user_and_key_with_counts_and_times() -> None:
    others = sent_by(ANN) | {"sender": b"!/cred/100/1000/9", "pid": 9}
    rows = [
        message(b"log/1", **sent_by(ANN)),
        message(b"log/1", at=1, **sent_by(BOB)),
        message(b"secret", at=3, **sent_by(ANN)),
        message(b"secret", at=2, **others),
        message(b"secret", at=5, **others),
        message(b"t/bob/x", at=4, **sent_by(ANN)),
        message(b"t/ann/x", at=4, **sent_by(ANN)),
    ]
    with in_memory(rows) as recorded:
        whole = trial()
        result = rehearse(recorded, whole, b"/")
    assert [(one.uid, one.key, one.messages, one.processes) for one in result.refusals] == [
        (ANN, b"secret", 3, {9, 1001}),
        (ANN, b"t/bob/x", 1, {1001}),
        (BOB, b"log/1", 1, {1002}),
    ]
    first = result.refusals[0]
    assert (first.first_ns - START_NS, first.last_ns - START_NS) == (2 * 10**9, 5 * 10**9)
    assert [one.why for one in result.refusals] == ["not by new.toml:1, new.toml:5"] * 2 + ["not by new.toml:5"]
    assert (result.messages, result.users, result.keys, result.refused) == (7, 2, 4, 5)
    assert [(rule.label, one) for rule, _, one in whole.unmatched("publish")] == [
        ("new.toml:1", b"old/"),
        ("new.toml:5", b"late/"),
    ]


def test_who_may_not_connect_and_whom_no_rule_names_is_refused_for_that() -> None:
    with in_memory([message(b"late/x", **sent_by(BOB)), message(b"log/x", **sent_by(ANN))]) as recorded:
        alone = rehearse(recorded, trial(users={ANN}), b"/")
        unnamed = rehearse(recorded, trial(RULES[:1]), b"/")
    assert [(one.uid, one.why) for one in alone.refusals] == [(BOB, "may not connect, unless it is the hub's own user")]
    assert [(one.uid, one.why) for one in unnamed.refusals] == [(BOB, "no rule lets this user publish")]


def test_without_rules_nothing_is_refused() -> None:
    with in_memory([message(b"x", **sent_by(BOB))]) as recorded:
        assert rehearse(recorded, PolicyTrial(None, None, b"/"), b"/").refusals == []


@pytest.mark.parametrize(
    "columns",
    [
        {"sender": None, "gid": None, "uid": None, "pid": None},
        {"sender": b"", "gid": None, "uid": None, "pid": None},
        {"uid": None},  # it came from above
        {"sender": b"no credentials"},
        {"sender": b"!/cred/100/1/1"},  # of another process
        {"sender": b"!/cred/100/%d/1001" % OVERFLOW_ID, "gid": 100, "uid": OVERFLOW_ID},
        {"sender": b"!/cred/100/4294967295/1001", "uid": 4294967295},
        {"uid": 2**62},
    ],
)
def test_a_sender_that_nobody_knows_is_neither_allowed_nor_refused(columns: dict[str, Any]) -> None:
    row = message(b"secret", **sent_by(ANN) | columns)
    with in_memory([row, row]) as recorded:
        result = rehearse(recorded, trial(), b"/")
        assert (result.messages, result.unknown, result.refusals, result.users) == (2, 2, [], 0)
        assert allowing(flows(recorded, b"/"), b"/") == {}


def test_a_message_over_links_is_judged_only_where_all_users_on_its_way_get_the_same_answer() -> None:
    """The hub asks about the user of its own link, and a journal does not say which of them that is."""
    both = sent_by(RELAY, ANN)
    rows = [message(key, **both) for key in (b"late/x", b"secret", b"log/x", b"t/relay/x")]
    with in_memory([*rows, message(b"log/x", **sent_by(ANN, BOB) | {"uid": ANN, "pid": 1001})]) as recorded:
        result = rehearse(recorded, trial(), b"/")
        assert [one.key for one in result.refusals] == [b"secret"]
        assert result.unsure == 2
        assert allowing(flows(recorded, b"/"), b"/")[RELAY] == [b"late/x", b"log/x", b"secret", b"t/relay/x"]


def test_gaps_and_reserved_keys_are_told_apart() -> None:
    event = gap(0, 'hub {"kind":"serves","time":1.0}')
    lost = [gap(3, "overflow"), gap(4, "overflow"), gap(None, "damaged"), gap(None, "cut", at=None), event]
    secret = message(b"!/cred/1/2/3/x", **sent_by(BOB))
    with in_memory([*lost, secret, message(b"a/!/b", **sent_by(BOB))]) as recorded:
        result = rehearse(recorded, trial(), b"/")
        assert allowing(flows(recorded, b"/"), b"/") == {}
    assert result.lost == [
        MissingMessages("cut", 0, 1),
        MissingMessages("damaged", 0, 1),
        MissingMessages("overflow", 7, 0),
    ]
    assert (result.messages, result.reserved, result.refusals) == (2, 2, [])
