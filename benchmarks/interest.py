"""What a link's bookkeeping of interest costs: a pattern more or less below another that covers it.

Run ``python benchmarks/interest.py``. What a hop over a relay costs is the scenario ``relay`` of ``sbus bench``.
"""

from __future__ import annotations

import os
import sys
import time

from sbuslib.interest import Interest

PATTERNS = 100_000


def main() -> None:
    print(f"{os.uname().release}, Python {sys.version.split()[0]}")
    link = Interest()
    link.add(b"room/")
    patterns = [b"room/%d/*" % n for n in range(PATTERNS)]
    for name, change in (("add", link.add), ("remove", link.remove)):
        started = time.process_time()
        for pattern in patterns:
            change(pattern)
        each = (time.process_time() - started) / len(patterns)
        print(f"{name} one of {PATTERNS:,} patterns below a covering one: {each * 1e6:.1f} µs; {len(link)} announced")


if __name__ == "__main__":
    main()
