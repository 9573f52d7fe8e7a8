"""Under which names keys leave a bus, and which come back."""

from __future__ import annotations

from collections import Counter

from sbuslib.border.crossing import Crossing
from sbuslib.border.keys import Border
from sbuslib.border.mapping import Mapping
from sbuslib.wire.offers import MAGIC, Offer, encode_offer


def crossing(refused: Counter[str], most: int = 10) -> Crossing:
    exported, imported = Border([b"a/", b"long/"]), Border([b"b/"])
    return Crossing(Mapping("n:", "/"), exported, imported, lambda name: len(name) < 1_000, refused, most)


def test_what_matches_crosses_under_its_name_and_the_rest_is_counted() -> None:
    refused = Counter[str]()
    one = crossing(refused)
    for _ in range(2):  # remembered the second time
        assert (one.name_for(b"a/x", b""), one.name_for(b"b/x", b""), one.name_for(b"long/" + b"x" * 1_000, b"")) == (
            "n:a/x",
            None,
            None,
        )
        assert (one.key_for("n:b/x"), one.key_for("n:a/x"), one.key_for("b/x")) == (b"b/x", None, None)
    assert refused == {"outside the patterns": 4, "name too long": 2, "not the name for a key": 2}


def test_a_bounded_number_of_short_keys_and_names_is_remembered() -> None:
    one = crossing(Counter(), most=4)
    for number in range(100):
        assert one.name_for(b"a/x%d" % number, b"") is not None
        assert one.key_for(f"n:b/x{number}") is not None
    assert one.name_for(b"a/" + b"x" * 900, b"") is not None
    assert [known.cache_info()[2:] for known in (one._known_name, one._known_key)] == [(4, 4), (4, 4)]
    before = one._known_name.cache_info()
    assert one.name_for(b"a/" + b"x" * 900, b"") is not None
    assert one._known_name.cache_info() == before, "long ones are not remembered"


def test_what_has_to_be_fetched_at_a_door_does_not_cross_and_is_counted() -> None:
    refused = Counter[str]()
    one = crossing(refused)
    assert one.name_for(b"a/x", encode_offer(Offer("frame", 5, b"", bytes(16)))) is None
    assert refused == {"behind a door": 1}
    assert one.name_for(b"a/x", encode_offer(Offer("frame", 5), b"small")) == "n:a/x"
    assert one.name_for(b"a/x", MAGIC + b"malformed") == "n:a/x"
