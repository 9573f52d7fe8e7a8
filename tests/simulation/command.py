"""What ``python -m tests.simulation`` prints."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic

from .oracle import OPEN
from .plan import Plan, draw_plan, read_plan
from .runner import play_all
from .shrink import shorten
from .world import Report


def run(arguments: Namespace) -> int:
    """Play, and print what fails. Returns the exit status."""
    began, worlds, failed, deliveries, seconds = monotonic(), 0, 0, 0, 0.0
    for plan, report in play_all(_plans(arguments), arguments.jobs):
        worlds += 1
        deliveries += report.deliveries
        seconds += report.seconds
        if arguments.events:
            print(*report.events, sep="\n")
        if not arguments.plan:
            report = without_open(report)
        if report.problems:
            failed += 1
            _print_failure(plan, report, arguments.as_it_is)
    print(
        f"{worlds} worlds, {failed} failed: {deliveries:,} deliveries, {seconds / 3600:.1f} hours in"
        f" {monotonic() - began:.1f} s"
    )
    return bool(failed)


def without_open(report: Report) -> Report:
    """A report without the problems that are known."""
    problems = tuple(one for one in report.problems if not any(known in one for known in OPEN))
    return replace(report, problems=problems)


def _plans(arguments: Namespace) -> Iterator[Plan]:
    if arguments.plan:
        yield from map(read_plan, arguments.plan)
    else:
        yield from map(draw_plan, range(arguments.first, arguments.first + arguments.seeds))


def _print_failure(plan: Plan, report: Report, as_it_is: bool) -> None:
    print(f"seed {plan.seed}:", *report.problems[:5], sep="\n    ")
    if not as_it_is:
        shorter, report = shorten(plan, report)
        print("shortest plan that fails:", *str(shorter).splitlines(), sep="\n    ")
        print("its events:", *report.events, sep="\n    ")
