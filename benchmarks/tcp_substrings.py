"""What 10,000 substrings of one peer cost: a name that was never seen, and changes while names are matched.

    python benchmarks/tcp_substrings.py [COUNT]

The figure for a new name is the best of twenty rounds of 1,000, since other programs disturb it.
Target: less than 10 microseconds a name, and no change that keeps traffic waiting.
"""

from __future__ import annotations

import random
import sys
import time

from sbuslib.tcp.substrings import Substrings

NAMES = 20_000


def spent_on(index: Substrings[str], names: list[str]) -> float:
    started = time.perf_counter()
    for name in names:
        index.subscribers(name)
    return (time.perf_counter() - started) / len(names)


def measure(kind: str, texts: list[str], names: list[str]) -> None:
    index: Substrings[str] = Substrings()
    worst = 0.0
    started = time.perf_counter()
    for text in texts:
        before = time.perf_counter()
        index.add(text, "peer")
        worst = max(worst, time.perf_counter() - before)
    filled = time.perf_counter() - started
    fresh = min(spent_on(index, names[start : start + 1_000]) for start in range(0, len(names), 1_000))
    hot = names[:100]
    started = time.perf_counter()
    for _ in range(200):
        for name in hot:
            index.subscribers(name)
    remembered = (time.perf_counter() - started) / (200 * len(hot))
    changes = [f"//changing/{number}" for number in range(min(2_000, len(texts)))]
    slowest = spent = 0.0
    for number, text in enumerate(changes):
        before = time.perf_counter()
        index.add(text, "peer")
        for name in hot[:10]:
            index.subscribers(name)
        index.remove(texts[number], "peer")
        took = time.perf_counter() - before
        spent += took
        slowest = max(slowest, took)
    print(
        f"{kind}: {len(texts):,} substrings; add {filled / len(texts) * 1e6:.1f} us each, worst {worst * 1e3:.1f} ms; "
        f"a new name {fresh * 1e6:.2f} us, a known one {remembered * 1e6:.2f} us; "
        f"add, 10 names, remove: {spent / len(changes) * 1e6:.1f} us, worst {slowest * 1e3:.1f} ms"
    )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    chance = random.Random(5)
    paths = [f"//org{number % 7}/room{number}/sensor" for number in range(count)]
    names = [f"//org{chance.randrange(7)}/room{chance.randrange(count * 2)}/sensor/{n}" for n in range(NAMES)]
    measure("paths", paths, names)
    marks = [f"{chance.getrandbits(128):032x}" for _ in range(count)]
    names = [f"{chance.getrandbits(64):016x}/{marks[chance.randrange(count)]}" for _ in range(NAMES)]
    measure("random text", marks, names)


if __name__ == "__main__":
    main()
