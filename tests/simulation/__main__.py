"""``python -m tests.simulation``: plays worlds by seed, and shortens those that fail."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import clock


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed (default: 1)")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many (default: 100)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="worlds at a time (default: 1)")
    parser.add_argument(
        "--plan", type=Path, action="append", default=[], metavar="FILE", help="play a plan that was kept"
    )
    parser.add_argument("--checkout", metavar="FOLDER", help="play with the sbuslib of another checkout")
    parser.add_argument("--events", action="store_true", help="print what happens in each world")
    parser.add_argument("--as-it-is", action="store_true", help="do not shorten what fails")
    arguments = parser.parse_args()

    if arguments.checkout:
        sys.path.insert(0, arguments.checkout)
    clock.install()  # before anything else is imported
    from . import processes

    processes.install()
    from .command import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
