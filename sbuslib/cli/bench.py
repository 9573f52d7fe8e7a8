"""``sbus bench``: what a hub costs on this machine, beside a forwarder that does not think."""

from __future__ import annotations

import signal
import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path

from ..errors import SbusError
from .arguments import add_address
from .console import EXIT_FAILURE, EXIT_SUCCESS, EXIT_USAGE, complain, explain, tell

__all__ = ["add_arguments", "run_bench"]

EXIT_INTERRUPTED = 128 + signal.SIGINT
"""As a shell shows the end by that signal."""


def add_arguments(parser: ArgumentParser) -> None:
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
        "in parentheses. The load and the forwarder are compiled on the spot; where there is no cc(1), the load is in "
        "Python and there is no forwarder. Other programs disturb figures: see the load that is shown with them."
    )
    parser.add_argument("scenarios", metavar="SCENARIO", nargs="*", help="what to measure; without: one ten four trip")
    add_address(parser, help="measure the daemon that listens there, not a hub of our own")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="times that each is run (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=0.3, metavar="S", help="how long each run takes, about (%(default)s)"
    )
    parser.add_argument("--size", type=int, default=100, metavar="BYTES", help="length of a payload (%(default)s)")
    parser.add_argument("--runs", metavar="FILE", help="write every run to a file, as JSON")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.set_defaults(run=run_bench)


def run_bench(arguments: Namespace) -> int:
    """Run the command; its exit status."""
    from .. import __version__
    from ..bench.results import Plan, encode
    from ..bench.runner import Bench
    from ..bench.scenarios import SCENARIOS, find
    from ..bench.tables import terminal

    if arguments.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:<12} {scenario.title}")
        return EXIT_SUCCESS
    try:
        scenarios = [find(name) for name in arguments.scenarios or ("one", "ten", "four", "trip")]
    except KeyError as error:
        complain("sbus", f"there is no scenario {error.args[0]}; sbus bench --list shows which there are")
        return EXIT_USAGE
    if arguments.rounds < 1 or arguments.seconds <= 0 or arguments.size < 0:
        complain("sbus", "rounds and seconds are positive, and a size is not negative")
        return EXIT_USAGE
    plan = Plan(rounds=arguments.rounds, seconds=arguments.seconds, payload=arguments.size)
    # Whatever ends this program, the others that it started are to end, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sbus-bench-")))
            bench = Bench(
                stack,
                folder,
                plan,
                tell,
                version=__version__,
                address=arguments.address,
            )
            results = bench.measure(scenarios)
        if arguments.runs is not None:
            Path(arguments.runs).write_bytes(encode(results))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (SbusError, OSError) as error:
        return complain("sbus", explain(error, arguments.address))
    print(terminal(results), end="")
    return EXIT_SUCCESS if results.records else EXIT_FAILURE
