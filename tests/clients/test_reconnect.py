"""Pauses between attempts."""

from __future__ import annotations

from itertools import pairwise

from sbuslib.clients.reconnect import Backoff


def test_pauses_stay_within_their_bounds() -> None:
    backoff = Backoff(0.1, 2.0)
    pauses = [backoff.next() for _ in range(200)]
    assert pauses[0] == 0.1
    assert all(0.1 <= pause <= 2.0 for pause in pauses)
    assert all(later <= max(0.1, 3 * pause) for pause, later in pairwise(pauses))


def test_two_clients_that_lost_the_same_hub_come_back_at_different_times() -> None:
    one, other = Backoff(0.1, 5.0), Backoff(0.1, 5.0)
    assert [one.next() for _ in range(10)] != [other.next() for _ in range(10)]


def test_after_reset_the_first_pause_is_the_shortest() -> None:
    backoff = Backoff(0.1, 5.0)
    for _ in range(20):
        backoff.next()
    backoff.reset()
    assert backoff.next() == 0.1
