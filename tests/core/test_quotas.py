"""What users may hold: shares, and that everything charged is released."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sbuslib.core.quotas import Account, Quotas
from sbuslib.limits import Limits
from sbuslib.matcher import Pattern
from sbuslib.shares import Shares


def test_nothing_is_charged_when_one_of_two_has_no_room() -> None:
    account = Account(1, Limits(user_queued_packets=100, user_queued_bytes=10))
    assert account.take_room(7, 1, 6) is False
    assert account.is_clear()
    assert account.take_room(7, 51, 1) is False
    assert account.is_clear()
    assert account.take_room(7, 1, 5) is True
    assert not account.is_clear()


def test_several_is_about_connections() -> None:
    quotas = Quotas(Limits(), 10)
    one, other = quotas.open(1), quotas.open(2)
    assert one is not None
    assert other is not None
    quotas.take_pattern(quotas.account(3), Pattern(b"a", b"/"))
    assert quotas.several()
    quotas.close(one)
    assert not quotas.several()


def test_an_account_lives_as_long_as_something_is_charged() -> None:
    quotas = Quotas(Limits(), 10)
    account = quotas.open(1)
    assert account is not None
    account.force_room(2, 1, 5)
    quotas.close(account)
    assert quotas.accounts() == [account]  # a queue outlives its connection's end for a moment
    account.give_room(2, 1, 5)
    quotas.tidy(account)
    assert quotas.accounts() == []
    assert quotas.account(1) is not account


class SharesMachine(RuleBasedStateMachine):
    """Users take, force and give at random; a plain counter says what they hold."""

    @initialize(maximum=st.integers(1, 200))
    def begin(self, maximum: int) -> None:
        self.shares = Shares(maximum)
        self.held: Counter[int] = Counter()

    @rule(user=st.integers(1, 5), units=st.integers(1, 80))
    def take(self, user: int, units: int) -> None:
        free = self.shares.maximum - self.held.total()
        users = len(+self.held) + (not self.held[user])
        fits = self.held[user] + units <= (free + self.held[user]) // (users + 1)
        assert self.shares.take(user, units) is fits
        self.held[user] += units * fits
        if fits:
            assert self.shares.remaining >= 0

    @rule(user=st.integers(1, 5), units=st.integers(0, 80))
    def force(self, user: int, units: int) -> None:
        self.shares.force(user, units)
        self.held[user] += units

    @precondition(lambda self: self.held.total())
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        user = data.draw(st.sampled_from(sorted(+self.held)))
        units = data.draw(st.integers(1, self.held[user]))
        self.shares.give(user, units)
        self.held[user] -= units

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "held"):
            assert {user: self.shares.held(user) for user in range(1, 6)} == {u: self.held[u] for u in range(1, 6)}
            assert self.shares.used == self.held.total()
            assert self.shares.users == len(+self.held)

    def teardown(self) -> None:
        if hasattr(self, "held"):
            for user, units in self.held.items():
                self.shares.give(user, units)
            assert (self.shares.used, self.shares.users) == (0, 0)


TestSharesMachine = SharesMachine.TestCase
TestSharesMachine.settings = settings(max_examples=20)
