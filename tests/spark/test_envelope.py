"""Payloads in envelopes with an id."""

from __future__ import annotations

import pytest

from sbuslib.errors import UsageError
from sbuslib.spark.envelope import seal, unseal


def test_unseal_gives_what_was_sealed_and_refuses_other_payloads() -> None:
    assert unseal(seal(b"1/2", b"a\0b")) == (b"1/2", b"a\0b")
    for wrong in (b"", b"no end", b"\0payload"):
        with pytest.raises(UsageError, match="in no envelope"):
            unseal(wrong)
    for id in (b"", b"a\0b"):
        with pytest.raises(UsageError, match="the id of an envelope"):
            seal(id, b"")
