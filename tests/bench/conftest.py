"""Lets these tests import ``benchmarks``, which is in the checkout and is never installed."""

from __future__ import annotations

import sys

from support import ROOT

# Last, so that `sbuslib` is still the installed one.
sys.path.append(str(ROOT))
