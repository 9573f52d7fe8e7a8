"""``sbus plan``: what every link of a tree of hubs would carry."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from . import jobs
from .report import (
    add_choice,
    add_output_arguments,
    check_output,
    deliver,
    progress,
    recorded,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from ..spark.plan import Flow, Interest
    from ..spark.topology import Tree

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
    add_choice(parser)
    parser.add_argument("--simulate", type=int, metavar="N", help="a synthetic tree of N hubs, instead of both")
    parser.add_argument("--fan-out", type=int, metavar="N", help="hubs directly below each, with --simulate (8)")
    add_output_arguments(parser, "plan.html")
    jobs.add_spark_arguments(parser)
    parser.set_defaults(run=lambda arguments: jobs.run(arguments, _plan, light=arguments.simulate is not None))


def _plan(arguments: Namespace) -> jobs.Work | None:
    from ..errors import UsageError

    check_output(arguments)
    if arguments.simulate is not None:
        if arguments.lake or arguments.hub or arguments.start is not None or arguments.end is not None:
            raise UsageError(
                "--simulate makes the tree and its traffic: leave LAKE, TOPOLOGY and which records count out"
            )
        _simulate(arguments)
        return None
    if not arguments.topology:
        raise UsageError("LAKE and TOPOLOGY are needed, or --simulate")
    if arguments.fan_out:
        raise UsageError("--fan-out is for --simulate")
    return _as_recorded(arguments)


def _simulate(arguments: Namespace) -> None:
    from ..spark import simulate

    progress(f"routing the traffic of {arguments.simulate:,} hubs")
    tree = simulate.tree(arguments.simulate, arguments.fan_out or simulate.FAN_OUT)
    _deliver(arguments, tree, simulate.traffic(tree), simulate.interests(tree))


def _as_recorded(arguments: Namespace) -> jobs.Work:
    from ..spark import plan
    from ..spark.topology import Topology

    topology = Topology.read(arguments.topology)
    rows = recorded(arguments)

    def work(spark: SparkSession) -> None:
        flows = plan.recorded(rows(spark), topology)
        progress("routing what was recorded")
        _deliver(arguments, topology.tree, flows, plan.interests(topology), topology.separator.encode())

    return work


def _deliver(
    arguments: Namespace, tree: Tree, flows: Iterable[Flow], interests: Iterable[Interest], separator: bytes = b"/"
) -> None:
    import gc

    from ..spark import reports
    from ..spark.plan import classes

    # For a large tree millions of objects are made, none of them garbage: to look for it takes a third of the time.
    gc.disable()
    place = arguments.simulate is None
    deliver(reports.plan(tree, classes(flows, interests, separator), place=place), arguments)
