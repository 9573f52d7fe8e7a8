"""What a hub counts, and how it is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import Peer, eventually

from sbuslib import Hub
from sbuslib.statistics import decode_statistics

Connect = Callable[..., Peer]
MakeHub = Callable[..., Hub]


def test_statistics(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub()
    one, other = connect(), connect()
    one.subscribe(b"a", b"b", b"a")
    other.subscribe(b"")
    one.publish(b"a", b"x")
    one.send(b"CMSG unknown", b"UNSUB never")
    one.barrier()
    hub.publish(b"c")
    statistics = hub.statistics()
    assert (statistics.clients, statistics.clients_peak, statistics.clients_total) == (2, 2, 2)
    assert (statistics.patterns, statistics.published, statistics.delivered) == (3, 2, 3)
    assert (statistics.waiting, statistics.lost, statistics.ignored, statistics.violations) == (0, {}, 2, {})
    other.close()
    one.send(b"bad")
    assert one.receive() == b"MSG a\0x"
    assert one.is_disconnected()
    eventually(lambda: hub.statistics().clients == hub.statistics().patterns == 0)
    statistics = hub.statistics()
    assert (statistics.clients_peak, statistics.clients_total) == (2, 2)
    assert (statistics.published, statistics.delivered) == (2, 3)
    assert statistics.violations == {"unknown verb": 1}
    with pytest.raises(AttributeError):
        statistics.clients = 7  # type: ignore[misc]


def test_statistics_that_do_not_fit_one_packet(hub: Hub, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the answer would never come."""
    connect().barrier()
    sizes = []
    for clients, users in ((1, 1), (0, 1), (0, 0)):
        encoded = hub._reporter.statistics()
        told = decode_statistics(encoded, "")
        assert (len(told.per_client), len(told.per_user), told.clients) == (clients, users, 1)
        sizes.append(len(encoded))
        monkeypatch.setattr("sbuslib.core.reporting.PACKET_BYTES", len(encoded) - 1)
    assert sizes == sorted(sizes, reverse=True)
