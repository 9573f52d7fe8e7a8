"""Pauses between attempts."""

from __future__ import annotations

from itertools import pairwise

from sbuslib.clients.reconnect import NOBODY_PAUSE_MOST, Backoff, Reconnecting
from sbuslib.errors import NoHubError


def test_pauses_stay_within_their_bounds() -> None:
    backoff = Backoff(0.1, 2.0)
    pauses = [backoff.next() for _ in range(200)]
    assert pauses[0] == 0.1
    assert all(0.1 <= pause <= 2.0 for pause in pauses)
    assert all(later <= max(0.1, 3 * pause) for pause, later in pairwise(pauses))
    backoff.reset()
    assert backoff.next() == 0.1


def test_two_clients_that_lost_the_same_hub_come_back_at_different_times() -> None:
    one, other = Backoff(0.1, 5.0), Backoff(0.1, 5.0)
    assert [one.next() for _ in range(10)] != [other.next() for _ in range(10)]


def test_while_no_hub_listens_pauses_stay_short() -> None:
    reconnecting = Reconnecting(1.0, 5.0)
    assert reconnecting.pause() == 1.0
    reconnecting.failed(NoHubError("no hub"))
    assert [reconnecting.pause() for _ in range(3)] == [NOBODY_PAUSE_MOST] * 3
    reconnecting.failed(TimeoutError())
    assert reconnecting.pause() >= 1.0
