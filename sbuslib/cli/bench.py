"""``sbus bench``: what a hub costs on this machine, beside a forwarder that does not think."""

from __future__ import annotations

import signal
import tempfile
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path

from .arguments import Parser, add_address
from .console import EXIT_FAILURE, EXIT_SUCCESS, tell
from .values import count, seconds, size

__all__ = ["add_bench"]


def add_bench(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Measure what a hub costs on this machine: messages a second, the hub's CPU time for each, what was lost, and "
        "how that compares with a forwarder in C that makes the same system calls and does nothing else."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus bench one ten trip                     three scenarios, in half a minute\n"
        "  sbus bench --list                           all scenarios\n"
        "  sbus bench -a /tmp/bus one                  against a daemon that runs already, whatever daemon it is\n"
        "  sbus bench --runs figures.json              every single run, for programs\n"
        "\n"
        "It starts a hub of its own, unless -a is given; scenarios that need one of their own are then left out. "
        "Each case is run once in each round, in turn; what is shown is the median of the rounds, with the quartiles "
        "in parentheses. The load and the forwarder are compiled on the spot, which needs a C compiler, "
        "cc(1). Other programs disturb figures: see the load that is shown with them."
    )
    parser.add_argument("scenarios", metavar="SCENARIO", nargs="*", help="what to measure; without: one ten four trip")
    add_address(parser, help="measure the daemon that listens there, not a hub of our own")
    parser.add_argument("--rounds", type=count, default=3, metavar="N", help="times that each is run (%(default)s)")
    parser.add_argument(
        "--window", type=seconds, default=0.3, metavar="TIME", help="how long each run takes, about (300ms)"
    )
    parser.hide("--window", "--seconds")
    parser.add_argument("--size", type=size, default=100, metavar="SIZE", help="bytes of a payload (%(default)s)")
    parser.add_argument("--runs", metavar="FILE", help="write every run to a file, as JSON")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.set_defaults(run=_bench)


def _bench(arguments: Namespace) -> int:
    from .. import __version__
    from ..bench.results import Plan, encode
    from ..bench.runner import Bench
    from ..bench.scenarios import SCENARIOS, find
    from ..bench.tables import terminal
    from ..errors import UsageError

    if arguments.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:<12} {scenario.title}")
        return EXIT_SUCCESS
    try:
        scenarios = [find(name) for name in arguments.scenarios or ("one", "ten", "four", "trip")]
    except KeyError as error:
        raise UsageError(f"there is no scenario {error.args[0]}; sbus bench --list shows which there are") from None
    plan = Plan(rounds=arguments.rounds, seconds=arguments.window, payload=arguments.size)

    # Whatever ends this program, the others that it started are to end, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sbus-bench-")))
        bench = Bench(stack, folder, plan, tell, version=__version__, address=arguments.address)
        results = bench.measure(scenarios)
    if arguments.runs is not None:
        Path(arguments.runs).write_bytes(encode(results))
    print(terminal(results), end="")
    return EXIT_SUCCESS if results.records else EXIT_FAILURE
