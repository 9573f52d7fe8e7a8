"""Patterns that nearly match a key, and what keeps them from it. Pure."""

from __future__ import annotations

import re

from ..matcher import Pattern
from ..wire.text import printable

MOST: int = 3
"""Near misses that are kept."""

_CUT = re.compile(rb"[/.:]")  # what buses separate by
_BELOW = (b"#", b">", b"**")  # what stands for all below elsewhere
_ONE = (b"*", b"+")  # for one segment, here or elsewhere


class NearMisses:
    """The patterns of many that miss one key by least, nearest first, each with how it does."""

    def __init__(self, key: bytes, separator: bytes) -> None:
        self._key = key
        self._separator = separator
        self._words = self._cut(key)  # of the key
        self.best: list[tuple[int, bytes, bytes, str]] = []
        """How far off, its name, the pattern, and what keeps it from matching."""

    def _cut(self, text: bytes) -> list[bytes]:
        return [word for word in _CUT.split(text.lower().replace(self._separator, b"/")) if word]

    def look_at(self, name: bytes, raw: bytes) -> None:
        """Compare a pattern with the key; ``name`` is the pattern with its mark."""
        found = self._compare(raw)
        if found is not None and not any(raw == other for _, _, other, _ in self.best):
            self.best = sorted([*self.best, (found[0], name, raw, found[1])])[:MOST]

    def _compare(self, raw: bytes) -> tuple[int, str] | None:
        """How far off a pattern is, and by what; ``None``: it matches, or has nothing to do with the key."""
        words, key = self._cut(raw), self._words
        below = raw[-1:] in (b"/", b".", b":", self._separator)
        if words and words[-1] in _BELOW:
            below = bool(words.pop())
        more = len(words) - len(key)
        if more > 1:
            return None
        pairs = list(zip(words, key, strict=False))
        misfits = [number for number, pair in enumerate(pairs) if pair[0] != pair[1] and not _fits(*pair)]

        # 1. Word by word it matches: what differs is how it is written.
        if not misfits and (more == 0 or (more < 0 and below)):
            return None if Pattern(raw, self._separator).matches(self._key) else (0, self._spelling(raw))

        # 2. Nothing in common, but for wildcards.
        if not any(word == of_key for word, of_key in pairs):
            return None

        # 3. Some segments too few, or one too many.
        if not misfits and more < 0:
            return 1, f"the key goes on after it: {printable(raw + self._separator)} matches all below"
        if more == 1 and _fit_but_one(words, key):
            return 1, "it has one segment more"
        if more == -1 and not below and _fit_but_one(key, words):
            return 1, "the key has one segment more"

        # 4. One segment is another word.
        if more == 0 and len(misfits) == 1:
            word, of_key = pairs[misfits[0]]
            is_alike = word[:2] == of_key[:2] or word[-2:] == of_key[-2:]
            return 3 - is_alike, f"segment {misfits[0] + 1} is {printable(word)}, and {printable(of_key)} in the key"
        return None

    def _spelling(self, raw: bytes) -> str:
        """Return the difference between the key and a pattern of the same words."""
        separator, key = self._separator, self._key
        if Pattern(raw.lower(), separator).matches(key.lower()):
            return "upper and lower case differ"
        shown = printable(separator)
        used, used_by_key = set(_CUT.findall(raw)), set(_CUT.findall(key))
        if used and used_by_key and used != used_by_key:
            wrong = "the key" if separator in used else "it"
            return f"{wrong} is separated in another way: this hub separates by {shown}"
        if foreign := next((word for word in (*_BELOW, b"+") if word in raw.split(separator)), None):
            return f"{printable(foreign)} is no wildcard here: * is one segment, {shown} at the end all below"
        if any(b"*" in segment.rstrip(b"*") for segment in raw.split(separator)):
            return "nothing can match after a * in the middle of a segment"
        return f"there is a {shown} more, or one is missing, at the beginning, at the end or in between"


def _fits(word: bytes, of_key: bytes) -> bool:
    """Whether a segment of a pattern means one of a key, also as other buses write it."""
    if word == of_key or word in _ONE:
        return True
    stem, star, rest = word.partition(b"*")
    return bool(star) and of_key.startswith(stem) and of_key.endswith(rest.strip(b"*"))


def _fit_but_one(longer: list[bytes], shorter: list[bytes]) -> bool:
    """Whether two lists of segments fit each other once one segment is left out of the longer."""
    at = next(
        (n for n, (a, b) in enumerate(zip(longer, shorter, strict=False)) if not (_fits(a, b) or _fits(b, a))),
        len(shorter),
    )
    return all(_fits(a, b) or _fits(b, a) for a, b in zip(longer[at + 1 :], shorter[at:], strict=True))
