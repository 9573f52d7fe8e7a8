"""The router: what is remembered is what would be found."""

from __future__ import annotations

from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sbuslib.core.quotas import Quotas
from sbuslib.core.router import Router
from sbuslib.limits import Limits
from sbuslib.matcher import matches
from sbuslib.secrets import Credentials
from sbuslib.wire.packets import message_header

ME = Credentials(gid=1, uid=2, pid=3)
TEXTS = st.lists(st.sampled_from([b"/", b"*", b"a", b"b", b"!/cred/1/2/3/"]), max_size=5).map(b"".join).filter(
    lambda text: b"!" not in text or (text.startswith(b"!/cred/1/2/3/") and text.count(b"!") == 1)
)  # fmt: skip


class RouterMachine(RuleBasedStateMachine):
    """Subscriptions, taps and routes in any order, with a cache so small that it is always overflowing."""

    @initialize(cached=st.integers(1, 6))
    def begin(self, cached: int) -> None:
        limits = Limits(cached_keys=cached)
        self.patch = mock.patch("sbuslib.core.router.CACHED_HEADER_BYTES", 25)
        self.patch.start()
        self.quotas = Quotas(limits, 100)
        self.account = self.quotas.account(ME.uid)
        self.router: Router[str] = Router(limits, self.quotas)
        self.held: dict[str, dict[bytes, int]] = {}
        self.taps: dict[str, bool] = {}

    def leave(self, who: str) -> None:
        self.router.retire(who, self.account)
        while self.router.forget_some(1, self.account.uid):
            pass

    @rule(pattern=TEXTS, who=st.sampled_from("xyz"))
    def subscribe(self, pattern: bytes, who: str) -> None:
        self.router.subscribe(pattern, who, ME, self.account)
        held = self.held.setdefault(who, {})
        held[pattern] = held.get(pattern, 0) + 1

    @rule(pattern=TEXTS, who=st.sampled_from("xyz"))
    def unsubscribe(self, pattern: bytes, who: str) -> None:
        held = self.held.get(who, {})
        assert self.router.unsubscribe(pattern, who, self.account) is (pattern in held)
        if pattern in held:
            held[pattern] -= 1
            if not held[pattern]:
                del held[pattern]

    @rule(who=st.sampled_from("xyz"))
    def discard(self, who: str) -> None:
        self.leave(who)
        self.held.pop(who, None)

    @rule(who=st.sampled_from("tu"), secrets=st.booleans())
    def tap(self, who: str, secrets: bool) -> None:
        self.router.add_tap(who, secrets)
        self.taps[who] = secrets

    @rule(who=st.sampled_from("tu"))
    def untap(self, who: str) -> None:
        self.leave(who)
        self.taps.pop(who, None)

    @rule(key=TEXTS)
    def route(self, key: bytes) -> None:
        secret = key.startswith(b"!")
        expected = {
            who
            for who, held in self.held.items()
            if any(matches(pattern, key) and pattern.startswith(b"!") is secret for pattern in held)
        } | {who for who, secrets in self.taps.items() if secrets or not secret}
        header = message_header(key)
        for found in (self.router.routes.get(header), self.router.route(header), self.router.routes.get(header)):
            assert found is None or (set(found) == expected and len(found) == len(expected))

    def teardown(self) -> None:
        if hasattr(self, "router"):
            for who in "xyztu":
                self.leave(who)
            assert self.router.pattern_count() == 0
            assert self.quotas.is_clear()
            self.patch.stop()


TestRouterMachine = RouterMachine.TestCase
