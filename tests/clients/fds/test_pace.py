"""How long those rest who have a descriptor store do what nobody wishes."""

from __future__ import annotations

from sbuslib.clients.fds.pace import Pace


def test_all_who_take_time_take_a_small_share_of_it_together() -> None:
    for users in (1, 10, 1_000):
        pace, now, worked = Pace(20), 0.0, 0.0
        while now < 100.0:
            free = [user for user in range(users) if pace.until(user) <= now]
            for user in free:
                pace.charge(user, 0.001, now)
                worked += 0.001
            now += 0.01
        assert 1.0 < worked < 7.0


def test_who_takes_no_time_does_not_rest() -> None:
    pace = Pace(20)
    pace.charge(1, 1.0, 0.0)
    assert (pace.until(1), pace.until(2)) == (20.0, 0.0)
    pace.charge(2, 1.0, 10.0)
    assert pace.until(2) == 50.0, "longer, as another rests"
    pace.charge(3, 1.0, 60.0)
    assert (pace.until(1), pace.until(3)) == (0.0, 80.0), "what is over is forgotten"
