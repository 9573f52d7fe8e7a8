"""HTTP views of a bus, on this machine only: metrics for Prometheus, and a live page.

:func:`serve_metrics` runs in the process of a hub, :class:`Page` in a process of its own. Metrics need
``prometheus-client``, which the extra ``sbuslib[metrics]`` installs. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import load_lazily

if TYPE_CHECKING:
    from .metrics import serve_metrics as serve_metrics
    from .page import Page as Page

_HOMES = {"Page": "page", "serve_metrics": "metrics"}

__all__ = [*_HOMES]

__getattr__, __dir__ = load_lazily(__name__, _HOMES)
