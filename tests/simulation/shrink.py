"""Shortens a plan that fails, with Hypothesis: fewer actors, and fewer steps, of which the last ones go first."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from .plan import Plan
from .runner import play_apart
from .world import Report


def shorten(plan: Plan, report: Report) -> tuple[Plan, Report]:
    """Return the shortest plan that was found to fail, and its report."""
    best = plan, report
    actors = dict.fromkeys(step.split()[1] for step in plan.steps if not step.startswith("wait"))

    @settings(
        database=InMemoryExampleDatabase(),
        phases=[Phase.reuse, Phase.shrink],
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        max_examples=400,
    )
    @given(st.data())
    def plays(data: st.DataObject) -> None:
        nonlocal best
        kept = {actor for actor in actors if data.draw(st.booleans())}
        steps = []
        for step in plan.steps:
            if not kept.issuperset(actors.keys() & step.split()):
                continue
            if not data.draw(st.booleans()):
                break
            if data.draw(st.booleans()):
                steps.append(step)
        tried = Plan(plan.seed, tuple(steps))
        found = play_apart(tried)
        if found.problems:
            if len(steps) <= len(best[0].steps):
                best = tried, found
            raise AssertionError

    # Bytes of all ones are the whole plan, which Hypothesis remembers when it fails, and shortens when it is called.
    with suppress(AssertionError):
        plays.hypothesis.fuzz_one_input(b"\xff" * (16 * len(plan.steps) + 64))  # type: ignore[attr-defined]
    with suppress(AssertionError):
        plays()
    return best
