"""Rehearsal of rules on recorded messages: those that a policy would refuse, and patterns of it that nothing matched.

DuckDB counts the messages of each process under each key, and the policy is asked once for each distinct user and key.
Nothing is sent.

**Whose messages they are.** A hub asks about the user of the connection over which a message comes. That is the
message's publisher, or a relay. A journal has the sender's whole chain of credentials, and the process in it that
answers for the message; it does not show which part of the chain before that process leads to the recording hub itself.
So each user up to that process may be the one that a hub asks about. Where the answer is not the same for all of them,
it is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec

from ..keys.covering import is_wider
from ..keys.policy import Grant, Policy, Rule, Verb
from ..matcher import Pattern, Subscriptions
from ..secrets import OVERFLOW_ID, Credentials, Namespace
from ..statistics import HeldPatterns
from .sql import Recorded

_NO_USER = 2**32 - 1
"""The kernel gives no user this id or a larger one; but a segment may have one, from its writer."""


class Flow(NamedTuple):
    """The messages that one process published under one key.

    ``uid`` and ``pid`` are of the process that answers for them, 0 for a process that is not known; ``users`` are those
    that a hub may ask about. Where the sender is unknown, there are no users.
    """

    users: frozenset[int]
    uid: int
    pid: int
    key: bytes
    messages: int
    first_ns: int
    last_ns: int


def flows(recorded: Recorded, separator: bytes) -> Iterator[Flow]:
    """All messages by process and key, in no order."""
    namespace = Namespace(separator)
    known: dict[tuple[bytes | None, int | None, int | None, int | None], frozenset[int]] = {}
    rows = recorded.query(
        "SELECT sender, gid, uid, pid, key, COUNT(*), MIN(time_ns), MAX(time_ns) FROM sbus_recorded "
        "WHERE key IS NOT NULL GROUP BY sender, gid, uid, pid, key"
    )
    for sender, gid, uid, pid, key, messages, first_ns, last_ns in rows:
        who = sender, gid, uid, pid
        if who not in known:
            known[who] = _users_asked(namespace, *who)
        users = known[who]
        yield Flow(users, uid if users else -1, pid or 0, key, messages, first_ns, last_ns)


def _users_asked(
    namespace: Namespace, sender: bytes | None, gid: int | None, uid: int | None, pid: int | None
) -> frozenset[int]:
    """The users on the way from the recording hub to the process of these ids; none where it is not known."""
    chain = namespace.chain(sender or b"")
    places = [place for place, step in enumerate(chain) if step.known() == (gid, uid, pid)]
    users = {step.uid for step in chain[: places[-1] + 1]} if uid is not None and places else set()
    return frozenset() if max(users, default=0) >= _NO_USER or OVERFLOW_ID in users else frozenset(users)


class RefusedKey(msgspec.Struct, kw_only=True):
    """Messages that a policy refuses a user under one key: their ``processes`` and times, and ``why``."""

    uid: int
    key: bytes
    why: str
    messages: int
    first_ns: int
    last_ns: int
    processes: set[int]


class MissingMessages(NamedTuple):
    """Messages that were published and are not recorded, by cause; and how many gaps do not say how many."""

    cause: str
    messages: int
    unknown: int


class Rehearsal(msgspec.Struct, kw_only=True):
    """Result of a rehearsal."""

    messages: int = 0
    """All that were recorded; each is allowed, or in one of the next four."""
    refusals: list[RefusedKey] = []
    """Messages that would be refused, the most first."""
    unknown: int = 0
    """Messages whose sender is unknown."""
    unsure: int = 0
    """Messages that came over links, where the answer depends on which of its users the hub asks about."""
    reserved: int = 0
    """Messages under keys with the reserved token, about which no rule is asked."""
    users: int = 0
    """Distinct users that answer for messages."""
    keys: int = 0
    """Distinct keys."""
    lost: list[MissingMessages] = []
    """Messages that are not recorded, by cause."""

    @property
    def refused(self) -> int:
        """Messages that would be refused."""
        return sum(refusal.messages for refusal in self.refusals)


class PolicyTrial:
    """Asks a policy, once for each user and key, and remembers which of its patterns matched.

    :param users: who may connect, by id; ``None``: everybody.
    """

    def __init__(self, policy: Policy | None, users: Collection[int] | None, separator: bytes) -> None:
        self._policy = policy  # ``None``: everybody may do everything
        self._users = users
        self._separator = separator
        self._grants: dict[int, tuple[list[Grant], Subscriptions[int]]] = {}  # by user, and an index for publish
        self._answers: dict[tuple[int, Verb, bytes], bool] = {}  # by user and key
        self._matched: set[tuple[int, int]] = set()  # users, with places among their grants

    def allows(self, uid: int, verb: Verb, key: bytes) -> bool:
        """Whether a hub lets a user connect, and do this with a key or pattern that is not reserved."""
        if self._users is not None and uid not in self._users:
            return False
        if self._policy is None:
            return True
        answer = self._answers.get((uid, verb, key))
        if answer is None:
            places = self._matching(uid, verb, key)
            self._matched.update((uid, place) for place in places)
            answer = self._answers[uid, verb, key] = bool(places)
        return answer

    def _matching(self, uid: int, verb: Verb, key: bytes) -> Collection[int]:
        """The places of the user's grants that allow it, each by itself."""
        grants, index = self._granted(uid)
        if verb == "publish":
            return index.subscribers(key)
        wanted = Pattern(key, self._separator)
        return [
            place
            for place, grant in enumerate(grants)
            if grant.verb == verb and is_wider(Pattern(grant.pattern, self._separator), wanted)
        ]

    def _granted(self, uid: int) -> tuple[list[Grant], Subscriptions[int]]:
        if uid not in self._grants:
            assert self._policy is not None
            grants = self._policy.grants(uid)
            index: Subscriptions[int] = Subscriptions(self._separator)
            for place, grant in enumerate(grants):
                if grant.verb == "publish":
                    index.add(Pattern(grant.pattern, self._separator), place)
            self._grants[uid] = grants, index
        return self._grants[uid]

    def why(self, uid: int, verb: Verb) -> str:
        """Return the reason for a refusal."""
        if self._users is not None and uid not in self._users:
            return "may not connect, unless it is the hub's own user"
        labels = dict.fromkeys(grant.rule.label for grant in self._granted(uid)[0] if grant.verb == verb)
        return f"not by {', '.join(labels)}" if labels else f"no rule lets this user {verb}"

    def unmatched(self, *verbs: Verb) -> list[tuple[Rule, Verb, bytes]]:
        """The patterns of rules for these verbs that matched nothing so far, as they are written."""
        grants = (self._granted(uid)[0][place] for uid, place in self._matched)
        matched = {(grant.rule, grant.verb, grant.template) for grant in grants}
        return [
            (rule, verb, template)
            for rule in (() if self._policy is None else self._policy.rules)
            for verb, templates in rule.templates()
            for template in templates
            if verb in verbs and (rule, verb, template) not in matched
        ]


class Ending(NamedTuple):
    """A subscription of the process ``who`` that a hub would withdraw; that of a link, it narrows."""

    who: Credentials
    is_link: bool
    pattern: bytes
    why: str


def endings(trial: PolicyTrial, clients: Iterable[HeldPatterns], separator: bytes) -> list[Ending]:
    """Of all that a hub's clients subscribe to, what would end."""
    namespace = Namespace(separator)
    return sorted(
        Ending(who, client.is_link, pattern, trial.why(who.uid, "subscribe"))
        for client in clients
        for who in namespace.chain(client.credentials.encode())[-1:]
        for pattern in client.patterns
        if not trial.allows(who.uid, "subscribe", pattern)
    )


def rehearse(recorded: Recorded, trial: PolicyTrial, separator: bytes) -> Rehearsal:
    """Ask a policy about all messages that were recorded."""
    result, users, keys = Rehearsal(), set[int](), set[bytes]()
    refusals: dict[tuple[int, bytes], RefusedKey] = {}
    uses_reserved = Namespace(separator).uses_reserved
    for flow in flows(recorded, separator):
        # 1. The messages.
        result.messages += flow.messages
        keys.add(flow.key)
        users.update([flow.uid] if flow.users else [])

        # 2. The decisions of the rules.
        if uses_reserved(flow.key):
            result.reserved += flow.messages
            continue
        if not flow.users:
            result.unknown += flow.messages
            continue
        answers = {trial.allows(uid, "publish", flow.key) for uid in flow.users}
        if answers == {True}:
            continue
        if len(answers) > 1:
            result.unsure += flow.messages
            continue

        # 3. One refusal for each user and key, for all processes together.
        found = refusals.get((flow.uid, flow.key))
        if found is None:
            refusals[flow.uid, flow.key] = RefusedKey(
                uid=flow.uid,
                key=flow.key,
                why=trial.why(flow.uid, "publish"),
                messages=flow.messages,
                first_ns=flow.first_ns,
                last_ns=flow.last_ns,
                processes={flow.pid},
            )
            continue
        found.messages += flow.messages
        found.first_ns, found.last_ns = min(found.first_ns, flow.first_ns), max(found.last_ns, flow.last_ns)
        found.processes.add(flow.pid)

    result.users, result.keys = len(users), len(keys)
    result.refusals = sorted(refusals.values(), key=lambda one: (-one.messages, one.uid, one.key))
    result.lost = missing_messages(recorded)
    return result


def missing_messages(recorded: Recorded) -> list[MissingMessages]:
    """Messages that are not recorded, by cause. Gaps of no message are events."""
    gaps = recorded.query(
        "SELECT cause, CAST(COALESCE(SUM(lost), 0) AS BIGINT), COUNT(*) - COUNT(lost) FROM sbus_recorded "
        "WHERE kind <> 'message' AND (lost IS NULL OR lost > 0) GROUP BY cause"
    )
    return sorted(MissingMessages(cause or "?", messages, unknown) for cause, messages, unknown in gaps)
