"""The list of scenarios."""

from __future__ import annotations

import pytest

from sbuslib.bench.scenarios import SCENARIOS, find


def test_scenarios_refer_to_existing_scenarios() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    for scenario in SCENARIOS:
        assert find(scenario.name) is scenario
        assert scenario.base is None or scenario.base in names
    with pytest.raises(KeyError):
        find("none")
