"""The narrowest rules that would have allowed some keys, as long as they can be read.

Segments are written out, up to :data:`WRITTEN` different ones under the same prefix. Where there are more, one ``*``
stands for the segment that varies. These cannot be written out, and are wider than need be:

* A key that ends in the separator: the pattern that matches it matches all keys that go on after it.
* A segment that ends in stars: in a pattern, they stand for more than themselves.
* A segment that is not UTF-8, as a file of rules is, or longer than :data:`SEGMENT_BYTES`: a ``*`` stands for the rest.
* A key of more than :data:`SEGMENTS`: its pattern ends there, and matches all that goes on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from ..matcher import SEPARATOR, stars_after
from ..secrets import OVERFLOW_ID, Namespace
from ..statistics import HeldPatterns
from .rehearsal import Flow

WRITTEN: Final = 20
"""Most segments that are written out under one prefix: a screen shows them, and who reads a rule can judge each."""

SEGMENT_BYTES: Final = 128
"""Most bytes of a segment that is written out: more do not fit a line."""

SEGMENTS: Final = 32
"""Most segments that are looked at, which bounds the depth of the recursion. No real key has so many."""

_Tail: TypeAlias = "tuple[bytes, ...]"
"""The last segments of a key or of a pattern; an empty one at the end matches all keys that go on."""


def allowing(flows: Iterable[Flow], separator: bytes) -> dict[int, list[bytes]]:
    """Return patterns that match all keys under which messages were published, for each user that a hub may ask about.

    Keys with the reserved token need no pattern, and unknown senders have none.
    """
    keys, uses_reserved = defaultdict[int, set[bytes]](set), Namespace(separator).uses_reserved
    for flow in flows:
        if not uses_reserved(flow.key):
            for uid in flow.users:
                keys[uid].add(flow.key)
    return {uid: narrowest(keys[uid], separator) for uid in sorted(keys)}


def narrowest(keys: Iterable[bytes], separator: bytes) -> list[bytes]:
    """Patterns that match all of some keys, by the rule in the module's docstring; in order."""
    tails = set[_Tail]()
    for key in keys:
        segments = key.split(separator, SEGMENTS)
        tails.add((*segments[:SEGMENTS], b"") if len(segments) > SEGMENTS else tuple(segments))
    return sorted(map(separator.join, _patterns(tails)))


def _patterns(tails: set[_Tail]) -> Iterator[_Tail]:
    """Patterns for the tails of keys that have the same prefix."""
    # 1. A key ends here in the separator: that pattern matches all the others.
    if (b"",) in tails:
        yield (b"",)
        return

    # 2. Keys that end with the next segment.
    last = _written({tail[0] for tail in tails if len(tail) == 1}, last=True)
    yield from ((segment,) for segment in set(last.values()))

    # 3. Keys that go on after it, together for all that one pattern stands for.
    going_on = [tail for tail in tails if len(tail) > 1]
    written = _written({tail[0] for tail in going_on}, last=False)
    further = defaultdict[bytes, set[_Tail]](set)
    for tail in going_on:
        further[written[tail[0]]].add(tail[1:])
    for segment, rest in further.items():
        yield from ((segment, *more) for more in _patterns(rest))


def _written(segments: set[bytes], last: bool) -> dict[bytes, bytes]:
    """How each of the segments under one prefix is written in a pattern, as the ``last`` of a key or before others."""
    if len(segments) <= WRITTEN:
        return {one: one if _stem(one) == len(one) else _starred(one, _stem(one), last) for one in segments}
    starred = {one: _starred(one, 0, last) for one in segments}
    widest = max(starred.values(), key=len)
    return starred if last else dict.fromkeys(segments, widest)  # before others, more stars match what fewer do


def _stem(segment: bytes) -> int:
    """How many bytes of a segment can be written out: all, or those before the first that cannot, and before stars."""
    stem = segment[:SEGMENT_BYTES]
    try:
        stem.decode()
    except UnicodeDecodeError as error:
        stem = stem[: error.start]
    return len(segment) if len(stem) == len(segment) else len(stem.rstrip(b"*"))


def _starred(segment: bytes, stem: int, last: bool) -> bytes:
    """A segment of a pattern that matches a key's segment by its first bytes: see :mod:`sbuslib.matcher`."""
    met = stars_after(segment, stem)
    if last and stem + met == len(segment):
        return segment  # nothing but stars follows, which no wildcard takes at the end of a key
    return segment[:stem] + b"*" * (met + 1)


def held(clients: Iterable[HeldPatterns], separator: bytes) -> dict[int, list[bytes]]:
    """Return the patterns that a hub's clients subscribe to, by user, as far as they can be written."""
    namespace, found = Namespace(separator), defaultdict[int, set[bytes]](set)
    for client in clients:
        for process in namespace.chain(client.credentials.encode())[-1:]:
            found[process.uid].update(pattern for pattern in client.patterns if is_text(pattern))
    return {uid: sorted(found[uid]) for uid in sorted(found) if uid != OVERFLOW_ID}


def is_text(pattern: bytes) -> bool:
    """Whether a pattern can be written into a file of rules."""
    try:
        pattern.decode()
    except UnicodeDecodeError:
        return False
    return True


def rules_text(
    names: Mapping[int, str | int],
    publish: Mapping[int, list[bytes]],
    subscribe: Mapping[int, list[bytes]],
    separator: bytes,
) -> Iterator[str]:
    """The lines of a file with a rule for each user.

    :param names: how each user is written: of all that may do anything.
    """
    if separator != SEPARATOR:
        yield f"separator = {_quoted(separator)}"
    if not names:
        yield "rules = []"  # nobody may do anything: without any rules, everybody may do everything
    for uid in sorted(names):
        yield ""
        yield "[[rules]]"
        yield f"users = [{_quoted(names[uid])}]"
        if any(pattern.endswith(separator) or not pattern for pattern in publish.get(uid, ())):
            yield "# What is empty or ends in the separator allows all that begins so: a key was so, or very long."
        for verb, patterns in ("publish", publish.get(uid)), ("subscribe", subscribe.get(uid)):
            if patterns:
                yield f"{verb} = ["
                yield from (f"    {_quoted(pattern.replace(b'%', b'%%'))}," for pattern in patterns)
                yield "]"


def _quoted(value: str | int | bytes) -> str:
    """A number, or a string of TOML that cannot steer a terminal."""
    if isinstance(value, int):
        return str(value)
    text = value.decode() if isinstance(value, bytes) else value
    plain = (one if one.isprintable() and one not in '"\\' else f"\\U{ord(one):08x}" for one in text)
    return f'"{"".join(plain)}"'
