"""Which strangers are asked, and how long they are waited for."""

from __future__ import annotations

import pytest

from sbuslib.clients.fds.strangers import ALL_AHEAD, MOST_GOOD, PATIENCE, PROMPT, SHARE, SLOW_SHARE, Strangers
from sbuslib.errors import DescriptorError


def lost(strangers: Strangers, users: range, seconds: float, *, answered: bool) -> float:
    """What is lost when each offers something every second, and its descriptor store takes as long as it is waited
    for.
    """
    now, gone = 0.0, 0.0
    while now < seconds:
        began = now
        for user in users:
            try:
                patience = strangers.patience(user, now)
            except DescriptorError:
                continue
            now += patience
            gone += patience
            strangers.took(user, patience, now, answered=answered)
        now = max(now, began + 1.0)
    return gone


@pytest.mark.parametrize("users", [1, 20, 5_000])
@pytest.mark.parametrize("answered", [False, True])
def test_silent_and_slow_stores_take_a_share_of_the_time_however_many_they_are(users: int, answered: bool) -> None:
    share = SLOW_SHARE if answered else SHARE
    gone = lost(Strangers(), range(users), 1_000.0, answered=answered)
    assert gone <= (1_000.0 + ALL_AHEAD) / share + 2 * PATIENCE


def test_who_answers_is_asked_while_others_are_silent() -> None:
    strangers = Strangers()
    strangers.took(1, 0.005, 0.0, answered=True)
    lost(strangers, range(10, 200), 10.0, answered=False)
    assert strangers.patience(1, 10.0) == PROMPT
    with pytest.raises(DescriptorError, match="strangers are not asked"):
        strangers.patience(2, 10.0)
    strangers.took(1, PROMPT * 2, 10.0, answered=False)
    with pytest.raises(DescriptorError, match="strangers are not asked"):
        strangers.patience(1, 10.0)


def test_so_many_are_remembered_to_have_answered() -> None:
    strangers = Strangers()
    for user in range(MOST_GOOD + 1):
        strangers.took(user, 0.0, 0.0, answered=True)
    lost(strangers, range(100, 300), 10.0, answered=False)
    assert strangers.patience(MOST_GOOD, 10.0) == PROMPT
    with pytest.raises(DescriptorError):
        strangers.patience(0, 10.0)


def test_who_handed_out_something_else_is_asked_again_later() -> None:
    strangers = Strangers()
    strangers.refuse(1, 100.0)
    with pytest.raises(DescriptorError, match="user that is not asked"):
        strangers.patience(1, 109.9)
    assert strangers.patience(1, 110.1) == PATIENCE
    assert strangers.patience(2, 100.0) == PATIENCE
