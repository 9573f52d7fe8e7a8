"""Rules that are made of a journal."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbuslib.cli.config import HubSettings, read_settings
from sbuslib.matcher import matches
from sbuslib.reports.proposal import SEGMENTS, WRITTEN, allowing, narrowest, rules_text
from sbuslib.reports.rehearsal import PolicyTrial, flows, rehearse
from sbuslib.secrets import OVERFLOW_ID

ANN, BOB, RELAY = 1000, 1001, 50


# -- Rules that are made of it

ROOMS = [b"room/%d/temp" % number for number in range(WRITTEN)]


@pytest.mark.parametrize(
    ("keys", "patterns"),
    [
        (ROOMS, sorted(ROOMS)),
        ([*ROOMS, b"room/x/temp"], [b"room/*/temp"]),
        ([*ROOMS, b"room/x/door", b"log"], [b"log", b"room/*/door", b"room/*/temp"]),
        ([*ROOMS, b"room/**x/temp"], [b"room/***/temp"]),
        ([b"a/%d" % number for number in range(WRITTEN + 1)], [b"a/*"]),
        ([*(b"a/%d" % number for number in range(WRITTEN)), b"a/*x", b"a/**"], [b"a/*", b"a/**"]),
        ([b"a/", b"a/b", b"a/b/c", b"ab"], [b"a/", b"ab"]),
        ([b"", b"a"], [b""]),
        ([b"a//b", b"/"], [b"/", b"a//b"]),
        ([b"caf\xe9/x", b"x/caf\xe9", b"\xff\xfe/x"], [b"*/x", b"caf*/x", b"x/caf*"]),
        ([b"a" * 200 + b"/x"], [b"a" * 128 + b"*/x"]),
        ([b"/".join([b"s"] * 50)], [b"/".join([b"s"] * SEGMENTS) + b"/"]),
        ([b"/" * 400_000], [b"/" * SEGMENTS]),
    ],
)
def test_the_narrowest_patterns_that_can_be_read(keys: list[bytes], patterns: list[bytes]) -> None:
    assert narrowest(keys, b"/") == patterns
    assert all(any(matches(pattern, key) for pattern in patterns) for key in keys)


@dataclass
class Listed:
    """Messages as DuckDB counts them."""

    rows: list[tuple[Any, ...]]
    engine: str = "none"

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return self.rows if "sender" in sql else []


HOSTILE = [b"*", b"**", b"a*", b"a*b", b"", b"!", b"%u", b"%%", b"\xff", b"caf\xc3", b'"', b"\\", b"\x1b[2J", b"\x7f"]
segment = st.one_of(
    st.integers(0, 40).map(lambda number: b"%d" % number),
    st.sampled_from([*HOSTILE, "\u202e".encode()]),
    st.sampled_from([b"x" * 127 + b"\xc3\xa9", b"x" * 128 + b"***", b"x" * 127 + b"****y"]),
    st.binary(max_size=4).map(lambda some: some.replace(b"\0", b"").replace(b"/", b"").replace(b".", b"")),
)
ways = st.lists(st.sampled_from([0, 1, 2, ANN, OVERFLOW_ID, 2**32 - 2, 2**32 - 1]), min_size=1, max_size=3)
messages = st.lists(st.tuples(ways, st.lists(segment, min_size=1, max_size=4)), max_size=200)


def settings_of(text: str) -> HubSettings:
    with TemporaryDirectory() as folder:
        path = Path(folder, "new.toml")
        path.write_text(text, "utf-8")
        return read_settings(Namespace(config=str(path), separator=None, user=None), of_any=True)


@pytest.mark.promise("how-to/restrict.md", "Its rules refuse nothing of that journal")
@settings(max_examples=200, deadline=None)
@given(messages, st.sampled_from([b"/", b"."]))
def test_rules_that_are_made_of_a_journal_refuse_nothing_of_it(
    sent: list[tuple[list[int], list[bytes]]], separator: bytes
) -> None:
    rows = [
        (
            separator.join(b"!/cred/7/%d/8".replace(b"/", separator) % uid for uid in way),
            *(7, way[-1], 8, separator.join(segments), 1, 0, 0),
        )
        for way, segments in sent
    ]
    recorded = Listed(rows)
    publish = allowing(flows(recorded, separator), separator)
    text = "\n".join(rules_text({uid: uid for uid in publish}, publish, {}, separator))
    assert all(one.isprintable() or one == "\n" for one in text)
    made = settings_of(text)
    assert made.separator == separator

    whole = PolicyTrial(made.policy, made.users, separator)
    result = rehearse(recorded, whole, separator)
    assert (result.refusals, result.unsure, whole.unmatched("publish")) == ([], 0, [])
    strange = {OVERFLOW_ID, 2**32 - 1}
    assert result.unknown + result.reserved == sum(bool(strange & {*way}) or b"!" in segments for way, segments in sent)
