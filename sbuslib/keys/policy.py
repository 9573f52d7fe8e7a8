"""Rules of a configuration file: the keys and patterns that users and groups may publish and subscribe to.

A rule names users and groups, and the patterns that they may publish and subscribe to. In a pattern, ``%u`` stands for
the name of the user at hand. The grants of several rules to a user add up, and no rule takes one away. So:

* A user may publish a key that one of these patterns matches.
* A user may subscribe to a pattern that one of these patterns *covers* (:mod:`sbuslib.keys.covering`): the user may
read
  every key that it matches. A pattern that two of them cover only together is refused.
* A user whom no rule names may do neither.

**The rules do not apply to secrets.** Anybody may publish under a secret key, and only processes whose credentials are
in it may subscribe to it: :mod:`sbuslib.secrets` checks both. So a policy allows all keys and patterns with the
reserved token.

A :class:`Policy` is a value for ``Hub(authorize=)``. The hub asks it once for the :class:`Scope` of a user, and keeps
that with the user's clients: as long as it is in force, it does not change with the database of users.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from ..errors import UsageError
from ..matcher import Pattern
from ..secrets import OVERFLOW_ID, Credentials, Namespace
from ..wire.text import printable
from .covering import is_wider, narrow

__all__ = ["Grant", "Policy", "Rule", "Ruling", "Scope", "User", "Verb", "check_template"]

Verb: TypeAlias = Literal["publish", "subscribe"]


class User(NamedTuple):
    """A user as the system's database knows it. The name is empty for a user that has none."""

    name: bytes
    groups: frozenset[int]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Rule: the permissions of some users.

    ``users`` and ``groups`` are ids; ``everybody`` names all users. ``publish`` and ``subscribe`` are patterns that may
    have ``%u`` in them. ``label`` is the rule's place in its file, for reports.
    """

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    everybody: bool = False
    publish: tuple[bytes, ...] = ()
    subscribe: tuple[bytes, ...] = ()
    label: str = ""

    def templates(self) -> tuple[tuple[Verb, tuple[bytes, ...]], ...]:
        """The patterns of this rule for each verb, as they are written."""
        return ("publish", self.publish), ("subscribe", self.subscribe)


_OTHERS = 3
"""Patterns of the rules that are named where none of them allows something."""


class Grant(NamedTuple):
    """A pattern that a rule gives to a user for a verb: as it is written, and as it is for this user."""

    rule: Rule
    verb: Verb
    template: bytes
    pattern: bytes


class Ruling(msgspec.Struct, frozen=True):
    """Decision of a policy, with the rule that decided, and its pattern as written and as it is for this user.

    There is no rule where the answer is no, and where it is about a secret.
    """

    allowed: bool
    rule: Rule | None = None
    template: bytes = b""
    pattern: bytes = b""
    is_secret: bool = False
    others: tuple[Grant, ...] = ()
    """Where the answer is no, some of what the rules allow."""
    is_nameless: bool = False
    """Where the answer is no, whether patterns were left out because the user has no name that can stand in them."""

    def reason(self, verb: Verb, who: str = "this user") -> str:
        """The reason of the decision, in words."""
        if self.is_secret and verb == "publish":
            return "rules are not asked about secrets, and anybody may publish them"
        if self.is_secret:
            return "rules are not asked about secrets; only clients with these credentials may subscribe"
        if self.rule is None:
            nameless = "; this user has no name, so patterns with %u give it nothing" if self.is_nameless else ""
            return f"no rule lets {who} {verb} this{nameless}"
        template, pattern = (f'"{printable(text)}"' for text in (self.template, self.pattern))
        meant = "" if template == pattern else f", which is {pattern} for {who}"
        return f"{self.rule.label or 'a rule'}: {verb} {template}{meant}"


def check_template(pattern: bytes) -> None:
    """Raise :exc:`~sbuslib.errors.UsageError` for a pattern of a rule in which ``%`` stands for nothing."""
    if b"%" in pattern.replace(b"%%", b"").replace(b"%u", b""):
        raise UsageError("'%u' is the user's name and '%%' a percent sign; nothing else may follow a '%'")


def _fill_in(template: bytes, name: bytes) -> bytes | None:
    """Return the pattern for a user of this name; ``None`` if it needs a name and there is none."""
    parts = template.split(b"%%")
    if not name and any(b"%u" in part for part in parts):
        return None
    return b"%".join(part.replace(b"%u", name) for part in parts)


class Scope:
    """Permissions of one user. Two scopes are equal if they allow the same by the same patterns.

    :param origins: the rules that these patterns are from, the first one first.
    :param nameless: the verbs for which there are more patterns, which need a name that the user does not have.
    """

    def __init__(
        self,
        publish: Iterable[bytes],
        subscribe: Iterable[bytes],
        separator: bytes,
        origins: Iterable[Grant] = (),
        nameless: Iterable[Verb] = (),
    ) -> None:
        self.publish = tuple(dict.fromkeys(publish))  # patterns of keys
        self.subscribe = tuple(dict.fromkeys(subscribe))  # patterns of patterns
        self._separator = separator
        self._origins = tuple(origins)  # the first that gave a pattern decides
        self._nameless = frozenset(nameless)
        self._keys = [Pattern(pattern, separator) for pattern in self.publish]  # cut once
        self._patterns = [Pattern(pattern, separator) for pattern in self.subscribe]  # likewise

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scope):
            return NotImplemented
        return self.publish == other.publish and self.subscribe == other.subscribe

    __hash__ = None  # type: ignore[assignment]

    def allows(self, verb: Verb, key: bytes) -> bool:
        """Return whether the user may publish under a key, or subscribe to a pattern."""
        return self._deciding(verb, key) is not None

    def _deciding(self, verb: Verb, key: bytes) -> Pattern | None:
        """Return the first pattern that allows it."""
        if verb == "publish":
            return next((pattern for pattern in self._keys if pattern.matches(key)), None)
        wanted = Pattern(key, self._separator)
        return next((pattern for pattern in self._patterns if is_wider(pattern, wanted)), None)

    def explain(self, verb: Verb, key: bytes) -> Ruling:
        """Decide the same, and return the rule that decides."""
        found = self._deciding(verb, key)
        if found is None:
            others = tuple(one for one in self._origins if one.verb == verb)[:_OTHERS]
            return Ruling(False, others=others, is_nameless=verb in self._nameless)
        for origin in self._origins:
            if (origin.verb, origin.pattern) == (verb, found.raw):
                return Ruling(True, origin.rule, origin.template, origin.pattern)
        return Ruling(True, pattern=found.raw)

    def narrow(self, pattern: bytes) -> list[bytes]:
        """Return patterns for which the user gets all keys of ``pattern`` that it may read.

        That is ``pattern`` itself if one of the user's patterns covers it, else those of them that it may meet.
        """
        return narrow(pattern, self.subscribe, self._separator)


class Policy:
    """Decides by rules. A value for ``Hub(authorize=)``.

    :param rules: see :class:`Rule`.
    :param look_up: returns the name of a user, given by id, and the ids of its groups. It may block.
    :param separator: the hub's.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        look_up: Callable[[int], tuple[bytes, frozenset[int]]],
        separator: bytes,
    ) -> None:
        self.rules = tuple(rules)  # the first that allows it decides
        self._about_users = defaultdict[int, list[int]](list)  # places of the rules that name a user, by its id
        self._about_groups = defaultdict[int, list[int]](list)  # likewise of those that name a group
        self._about_everybody: list[int] = []  # places of the others
        self._look_up = look_up
        self._separator = separator
        self._namespace = Namespace(separator)  # which keys no rule is asked about
        for place, rule in enumerate(self.rules):
            if rule.everybody:
                self._about_everybody.append(place)
            for uid in rule.users:
                self._about_users[uid].append(place)
            for gid in rule.groups:
                self._about_groups[gid].append(place)

    def __call__(self, credentials: Credentials, verb: Verb, key: bytes) -> bool:
        """Return whether a client may publish under a key, or subscribe to a pattern. Asks the system about its user
        anew.
        """
        return self.is_free(key) or self.scope(credentials.uid).allows(verb, key)

    def is_free(self, key: bytes) -> bool:
        """Return whether a key or pattern uses the reserved token, so that the rules are not asked."""
        return self._namespace.uses_reserved(key)

    def scope(self, uid: int) -> Scope:
        """Return the permissions of a user, secrets aside. Asks the system about the user anew."""
        grants, nameless = self._find(uid)
        publish = (grant.pattern for grant in grants if grant.verb == "publish")
        subscribe = (grant.pattern for grant in grants if grant.verb == "subscribe")
        return Scope(publish, subscribe, self._separator, grants, nameless)

    def grants(self, uid: int) -> list[Grant]:
        """Return the patterns that the rules give a user, in their order. Asks the system about the user anew."""
        return self._find(uid)[0]

    def _find(self, uid: int) -> tuple[list[Grant], set[Verb]]:
        """Return the grants of a user, and the verbs for which a name is missing."""
        user = self._user(uid)
        places = {*self._about_everybody, *self._about_users.get(uid, ())}
        places.update(*(self._about_groups.get(gid, ()) for gid in user.groups))

        grants, nameless = list[Grant](), set[Verb]()
        for rule in (self.rules[place] for place in sorted(places)):
            for verb, templates in rule.templates():
                for template in templates:
                    pattern = _fill_in(template, user.name)
                    if pattern is None:
                        nameless.add(verb)
                    else:
                        grants.append(Grant(rule, verb, template, pattern))
        return grants, nameless

    def _user(self, uid: int) -> User:
        """Return a user, with a name only if it can stand in a pattern."""
        if uid == OVERFLOW_ID:  # it may be any user
            return User(b"", frozenset())
        user = User(*self._look_up(uid))
        # One segment, and no wildcard: with the separator '.', a user "ann.x" could else read keys below "ann".
        if self._separator in user.name or b"*" in user.name or b"\0" in user.name or user.name == b"!":
            return User(b"", user.groups)
        return user

    def explain(self, uid: int, verb: Verb, key: bytes) -> Ruling:
        """Return the decision for a user, and its reason. Asks the system about the user anew."""
        return Ruling(True, is_secret=True) if self.is_free(key) else self.scope(uid).explain(verb, key)
