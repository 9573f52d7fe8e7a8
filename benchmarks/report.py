"""Everything measured in one run on this machine: the hub, the limit, and the brokers that are installed.

    python benchmarks/report.py             all, in some six minutes
    python benchmarks/report.py --quick     a look, in one and a half
    python benchmarks/report.py --readme    and rewrite the tables of the documentation

It writes ``build/report/index.html`` and, beside it, every single run as JSON. Run it on a machine that does nothing
else. It needs a C compiler. What is missing is left out, and told: the servers of other brokers, and, for their Python
clients and the plots, ``pip install '.[bench]'``. How it measures is told in ``docs/performance.md``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from comparison import report

import sbuslib

if __name__ == "__main__":
    sys.exit(report.main(Path(__file__).parent.parent, sbuslib.__version__))
