"""Under which names keys leave a bus, and which come back."""

from __future__ import annotations

from collections import Counter
from functools import partial

from sbuslib.federation.import_export import ImportExportFilter
from sbuslib.federation.membership import Membership, announcement_of
from sbuslib.federation.name_format import NameFormat
from sbuslib.federation.subject_mapping import SubjectMapping
from sbuslib.keys.own_keys import CONTROL
from sbuslib.limits import PACKET_BYTES
from sbuslib.wire.offers import MAGIC, Offer, encode_offer
from sbuslib.wire.packets import Message


def mapping(refused: Counter[str], most: int = 10) -> SubjectMapping:
    make = partial(ImportExportFilter, separator=b"/", certain=True, strict=False)
    exported, imported = make([b"a/", b"long/"], imports=False), make([b"b/"], imports=True)
    membership = Membership("me", "group", "it", b"!/cred/1/1/1", b"/", refused)
    made = SubjectMapping(
        NameFormat("n:", "/", separator=b"/"),
        exported,
        imported,
        lambda name: len(name) < 1_000,
        refused,
        most,
        membership,
    )
    membership.hear(Message(CONTROL, announcement_of([(b"a/x", b"brought")]), b"!/cred/1/1/2"), 0)
    return made


def test_what_matches_crosses_under_its_name_and_the_rest_is_counted() -> None:
    refused = Counter[str]()
    one = mapping(refused)
    for _ in range(2):  # remembered the second time
        keys = b"a/x", b"b/x", b"long/" + b"x" * 1_000
        assert [one.name_for(Message(key, b"")) for key in keys] == ["n:a/x", None, None]
        assert [one.key_for(name, b"") for name in ("n:b/x", "n:a/x", "b/x")] == [b"b/x", None, None]
        assert one.key_for("n:b/x", bytes(PACKET_BYTES)) is None
    assert refused == {
        "outside the patterns": 4, "name too long": 2, "not the name for a key": 2, "message too long": 2,
    }  # fmt: skip
    brought = Message(b"a/x", b"brought", b"!/cred/1/1/2")
    assert [one.is_echo(brought) for _ in range(2)] == [True, False]
    assert refused["brought by another"] == 1


def test_a_bounded_number_of_short_keys_and_names_is_remembered() -> None:
    one = mapping(Counter(), most=4)
    for number in range(100):
        assert one.name_for(Message(b"a/x%d" % number, b"")) is not None
        assert one.key_for(f"n:b/x{number}", b"") is not None
    assert one.name_for(Message(b"a/" + b"x" * 900, b"")) is not None
    assert [known.cache_info()[2:] for known in (one._known_name, one._known_key)] == [(4, 4), (4, 4)]
    before = one._known_name.cache_info()
    assert one.name_for(Message(b"a/" + b"x" * 900, b"")) is not None
    assert one._known_name.cache_info() == before, "long ones are not remembered"


def test_what_has_to_be_fetched_at_a_store_does_not_cross_and_is_counted() -> None:
    refused = Counter[str]()
    one = mapping(refused)
    assert one.name_for(Message(b"a/x", encode_offer(Offer("frame", 5, b"", bytes(16))))) is None
    assert one.key_for("n:b/x", encode_offer(Offer("frame", 5, b"", bytes(16)))) is None
    assert refused == {"on this host only": 2}
    assert one.key_for("n:b/x", encode_offer(Offer("frame", 5), b"small")) == b"b/x"
    assert one.name_for(Message(b"a/x", encode_offer(Offer("frame", 5), b"small"))) == "n:a/x"
    assert one.name_for(Message(b"a/x", MAGIC + b"malformed")) == "n:a/x"
