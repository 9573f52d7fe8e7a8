"""Covering of patterns: one covers another if it matches every key that the other matches.

``covers(p, q)`` means that *p* matches every key that *q* matches. By the theory in :mod:`sbuslib.matcher`, the *n*-th
segment of a pattern meets the *n*-th segment of a key and nothing else, so the keys of a pattern are a product of sets,
one for each segment; none of these sets is ever empty, and so one product lies within another exactly when each of its
sets does. So only two segments have to be compared. Written as a stem that ends in no star and then *c* stars, a
segment stands for

* itself, and
* where another segment follows: any text that starts with the stem and goes on with fewer than *c* stars;
* where it is the key's last: any text that starts with the stem, goes on with just *c* - 1 stars and then with a byte
  that is no star.

From this the rules in :func:`segment_covers` follow, with *t* and *d* for stem and stars of the narrower one. If
*d* is 0 there is one segment to look at. Otherwise there is no end to what follows *t*, so the wider one needs
stars too and *t* must begin with its stem. If *t* goes on after it, with *j* stars before anything else, then
every key has just *j* stars there; if *t* is the stem itself, they have any number below *d*, or *d* - 1 in
the last place. A pattern that ends in the separator matches keys of any greater length, the others keys of
one length only, which decides the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..matcher import Pattern, stars_after

__all__ = ["covers", "is_wider", "may_meet", "narrow", "overlap", "segment_covers"]


def segment_covers(p: bytes, q: bytes, last: bool) -> bool:
    """Return whether segment ``p`` matches all that ``q`` matches, as the ``last`` of a key or before others."""
    if p == q:
        return True

    # Else q has to begin with the stem of p, and the stars take the rest.
    stem = p.rstrip(b"*")
    stars = len(p) - len(stem)
    if not stars or not q.startswith(stem):
        return False

    narrower = q.rstrip(b"*")
    more = len(q) - len(narrower)
    if not more:  # q is one segment and no more: is it among those of p?
        met = stars_after(q, len(stem))
        return (met == stars - 1 and len(stem) + met < len(q)) if last else met < stars

    # q stands for many segments: all of them have to be among those of p.
    if narrower == stem:
        return more == stars if last else more <= stars
    met = stars_after(narrower, len(stem))
    return met == stars - 1 if last else met < stars


def covers(p: bytes, q: bytes, separator: bytes) -> bool:
    """Return whether ``p`` matches every key that ``q`` matches.

    >>> [covers(p, q, b"/") for p, q in ((b"a/", b"a/*/c"), (b"**/", b"*/"), (b"*/", b"**/"), (b"a/*", b"a/**"))]
    [True, True, False, False]
    """
    return is_wider(Pattern(p, separator), Pattern(q, separator))


def is_wider(wider: Pattern, narrower: Pattern) -> bool:
    """Return the same for patterns that were cut."""
    if not wider.raw or wider.raw == narrower.raw:
        return True
    pairs = list(zip(wider.segments, narrower.segments, strict=False))
    if wider.below:
        if len(narrower.segments) < len(wider.segments) + (not narrower.below):
            return False
        return all(segment_covers(a, b, False) for a, b in pairs)
    if narrower.below or len(wider.segments) != len(narrower.segments):
        return False
    return all(segment_covers(a, b, False) for a, b in pairs[:-1]) and segment_covers(*pairs[-1], True)


def overlap(p: bytes, q: bytes, separator: bytes) -> bool:
    """Return whether some key may match both: *False* is always right, *True* sometimes wrong."""
    return may_meet(Pattern(p, separator), Pattern(q, separator))


def may_meet(p: Pattern, q: Pattern) -> bool:
    """Return the same for patterns that were cut."""
    shorter, longer = (p, q) if len(p.segments) <= len(q.segments) else (q, p)
    # A pattern that goes on below has at least one segment more in each key.
    if len(shorter.segments) < len(longer.segments):
        if not shorter.below:
            return False
    elif shorter.below is not longer.below:
        return False
    for a, b in zip(shorter.segments, longer.segments, strict=False):
        if a == b:
            continue
        stem, stem_of_other = a.rstrip(b"*"), b.rstrip(b"*")
        if len(stem) == len(a) and len(stem_of_other) == len(b):
            return False
        if not (stem.startswith(stem_of_other) or stem_of_other.startswith(stem)):
            return False
    return True


def narrow(pattern: bytes, bounds: Iterable[bytes] | None, separator: bytes) -> list[bytes]:
    """Return the patterns that match all keys of ``pattern`` within one of ``bounds``, and none outside them.

    That is the pattern itself where a bound covers it, else each bound that it may meet. ``None``: no bounds.
    """
    if bounds is None:
        return [pattern]
    bounds, cut = list(bounds), Pattern(pattern, separator)
    if any(is_wider(Pattern(bound, separator), cut) for bound in bounds):
        return [pattern]
    return [bound for bound in bounds if overlap(pattern, bound, separator)]
