"""The plots of reports."""

from __future__ import annotations

import sys

import pytest

from sbuslib.errors import StateError
from sbuslib.spark.plots import bars, check_plots, plot


def test_labels_are_text_and_not_formulas() -> None:
    with plot() as (axes, picture):
        bars(axes, [b"$x^2$", "a" * 40, b""], [3, 2, 1])
    (svg,) = picture
    assert svg.startswith("<svg")
    assert ">$x^2$<" in svg
    assert "a" * 33 + "\N{HORIZONTAL ELLIPSIS}" in svg


def test_the_error_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(StateError, match=r"matplotlib is missing: pip install 'sbuslib\[report\]'"):
        check_plots()
