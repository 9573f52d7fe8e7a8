"""Forecast of one message's way through a tree of hubs, without sending it: where it arrives, and why not.

Each hub answers with the fate of the message there, ``hub/why``, and with the links that carry it on. So the next hubs
are asked, up and down, as in :mod:`.survey`. Facts that a hub withholds from this user are reported as unknown.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from ..blocking import Client
from ..errors import SbusError
from ..kernel.users import is_alive, name_of_user, program_of
from ..secrets import Namespace
from ..statistics import ExplainedLink, ExplainedParty, ExplainedReceiver, Explanation, LinkStatistics
from ..wire.packets import Key, as_key
from .rates import ids_of, is_local
from .survey import DEEPEST, Children, client_at

MOST_HUBS: Final = 32
"""Hubs that are asked, those first to which the message goes."""

UNSURE: Final = 50
"""Least weight of a finding that the message does not arrive, or that this is not known."""

_OURS: Final = (0, os.getuid())
"""Users whose hubs are believed."""

Finding: TypeAlias = tuple[int, str]
"""Its weight, and its text."""

Party: TypeAlias = Key | int | None


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """One hub on the way: its explanation, or ``why`` it could not be asked."""

    address: str
    is_carried: bool = True  # whether the message goes there; else it was asked whether that is its own doing
    explanation: Explanation | None = None
    why: str = ""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """Findings, the most important first; and each hub that was asked."""

    arrives: bool  # as far as is known, and nothing is lost on the way
    findings: tuple[str, ...]
    hops: tuple[Hop, ...]


def follow(address: str | None, key: Key, *, sender: Party = None, receiver: Party = None, timeout: float = 5.0) -> Way:
    """Follow a message under ``key`` from a hub on. ``sender`` and ``receiver`` are as for ``client.hub.why``.

    Raises the errors of a client for the first hub.
    """
    walk = _Walk(key, receiver, timeout)
    hops = walk.start(address, sender)
    of_hubs = (one for hop in hops for one in walk.of_hub(hop, f"at {hop.address}: " if len(hops) > 1 else ""))
    findings = sorted([*walk.of_all(hops), *of_hubs], key=lambda one: -one[0])
    texts = tuple(dict.fromkeys(text for _, text in findings))
    return Way(arrives=not findings or findings[0][0] < UNSURE, findings=texts, hops=tuple(hops))


class _Walk:
    def __init__(self, key: Key, receiver: Party, timeout: float) -> None:
        self._key = key
        self._receiver = receiver
        self._timeout = timeout
        #: Asks children.
        self._children = Children[Explanation](lambda client: self._ask(client, b"parent"), timeout, MOST_HUBS)
        self._local = False  # whether the first hub knows processes by the ids that they have here
        self._namespace = Namespace()  # of the first hub

    # -- the hubs -----------------------------------------------------------------------------------

    def start(self, address: str | None, sender: Party) -> list[Hop]:
        with Client(address, timeout=self._timeout) as client:
            self._local = is_local(client)
            separator = client.hub.separator
            self._namespace = Namespace(separator, Namespace(separator).prefix_of(client.credentials))
            first = Hop(address=client.address, explanation=self._ask(client, sender))
        return [first, *self._beyond(first, os.getuid(), 1, True)]

    def _ask(self, client: Client, sender: Party) -> Explanation:
        return client.hub.why(self._key, sender=sender, receiver=self._receiver)

    def _beyond(self, hop: Hop, user: int, depth: int, goes_up: bool) -> Iterator[Hop]:
        """Ask the hubs at the other ends of a hub's links, except the one from which the message comes.

        Claims of a hub are charged to its user. So a child has no parent but that by which it was found.
        """
        answer = hop.explanation
        for one in answer.links if answer is not None and depth < DEEPEST else ():
            assert answer is not None
            if one.link.direction == "parent":
                if not (goes_up and one.carries and one.link.state == "joined"):
                    continue
                (found, why), charged = self._ask_parent(one.link), one.link.uid if user in _OURS else user
            else:
                found, why, charged = self._children.follow(one.link, answer.hub_id, user, depth)
            if found is not None or one.carries:
                where, is_carried = one.link.address or one.link.credentials, hop.is_carried and one.carries
                following = Hop(address=where, is_carried=is_carried, explanation=found, why=why)
                yield following
                yield from self._beyond(following, charged, depth + 1, one.link.direction == "parent")
                goes_up = goes_up and one.link.direction != "parent"  # a hub has one

    def _ask_parent(self, link: LinkStatistics) -> tuple[Explanation | None, str]:
        """Ask the parent, if it is the hub that its child names. Returns its answer, or why it was not asked."""
        try:
            with client_at(link, self._timeout) as client:
                if client.hub.features is not None and client.hub.features.hub_id == link.hub.encode():
                    return self._ask(client, link.credentials), ""
        except (SbusError, OSError) as error:
            return None, str(error)
        return None, f"{link.address}: another hub listens there"

    # -- findings -----------------------------------------------------------------------------------

    def of_all(self, hops: list[Hop]) -> Iterator[Finding]:
        """Yield the receivers, on all hubs together; or that there are none, and the patterns that nearly match."""
        answers = [hop.explanation for hop in hops if hop.is_carried and hop.explanation is not None]
        first, kinds, outcomes, lost = answers[0], Counter[str](), Counter[str](), Counter[str]()
        for answer in answers:
            kinds.update(answer.kinds)
            outcomes.update(answer.outcomes)
            lost.update(answer.lost)
        to = "" if first.reader is None else f" of {self._name(first.reader)}"

        # 1. There are receivers, or that is withheld.
        count = kinds["client"] + kinds["program"]
        for answer in answers:
            if not answer.is_whole:
                said = {"yes": "somebody", "no": "nobody"}.get(answer.wanted, "it is unknown whether anybody")
                text = f"{said} receives it at {answer.address}; this user may not see clients of others"
                yield 30 if count else 58, text
        if count:
            sums = [f"{number:,} {outcome}" for outcome, number in outcomes.items()]
            sums += [f"{number:,} lost so far ({cause})" for cause, number in lost.items() if number]
            yield 25, f"{count:,} client{'s' * (count > 1)}{to} would receive it: {', '.join(sums)}"
            return

        # 2. There are none, as far as is known.
        asked = [hop.explanation for hop in hops if hop.explanation is not None]
        found = [answer for answer in asked if answer.reader is not None and answer.reader.clients]
        monitors = kinds["monitor"] + kinds["tap"]
        but = f": only monitors do, which count as nobody ({monitors:,})" if monitors else ""
        known = "" if all(map(_is_known, hops)) else ", as far as is known"
        if first.reader is not None and not found:
            yield 71, f"there is no client{to} here{known}"
        elif first.is_whole:
            yield 70, f"no client{to} receives it{known}{but}"
        if first.is_secret:
            yield 69, f"it is secret: {self._holder()}"
        # On a busy bus some pattern is always near. So links that do not carry the key come after the nearest one.
        for answer in answers if first.reader is None else found:
            for number, one in enumerate(answer.near):
                of = self._who(one.credentials) if one.credentials else "another hub"
                yield 44 - number if number else 68, f"nearly: {one.pattern} of {of}: {one.reason}"

    def _holder(self) -> str:
        """Describe who may subscribe to the key, which is secret. Ids after another prefix are those of another hub."""
        key, namespace = as_key(self._key), self._namespace
        is_ours = key.startswith(namespace.prefix + namespace.start)
        ids = (namespace if is_ours else Namespace(namespace.separator)).holder(key)
        if ids is None:
            return "no client can have the ids in the key, as the kernel does not write them so"
        if is_ours and self._local and ids[2] and not is_alive(ids[2]):
            return f"only process {ids[2]} might subscribe, and it is gone"
        return "only clients with the ids that stand in the key may subscribe"

    def of_hub(self, hop: Hop, at: str) -> Iterator[Finding]:
        """Yield findings of one hub about the sender, and each receiver and link; ``at`` names the hub."""
        answer = hop.explanation
        if answer is None:
            yield 72, f"unknown beyond {hop.address}: {hop.why}"
            return
        sender, reader = answer.sender, answer.reader
        if sender.reason == "import" and (hop.is_carried or answer.kinds):
            yield 75, f"{at}it does not come down from the parent: the import list of this hub leaves it out"
        if not hop.is_carried:
            return

        # 1. The sender, and the receiver in question.
        if sender.name != "parent":
            may = {True: "may publish it", False: "may not publish it", None: "may perhaps publish it, unknown"}
            weight = {True: 10, False: 100, None: 60}[sender.allowed]
            yield weight, f"{self._name(sender)} {may[sender.allowed]}: {sender.reason}"
        if sender.held:
            by = self._who(sender.held_by) if sender.held_by else "a receiver that this user may not see"
            yield 95, f"{at}{self._name(sender)} is not read from: it is held back by {by}"
        if not answer.is_settled:
            yield 90, f"{at}unknown: the hub has just started, and does not know yet what is wanted; ask again soon"
        if reader is not None and not reader.allowed and (reader.clients or not at or not answer.is_whole):
            text = "may not read it" if reader.allowed is False else "may perhaps read it, unknown"
            yield 60 + 25 * (reader.allowed is False), f"{at}{self._name(reader)} {text}: {reader.reason}"

        # 2. The fate of the message at its receivers, and on its links.
        for one in answer.receivers:
            yield self._of_receiver(one, answer, at)
        for link in answer.links:
            weight, text = _of_link(link)
            if text:
                yield weight, at + text

    def _of_receiver(self, one: ExplainedReceiver, answer: Explanation, at: str) -> Finding:
        client, kind = one.client, "" if one.kind == "client" else f"{one.kind} of "
        lost = "".join(f", {count:,} lost ({cause})" for cause, count in client.lost.items() if count)
        since = f" since {_moment(one.since)}" if lost and one.since else ""
        queue = (
            f"{client.waiting:,} of {answer.room:,} messages wait, {client.full:.0%} full, {client.soft}/{client.hard}"
        )
        who = f"{kind}{self._who(client.credentials)}"
        held = f"{one.pattern or 'everything'}: {queue}{lost}{since}"

        # A receiver that holds publishers back already comes before those that would.
        if one.holds:
            return 82, f"{at}{who} holds {one.holds:,} of its publishers back, for {one.holds_for:.1f} s; it has {held}"
        texts = {
            "lost": (80, f"it would be lost ({one.cause}) at {who}"),
            "kicked": (80, f"it would be lost, and disconnect its receiver, {who}"),
            "held": (80, f"its publisher would be held back by {who}"),
            "waits": (20, f"it would wait for {who}"),
            "echo": (5, f"{who} takes none of its own messages"),
            "gone": (5, f"{who} takes nothing any more"),
        }
        weight, text = texts.get(one.outcome, (5, f"it would go to {who}"))
        return weight, f"{at}{text}, which has {held}"

    def _who(self, credentials: str) -> str:
        """Describe a client: user, program, process and credential key."""
        uid, pid = ids_of(credentials)
        if uid is None:
            return credentials
        program = program_of(pid) if self._local and pid else ""
        return f"user {name_of_user(uid)}, {program or 'program'} {pid or '?'} ({credentials})"

    def _name(self, party: ExplainedParty) -> str:
        if not party.name:
            return "you"
        return f"user {name_of_user(party.uid)}" if party.name.isdigit() else self._who(party.name)


def _of_link(one: ExplainedLink) -> Finding:
    """Describe a link's problem; empty if the message is sent on, or nobody beyond wants the key."""
    link, where = one.link, one.link.address or one.link.credentials
    waiting, user = f"{link.waiting:,} messages wait", name_of_user(link.uid)
    since = f" since {_moment(one.away_since)}" if one.away_since else ""

    match one:
        case ExplainedLink(outcome="lost" | "kicked"):
            return 80, f"it would be lost ({one.cause}) on its way to {where} ({link.state}{since}): {waiting}"
        case ExplainedLink(reason="export"):
            return 45, f"it does not go up to {where}: the export list of this hub leaves it out"
        case ExplainedLink(reason="pruned"):
            return 45, f"it does not go up to {where}: the hub there said that nobody wants this key (pruned)"
        case ExplainedLink(reason="rules"):
            return (
                45,
                f"it does not go down to the hub of user {user} at {where}: the rules do not let that user read it",
            )
    if link.direction == "parent" and link.state != "joined":
        return 55 + 20 * one.carries, f"the parent at {where} is away ({link.state}){since}: {waiting}"
    return 20, f"it would wait for the hub at {where}: {waiting}" if one.outcome == "waits" else ""


def _is_known(hop: Hop) -> bool:
    """Whether a hub, if it gets the message at all, reported all its clients, and all links that carry it on."""
    answer = hop.explanation
    if answer is None or not hop.is_carried:
        return not hop.is_carried
    is_up = all(one.link.state == "joined" for one in answer.links if one.carries and one.link.number == 0)
    return answer.is_whole and answer.is_settled and is_up and len(answer.links) == answer.link_count


def _moment(since: float) -> str:
    return datetime.fromtimestamp(since).strftime("%H:%M:%S")
