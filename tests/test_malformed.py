"""Whatever bytes come from outside, their reader answers as documented, with each version of msgspec."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import msgspec
import pytest
from support import ROOT

from sbuslib.bench.results import decode as decode_figures
from sbuslib.cli.messages import from_json
from sbuslib.clients.recipes import queue
from sbuslib.clients.recipes.last import fetch
from sbuslib.core.records import decode_record
from sbuslib.errors import DescriptorError, PacketError, PayloadError, PeerError, StateError
from sbuslib.federation.membership import HEARTBEAT, decode_heartbeat
from sbuslib.integrations import kombu_messages
from sbuslib.statistics import decode_statistics
from sbuslib.tcp.large import _decode, _Offer, _Word
from sbuslib.topic import Topic
from sbuslib.wire.events import HubEvent
from sbuslib.wire.offers import MAGIC, decode_offer

PACKAGE = ROOT / "sbuslib"

UNREAD = {
    "bench/native.py": "the figures of a program of our own",
    "integrations/channels.py": "its caller logs what a trusted process sent",
    "integrations/channels_process.py": "its caller logs what a trusted process sent",
}
"""Modules in which errors of a decoder are not caught beside it, and why."""

MESSAGEPACK = {
    "cut off": b"\x92",
    "of another type": b"\xc3",
    "no UTF-8": b"\x94\xa1\xff\xa1\xff\xa1\xff\xa1\xff",
    "no UTF-8 after bytes": b"\x92\xc4\x01k\xa1\xff",
    "deep": b"\x91" * 100_000,
    "nothing": b"",
}
TEXTS = b"kind", b"key", b"who", b"identity", b"hub_id", b"gateway"
"""Fields of text, one at least in each struct that is read."""
JSON = {
    "cut off": b'{"',
    "of another type": b"[1]",
    "no UTF-8": b"{%b}" % b", ".join(b'"%b": "\xff"' % name for name in TEXTS),
    "deep": b'{"": ' + b"[" * 100_000,
    "nothing": b"",
}


def no_page(payload: bytes) -> None:
    """Read a page of last values."""

    async def ask(key: bytes, question: bytes, until: float | None) -> bytes:
        return payload

    fetch(ask, [b"a"], b"/", None).send(None)


READERS: dict[str, tuple[Callable[[bytes], Any], type[Exception] | None, dict[str, bytes]]] = {
    "an offer": (lambda data: decode_offer(b"".join((MAGIC, len(data).to_bytes(2, "little"), data))),
                 DescriptorError, {name: data[:60_000] for name, data in MESSAGEPACK.items()}),
    "a page of last values": (no_page, PeerError, MESSAGEPACK),
    "a record": (decode_record, StateError, MESSAGEPACK),
    "a message of kombu": (kombu_messages.decode, None, MESSAGEPACK),
    "a binding": (kombu_messages.decode_binding, None, MESSAGEPACK),
    "a topic's value": (Topic(list[str]).decode, PayloadError, MESSAGEPACK),
    **{f"a queue's {kind.__name__}": (partial(queue.decode, kind), None, MESSAGEPACK)
       for kind in queue._DECODERS},
    "a topic's value in JSON": (Topic(dict[str, str], encoding="json").decode, PayloadError, JSON),
    "a line": (from_json, PayloadError, JSON),
    "a heartbeat": (lambda data: decode_heartbeat(HEARTBEAT + data), None, JSON),
    "an event": (HubEvent.decode, PacketError, JSON),
    "statistics": (lambda data: decode_statistics(data or b"x", "here"), PeerError, JSON),
    "a large message's offer": (lambda data: _decode(data, _Offer), None, JSON),
    "a large message's word": (lambda data: _decode(data, _Word), None, JSON),
    "figures": (decode_figures, ValueError, JSON),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_bytes_that_are_none_are_refused_as_documented(name: str) -> None:
    read, error, wrong = READERS[name]
    for data in wrong.values():
        with pytest.raises(error) if error is not None else nullcontext():
            assert read(data) is None


def test_each_decoder_s_errors_are_caught_beside_it() -> None:
    """By the one tuple that has them all."""
    found, lacking = set(), []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        caught = {
            call
            for node in ast.walk(tree)
            if isinstance(node, ast.Try) and any("MALFORMED" in ast.unparse(one.type or node) for one in node.handlers)
            for body in node.body
            for call in ast.walk(body)
        }
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or call in caught:
                continue
            name = ast.unparse(call.func)
            if name.endswith(("msgpack.decode", "msgspec.json.decode", "_decoder.decode", "_DECODERS[kind].decode")):
                found.add(str(path.relative_to(PACKAGE)))
                lacking.append((str(path.relative_to(PACKAGE)), call.lineno, name))
    assert [one for one in lacking if one[0] not in UNREAD] == []
    assert found >= set(UNREAD)


def test_errors_of_msgspec_are_caught_by_name() -> None:
    """A ValueError is not enough before its version 0.21, and a DecodeError does not have all."""
    kinds = (
        "except (ValueError, RecursionError",
        "except msgspec.DecodeError",
        "msgspec.MsgspecError,",
        "msgspec.DecodeError,",
    )
    wrong = [
        (path.name, kind)
        for path in PACKAGE.rglob("*.py")
        for kind in kinds
        if kind in path.read_text("utf-8") and path.name not in ("malformed.py", "config.py")
    ]
    assert wrong == []
    assert not issubclass(UnicodeDecodeError, msgspec.MsgspecError)
