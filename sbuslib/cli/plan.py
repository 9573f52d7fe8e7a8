"""``sbus plan``: what every link of a tree of hubs would carry."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any

from . import jobs
from .report import (
    add_output_arguments,
    check_output,
    deliver,
    progress,
    recorded,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to those of ``sbus``."""
    plan: ArgumentParser = commands.add_parser(
        "plan",
        help="what every link of a tree of hubs would carry, and where clients would better sit",
        description="Tell what every link of a tree of hubs would carry, flooded and by interest, and where clients\n"
        "would better sit.",
        epilog="examples:\n"
        "  sbus plan lake tree.toml                  what was recorded, in the tree that the file describes\n"
        "  sbus plan --simulate 100000 --csv load    a synthetic tree with synthetic traffic\n\n"
        "The file: see docs/reports.md, and sbus(1).\n\n" + jobs.SPARK,
        formatter_class=RawDescriptionHelpFormatter,
    )
    plan.add_argument("lake", metavar="LAKE", nargs="?", help="directory of the lake")
    plan.add_argument("topology", metavar="TOPOLOGY", nargs="?", help="file that describes the tree, in TOML")
    plan.add_argument("--hub", metavar="ID", help="only what this hub recorded; else what all did")
    plan.add_argument("--simulate", type=int, metavar="N", help="a synthetic tree of N hubs, instead of both")
    plan.add_argument("--fan-out", type=int, metavar="N", help="hubs directly below each, with --simulate (8)")
    add_output_arguments(plan, "plan.html")
    jobs.add_spark_arguments(plan)
    plan.set_defaults(run=lambda arguments: jobs.run(arguments, _plan))


def _plan(arguments: Namespace) -> jobs.Work:
    from ..errors import UsageError

    check_output(arguments)
    if arguments.simulate is not None:
        if arguments.lake or arguments.hub:
            raise UsageError("--simulate makes the tree and its traffic: leave LAKE, TOPOLOGY and --hub out")
        return _simulated(arguments)
    if not arguments.topology:
        raise UsageError("LAKE and TOPOLOGY are needed, or --simulate")
    if arguments.fan_out:
        raise UsageError("--fan-out is for --simulate")
    return _as_recorded(arguments)


def _simulated(arguments: Namespace) -> jobs.Work:
    from ..spark import reports, simulate
    from ..spark.plan import route

    fan_out = arguments.fan_out or simulate.FAN_OUT
    simulate.check_tree(arguments.simulate, fan_out)

    def work(spark: SparkSession) -> None:
        hubs = simulate.tree(spark, arguments.simulate, fan_out).persist()
        progress(f"routing the traffic of {arguments.simulate:,} hubs")
        routed = route(simulate.traffic(hubs), simulate.interests(hubs))
        deliver(reports.plan(routed, hubs, place=False), arguments)

    return work


def _as_recorded(arguments: Namespace) -> jobs.Work:
    from ..spark import reports
    from ..spark.plan import published, route
    from ..spark.topology import Topology, hubs_frame, interests_frame

    topology = Topology.read(arguments.topology)
    rows = recorded(arguments)

    def work(spark: SparkSession) -> None:
        found = published(rows(spark), topology)
        progress("routing what was recorded")
        routed = route(found, interests_frame(spark, topology), topology.separator.encode())
        deliver(reports.plan(routed, hubs_frame(spark, topology)), arguments)

    return work
