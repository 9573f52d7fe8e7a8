"""The index of substrings against a plain model."""

from __future__ import annotations

import random

import pytest

from sbuslib.tcp import substrings
from sbuslib.tcp.limits import TcpLimits
from sbuslib.tcp.substrings import Substrings

SMALL = {
    "CACHED_NAME_BYTES": 20,
    "RECENT_CHANGES": 4,
}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Substrings[str]:
    for name, value in SMALL.items():
        monkeypatch.setattr(substrings, name, value)
    return Substrings(TcpLimits(cached_names=8))


def test_the_index_agrees_with_a_plain_search(index: Substrings[str]) -> None:
    chance = random.Random(7)
    model: dict[tuple[str, str], int] = {}
    letters = "ab/é\U0001f600"
    for step in range(6_000):
        text = "".join(chance.choices(letters, k=chance.randrange(0, 5)))
        who = chance.choice("xyz")
        act = chance.random()
        if act < 0.35:
            assert index.add(text, who) is ((text, who) not in model)
            model[text, who] = model.get((text, who), 0) + 1
        elif act < 0.7:
            held = [pair for pair in model if pair[1] == who]
            if held and chance.random() < 0.9:
                text = chance.choice(held)[0]
            count = model.get((text, who), 0)
            assert index.remove(text, who) is (None if not count else count == 1)
            if count > 1:
                model[text, who] = count - 1
            else:
                model.pop((text, who), None)
        elif act < 0.71:
            assert index.discard(who) == {t: n for (t, w), n in model.items() if w == who}
            model = {pair: n for pair, n in model.items() if pair[1] != who}
        name = "".join(chance.choices(letters, k=chance.randrange(0, 30 if step % 9 == 0 else 7)))
        expected = {w for (t, w) in model if t in name}
        found = index.subscribers(name)
        assert len(found) == len(set(found))
        assert set(found) == expected, (name, step)
        assert len(index) == len(model)
        assert index.count(who) == sum(w == who for _, w in model)
