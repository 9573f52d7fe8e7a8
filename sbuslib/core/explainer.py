"""Explainer of ``hub/why``: where a message would end if it was published now. Nothing is sent, and nothing changes.

The objects that decide about messages answer: the router, the rules in force, and the outbox of each receiver.

**Access.** Users whom the hub trusts see everything, as with ``hub/statistics``. Anybody else sees clients of its own
user, and of all others only whether there are any, as with ``hub/wanted``.

A question takes long where there are many receivers or patterns. So it is answered in turns of the user who asks, one
question after another.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from ..errors import PacketError
from ..keys.policy import Ruling, Verb
from ..matcher import Pattern
from ..reasons import Reason
from ..secrets import OVERFLOW_ID, Credentials
from ..statistics import ExplainedLink, ExplainedParty, ExplainedReceiver, Explanation, NearMiss
from ..wire import control
from ..wire.packets import encode_control
from ..wire.text import printable
from .clients import Clients
from .connection import Connection
from .context import Context
from .interest_watches import InterestWatches
from .near_misses import NearMisses
from .outbound import Outbound
from .protocols import Receiver, Routes
from .publisher import Publisher
from .recurring_job import Steps, UserJobs

SHOWN: Final = 10
"""Receivers that are shown, the worst of all; of the others only sums are."""

_LINKS: Final = 50
"""Links that are shown: each takes up to 4 KB of a packet."""

_QUESTIONS: Final = 16
"""Questions of one user that may wait."""

_NAME_BYTES: Final = 1_024
"""Longest credential key in a question: that of a client below 16 hubs is shorter."""

_A_STEP: Final = 64
"""Receivers or patterns that one step looks at: some 0.3 ms."""

_NEAR_TIME: Final = 1.0
"""Seconds for which patterns that nearly match are looked for, the newest first: the asker waits for the answer."""

_CHARACTERS: Final = 200
"""Characters of a pattern, or of a reason, that are shown."""

_SEVERITY: Final = {"lost": 5, "kicked": 4, "held": 3, "gone": 2, "waits": 1}
"""Which receivers are worst."""

_PARENT: Final = b"parent"
"""In the place of a sender: the parent, for messages that come down from it."""

_UNTOLD: Final = "of others, the hub tells nothing to users that it does not trust"


class ExplainedTree(Protocol):
    """The hub's tree, as the explainer asks it."""

    hub_id: bytes
    watches: InterestWatches

    @property
    def has_settled(self) -> bool:
        """Whether this hub has the interest of its neighbours."""

    @property
    def link_count(self) -> int:
        """How many links there are."""

    def is_link(self, receiver: Receiver) -> bool:
        """Whether this stands for another hub among receivers."""

    def explain_links(
        self, key: bytes, receivers: Routes, sender: Publisher | None, uid: int, origin: Receiver | None
    ) -> Iterator[ExplainedLink]:
        """Yield what each link would do with a message of this user for these receivers, except the link that it came
        over.
        """
        ...

    def arrival(self, key: bytes) -> tuple[Publisher, Receiver, bool] | None:
        """The link to the parent, what stands for it among receivers, and whether a key may come down over it."""


class _Question(NamedTuple):
    client: Outbound
    token: bytes
    key: bytes
    sender: bytes = b""
    receiver: bytes = b""


class Explainer:
    """Answers the questions of all clients of one hub."""

    def __init__(self, context: Context, clients: Clients, tree: ExplainedTree) -> None:
        self._context = context
        self._clients = clients
        self._tree = tree
        self._questions: dict[int, deque[_Question]] = {}  # by user
        self._answering = UserJobs(context, self._answer_all)

    def ask(self, client: Outbound, token: bytes, about: bytes) -> None:
        """Take a question, to be answered later. Raises :exc:`~sbuslib.errors.PacketError` for a malformed one."""
        # 1. Key, sender and receiver, each bounded.
        question, namespace = _Question(client, token, *about.split(b"\0", 2)), self._context.router.namespace
        self._context.router.check_size(question.key)
        for name in (question.sender, question.receiver):
            is_user = name.isdigit() and len(name) <= 10 and int(name) < 2**32
            is_key = len(name) <= _NAME_BYTES and bool(namespace.chain(name))
            if not (is_user or is_key or name in (b"", _PARENT)):
                raise PacketError(Reason.MALFORMED_SENDER)

        # 2. In turns of the user, after its other questions.
        user = client.account.uid
        questions = self._questions.setdefault(user, deque())
        if len(questions) < _QUESTIONS:
            questions.append(question)
            self._answering.wake(user)
        else:
            self._answer(question, b"")

    def _answer_all(self, user: int) -> Steps:
        """Answer what a user has asked. Where that fails, what failed is answered, too."""
        questions = self._questions.get(user, ())
        while questions:
            question, encoded = questions[0], b""
            try:
                if not question.client.closed:
                    encoded = yield from self._find_answer(question)
            finally:
                if questions and questions[0] is question:  # else it was answered meanwhile
                    self._answer(questions.popleft(), encoded)
            yield
        self._questions.pop(user, None)
        return None

    def _find_answer(self, question: _Question) -> Generator[None, None, bytes]:
        found = yield from _Search(self._context, self._clients, self._tree, question).explain()
        encoded = msgspec.json.encode(found)
        if not found.is_whole and len(encoded) > self._context.limits.idle_send_buffer // 2:
            # A longer one takes a larger send buffer, whatever the share of its user.
            encoded = msgspec.json.encode(msgspec.structs.replace(found, receivers=(), near=()))
        return encoded

    def end(self) -> None:
        """Another process takes the hub over: what waits is to be asked there again."""
        for questions in self._questions.values():
            while questions:
                self._answer(questions.popleft(), b"")

    @staticmethod
    def _answer(question: _Question, encoded: bytes) -> None:
        question.client.answer(encode_control(control.WHY, question.token + b"\0" + encoded))


class _Search:
    """Finds one answer, in small steps."""

    def __init__(self, context: Context, clients: Clients, tree: ExplainedTree, question: _Question) -> None:
        self._context = context
        self._clients = clients
        self._tree = tree
        self._question = question
        self._key = question.key  # of the message
        self._is_whole = question.client.credentials.uid in context.trusted  # whether the asker sees everybody
        self._user = question.client.credentials.known()[1]  # whose clients it sees anyway

    def _sees(self, receiver: Receiver) -> bool:
        """Return whether the asker may see a receiver."""
        if self._is_whole or receiver is self._question.client:
            return True
        return self._user is not None and receiver.credentials.uid == self._user

    def _find(self, name: bytes) -> Generator[None, None, list[Connection]]:
        """Find the clients of a user, or of a credential key, that the asker may see."""
        namespace, found = self._context.router.namespace, list[Connection]()
        whose = namespace.chain(name)[-1:] if namespace.prefix_of(name) == namespace.prefix else ()
        for number, one in enumerate(list(self._clients.connections.values()), 1):
            is_of_user = name.isdigit() and one.credentials.uid == int(name) and not one.role.is_relay
            if (is_of_user or whose == (one.credentials,)) and self._sees(one.outbound):
                found.append(one)
            if not number % (8 * _A_STEP):
                yield
        return found

    def explain(self) -> Generator[None, None, Explanation]:
        """The answer."""
        context, tree, question, key = self._context, self._tree, self._question, self._key
        answer: dict[str, Any] = {"hub_id": tree.hub_id.decode(), "address": context.address()}
        answer |= {"is_whole": self._is_whole, "is_settled": tree.has_settled}

        # 1. Who sends it, and whether that is allowed. A message does not go back to where it comes from.
        publishers: Sequence[Publisher] = [self._clients.connections[question.client]]
        if question.sender:
            publishers = yield from self._find(question.sender)
        party = self._party("publish", question.sender, publishers)
        sender = publishers[0] if publishers else None
        origin: Receiver | None = sender.outbound if sender is not None and sender.role.is_relay else None
        arrival = tree.arrival(key) if question.sender == _PARENT and self._is_whole else None
        if arrival is not None:
            sender, origin, may = arrival
            party = ExplainedParty(name="parent", allowed=may, reason="" if may else "import")
        try:
            is_secret = context.router.namespace.check_key(key)
        except PacketError as error:
            return Explanation(**answer, sender=msgspec.structs.replace(party, allowed=False, reason=error.reason))

        # 2. Who receives it, of all or of those who were asked about, and what would become of it there.
        readers: list[Connection] | None = None
        if question.receiver:
            readers = yield from self._find(question.receiver)
            answer["reader"] = self._party("subscribe", question.receiver, readers)
        uid = party.uid if sender is None else sender.credentials.uid
        routes = tuple(one for one in context.router.receivers(key) if one is not origin)
        answer |= yield from self._receivers(routes, readers, sender, uid)
        links: tuple[ExplainedLink, ...] = ()
        if self._is_whole:
            links = tuple(islice(tree.explain_links(key, routes, sender, uid, origin), _LINKS))
            answer["link_count"] = tree.link_count - (origin is not None)

        # 3. If nobody does, which patterns nearly match.
        is_received = bool(answer["kinds"].keys() & {"client", "program"})
        if not is_secret and not is_received and (readers is not None or not any(one.carries for one in links)):
            answer["near"] = yield from self._near_misses(readers)
        answer |= {"is_secret": is_secret, "sender": party, "links": links}
        wanted = tree.watches.state(question.client, key).decode()
        return Explanation(**answer, wanted=wanted, room=context.limits.queued_packets)

    def _party(self, verb: Verb, name: bytes, clients: Sequence[Publisher]) -> ExplainedParty:
        """Whether the rules let these clients, or a user without any, publish or read the key."""
        context = self._context
        uid = clients[0].credentials.uid if clients else int(name) if name.isdigit() else -1
        held = [one for one in clients if one.pausers]
        pausers = [holder for one in held for holder in one.pausers if isinstance(holder, Outbound)]
        seen = next((holder.key.decode() for holder in pausers if self._sees(holder)), "")
        party = ExplainedParty(name=printable(name), uid=uid, clients=len(clients), held=len(held), held_by=seen)
        if uid == -1 or not (clients or self._is_whole):
            return msgspec.structs.replace(party, reason="there is no such client here" if self._is_whole else _UNTOLD)

        # 1. Secrets: no rule is asked about them.
        credentials = clients[0].credentials if clients else Credentials(gid=OVERFLOW_ID, uid=uid, pid=0)
        try:
            if verb == "subscribe":
                context.router.namespace.check_pattern(self._key, credentials)
        except PacketError as error:
            return msgspec.structs.replace(party, allowed=False, reason=error.reason)

        # 2. The rules, or the function of the embedder, which may look at more than the user.
        account = clients[0].outbound.account if clients else context.quotas.account(uid)
        found = context.authorization.explain(account, credentials, verb, self._key)
        context.quotas.tidy(account)
        if isinstance(found, Ruling):
            others = ", ".join(f'"{printable(one.pattern)}" ({one.rule.label})' for one in found.others)
            reason = found.reason(verb) + (f"; it may {verb} {others}" if others else "")
            return msgspec.structs.replace(party, allowed=found.allowed, reason=reason[: 2 * _CHARACTERS])
        if not context.authorization.is_asked:
            return msgspec.structs.replace(party, allowed=True, reason="there are no rules")
        reason = "the program of the hub decides"
        return msgspec.structs.replace(party, allowed=found if clients else None, reason=reason)

    def _receivers(
        self, routes: Routes, readers: Sequence[Connection] | None, sender: Publisher | None, uid: int
    ) -> Generator[None, None, dict[str, Any]]:
        """Sums over all receivers that are no links, and the worst of them."""
        kinds, outcomes, lost, waiting = Counter[str](), Counter[str](), Counter[str](), 0
        worst: list[tuple[int, int, int, int, Any]] = []  # severity, lost, waiting; its number, for equals
        meant = None if readers is None else {one.outbound for one in readers}

        # 1. All of them.
        for number, receiver in enumerate(routes, 1):
            if self._sees(receiver) and not self._tree.is_link(receiver) and (meant is None or receiver in meant):
                kind, outcome, _, queued, losses = self._look_at(receiver, sender, uid)
                kinds[kind] += 1
                outcomes[outcome] += 1
                waiting += queued
                lost.update(losses)
                worst.append((_SEVERITY.get(outcome, 0), sum(losses.values()), queued, -number, receiver))
            if not number % _A_STEP:
                worst = sorted(worst, reverse=True)[:SHOWN]
                yield

        # 2. The worst once more, since that took a while.
        shown = []
        for *_, receiver in sorted(worst, reverse=True)[:SHOWN]:
            pattern = yield from self._pattern_of(receiver)
            if receiver.closed:
                continue
            kind, outcome, cause, _, _ = self._look_at(receiver, sender, uid)
            told = ExplainedReceiver(kind=kind, pattern=pattern, outcome=outcome, cause=cause)
            client = self._clients.connections.get(receiver, receiver).statistics()
            if isinstance(receiver, Outbound):
                since = receiver.outbox.losses.since if receiver.has_outbox else 0.0
                held_for = max((monotonic() - began for began in receiver.held.values()), default=0.0)
                told = msgspec.structs.replace(told, since=since, holds=len(receiver.held), holds_for=held_for)
            shown.append(msgspec.structs.replace(told, client=client))
        sums = {"kinds": dict(kinds), "outcomes": dict(outcomes), "waiting": waiting, "lost": dict(lost)}
        return {"receivers": tuple(shown), **sums}

    def _look_at(self, receiver: Any, sender: Publisher | None, uid: int) -> tuple[str, str, str, int, dict[str, int]]:
        """A receiver's kind; what would become of a message there, and why it is lost; how many wait, and were lost."""
        if isinstance(receiver, Outbound):
            kind = "monitor" if receiver.is_monitor else "client"
            return (kind, *receiver.foresee(sender, uid, len(self._key)), receiver.queued, receiver.lost)
        counts = receiver.statistics()  # in the hub's own process
        kind, is_full = "program" if counts.patterns else "tap", counts.full >= 1
        outcome, cause = (
            ("sent", "") if not is_full else ("held", "") if counts.hard == "block" else ("lost", "overflow")
        )
        return kind, outcome, cause, counts.waiting, counts.lost

    def _pattern_of(self, receiver: Receiver) -> Generator[None, None, str]:
        """A pattern of a receiver that matches the key."""
        router = self._context.router
        namespace, is_secret = router.namespace, router.namespace.is_secret(self._key)
        names = router.secret_patterns_of(receiver) if is_secret else router.plain_patterns_of(receiver)
        yield
        for number, name in enumerate(names, 1):
            raw = namespace.unmark(name)[1]
            if Pattern(raw, namespace.separator).matches(self._key):
                return printable(raw)[:_CHARACTERS]
            if not number % _A_STEP:
                yield
        return ""

    def _near_misses(self, readers: Sequence[Connection] | None) -> Generator[None, None, tuple[NearMiss, ...]]:
        """Find patterns that nearly match: of some clients, or of all that the asker may see."""
        # 1. The patterns.
        router, names = self._context.router, list[bytes]()
        if readers is None and self._is_whole:
            names = router.all_patterns()
        else:
            own = b"%d" % self._question.client.credentials.uid
            for one in readers if readers is not None else (yield from self._find(own)):
                names += router.plain_patterns_of(one.outbound)
                yield

        # 2. The nearest, and who holds each.
        near, until = NearMisses(self._key, router.namespace.separator), monotonic() + _NEAR_TIME
        for number, name in enumerate(reversed(names), 1):
            near.look_at(name, router.namespace.unmark(name)[1])
            if not number % _A_STEP:
                if monotonic() > until:
                    break
                yield
        found = []
        for _, name, raw, reason in near.best:
            holder = next((one for one in router.holders(name) if self._sees(one)), None)
            key = b"" if holder is None else router.namespace.credential_key(holder.credentials)
            pattern, why = printable(raw)[:_CHARACTERS], reason[:_CHARACTERS]
            found.append(NearMiss(pattern=pattern, reason=why, credentials=key.decode()))
        return tuple(found)
