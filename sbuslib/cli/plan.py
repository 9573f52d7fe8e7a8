"""``sbus plan``: what every link of a tree of hubs would carry."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

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

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Tell what every link of a tree of hubs would carry: flooded, and by interest as relays do it; and at which "
        "hub each client would cause least traffic, if no other client moves.\n\n"
        "TOPOLOGY is a file in TOML:\n"
        "  [hubs.root]\n"
        "  [hubs.plant]\n"
        '  above = "root"\n'
        "  [clients.heating]\n"
        '  hub = "plant"\n'
        '  subscribes = ["room/*/target"]\n'
        '  publishes = ["room/*/temp"]\n'
        "\n"
        "A recorded message is from the first client whose publishes matches its key, and whose uid and sender are "
        "those of the message, where they are given. Else it was published at the hub whose recorded is the id of the "
        "hub that recorded it, or at the root."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus plan lake tree.toml                  what was recorded, in the tree that the file describes\n"
        "  sbus plan --simulate 100000 --csv load    a synthetic tree with synthetic traffic\n\n" + jobs.SPARK
    )
    parser.add_argument("lake", metavar="LAKE", nargs="?", help="directory of the lake")
    parser.add_argument("topology", metavar="TOPOLOGY", nargs="?", help="file that describes the tree, in TOML")
    parser.add_argument("--hub", metavar="ID", help="only what this hub recorded; else what all did")
    parser.add_argument("--simulate", type=int, metavar="N", help="a synthetic tree of N hubs, instead of both")
    parser.add_argument("--fan-out", type=int, metavar="N", help="hubs directly below each, with --simulate (8)")
    add_output_arguments(parser, "plan.html")
    jobs.add_spark_arguments(parser)
    parser.set_defaults(run=lambda arguments: jobs.run(arguments, _plan))


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
