"""Native threads, also where gevent has patched the standard library."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["unpatched"]


def unpatched(module: str, name: str) -> Any:
    """What the standard library has under this name, also where gevent has put its own there. Never loads gevent."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None:
        return monkey.get_original(module, name)
    return getattr(__import__(module), name)
