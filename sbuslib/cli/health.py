"""``sbus ping``, ``hz``, ``doctor``, ``whoami`` and ``bench``: whether a hub answers, how quickly, and at what cost."""

from __future__ import annotations

import signal
from argparse import Namespace

from .arguments import Parser, add, add_address
from .console import EXIT_FAILURE, EXIT_SUCCESS, begin_to_show, show_status
from .tables import columns, plain, show_json

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from typing import Final

    from ..monitor.rates import Row


MEASURED: Final = ("clients", "waiting", "lost", "kicked", "dropped", "links", "warnings", "problems")
"""The values of a hub for which ``sbus doctor`` takes limits."""


def add_ping(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Ask a hub for an answer, again and again, and show how long each takes. When an answer comes, all that the "
        "client has sent before is in force. With --tree, the other hubs of the tree answer, too, except those of "
        "users that are not trusted. When the hub goes away, the command prints that and waits for it."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus ping -n 4\n"
        "  sbus ping --tree -n 1 --timeout 5s          is every hub of the tree there?\n"
        "\n"
        "exit status:\n"
        "  0   every answer came\n"
        "  1   none came in time, or that of the tree was partial: some hub did not answer\n"
    )

    add_address(parser)
    add(parser, "-n --count N", "ask N times; else until Ctrl-C")
    parser.hide("-n", "-c")  # as ping(8) has it
    add(parser, "-i --interval TIME", "how often (1)", default=1.0)
    add(parser, "--timeout TIME", "wait at most TIME for each answer (10)", default=10.0)
    add(parser, "--tree", "ask the whole tree")
    add(parser, "--json", "a JSON object a line for each answer, in seconds")


def run_ping(arguments: Namespace) -> int:
    from itertools import count as numbers
    from time import perf_counter, sleep

    from ..errors import DisconnectedError
    from . import messages

    times: list[float] = []
    missed = partial = False
    begin_to_show()
    try:
        with messages.connected(arguments, lasting=True, timeout=arguments.timeout) as client:
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # and not ignored
                signal.signal(signal.SIGINT, signal.default_int_handler)  # the summary comes after Ctrl-C
            client.sync()  # the first answer takes longer: the client makes room for it
            where = plain(client.address)
            for number in numbers(1) if arguments.count is None else range(1, arguments.count + 1):
                if number > 1:
                    sleep(arguments.interval)
                began = perf_counter()
                try:
                    scope = client.sync("tree" if arguments.tree else "local")
                except DisconnectedError:  # on_disconnect has shown it, and the client waits for the hub
                    missed = True
                    continue
                times.append(perf_counter() - began)
                partial = partial or scope == "partial"
                if arguments.json:
                    show_json({"address": client.address, "number": number, "time": times[-1], "scope": str(scope)})
                    continue
                more = f" scope={scope}" if arguments.tree else ""
                more += " (hubs of users that are not trusted were not waited for)" if scope.trusted_only else ""
                print(f"{where}: number={number} time={times[-1] * 1_000:.3f} ms{more}", flush=True)
    except KeyboardInterrupt:  # how it ends without a count
        pass
    finally:
        if times and not arguments.json:
            least, most, mean = min(times), max(times), sum(times) / len(times)
            print(f"least/mean/most = {least * 1_000:.3f}/{mean * 1_000:.3f}/{most * 1_000:.3f} ms")
    return EXIT_FAILURE if partial or missed else EXIT_SUCCESS


def add_hz(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Measure how often messages come under each key that matches one of the patterns, and print a table for each "
        "window of time: messages and bytes of payload a second, and the mean, standard deviation and maximum of the "
        "intervals between messages, in milliseconds. Times are those at which this program reads, so messages that it "
        "reads together have no interval between them. Messages that the hub lost are reported on standard error."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus hz ''                              everything, every second, until Ctrl-C\n"
        "  sbus hz beat -n 1 --timeout 5s          one table, if a beat comes soon\n"
        "  sbus hz --json '' | jq '.keys[0].rate'"
    )

    add_address(parser)
    add(parser, "PATTERN...", "pattern of routing keys")
    add(parser, "--window TIME", "how long each table measures (1)", default=1.0)
    add(parser, "--rows N", "show the N fastest of the first 1,000 keys, and all others together (20)", default=20)
    add(parser, "-n --count N", "exit after N tables")
    add(parser, "--timeout TIME", "exit with status 1 when no message comes for TIME")
    add(parser, "--json", "a JSON object for each table: intervals in seconds, keys as in sub --json, null for others")


def run_hz(arguments: Namespace) -> None:
    from ..monitor.rates import measure
    from . import messages

    options = {} if arguments.timeout is None else {"timeout": arguments.timeout}
    with messages.connected(
        arguments, *arguments.patterns, lasting=True, monitor=True, on_notice=messages.show_notice, **options
    ) as client:
        tables = measure(client, arguments.window, shown=arguments.rows, timeout=arguments.timeout)
        for number, rows in enumerate(tables, 1):
            if arguments.json:
                _show_json(rows, arguments.window)
            else:
                print(_to_text(rows), flush=True)
            if number == arguments.count:
                break


def _to_text(rows: list[Row]) -> str:
    def cells(row: Row) -> list[str]:
        intervals = (row[column] for column in ("mean", "deviation", "longest"))
        return [
            f"{row['rate']:,.1f}",
            f"{row['bytes']:,.0f}",
            *("-" if one is None else f"{one * 1000:,.3f}" for one in intervals),
            "(others)" if row["key"] is None else row["key"].decode("utf-8", "surrogateescape"),
        ]

    return "\n".join(columns([["RATE", "BYTES", "MEAN", "DEVIATION", "MAX", "KEY"], *map(cells, rows)], 0))


def _show_json(rows: list[Row], window: float) -> None:
    import time

    from .messages import json_field

    keys = [{**row, "key": None, **({} if row["key"] is None else json_field("key", row["key"]))} for row in rows]
    show_json({"time": round(time.time(), 3), "window": window, "keys": keys})


def add_doctor(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Examine the hub, and the way to it: addresses, permissions, descriptors, buffers, namespaces, the "
        "clock, what the hub offers and, if it trusts this user, lost messages, who floods, who reads too slowly, and "
        "the links up to the root. Each finding is ok, a warning or a problem. The last two come with advice."
    )
    parser.epilog = (
        "exit status:\n"
        "  0   there is no problem\n"
        "  1   there is one\n"
        "\n"
        "With --warn or --critical it is a plugin for a monitoring system, and prints one line with the measured\n"
        f"values: {', '.join(MEASURED[:-1])} and {MEASURED[-1]}.\n"
        "Those of lost, kicked and dropped are since the hub started; links are those that are not joined.\n"
        "  0   no value is above its limit\n"
        "  1   one is above that of --warn\n"
        "  2   one is above that of --critical, or there is no hub\n"
        "  3   unknown: the hub does not trust this user\n"
        "\n"
        "examples:\n"
        "  sbus doctor\n"
        "  sbus doctor --json | jq 'select(.level != \"ok\")'\n"
        "  sbus doctor --warn waiting=1000 links=0 --critical waiting=50000 problems=0"
    )

    add_address(parser)
    add(parser, "--json", "a JSON object a line for each finding")
    add(parser, "--warn LIMIT...", "NAME=N: a warning where a measured value is above N")
    add(parser, "--critical LIMIT...", "likewise, critical")


def run_doctor(arguments: Namespace) -> int:
    from ..monitor.diagnosis import examine

    begin_to_show()
    if arguments.warn or arguments.critical:
        return _compare(arguments.address, _limits(arguments.warn), _limits(arguments.critical))
    status = EXIT_SUCCESS
    for one in examine(arguments.address):
        if arguments.json:
            show_json(one)
        else:
            print(f"{one.level:8} {plain(one.about)}: {plain(one.text)}", flush=True)
            if one.advice:
                print(f"{'':8} -> {plain(one.advice)}", flush=True)
        if one.level == "problem":
            status = EXIT_FAILURE
    return status


def _limits(words: list[str] | None) -> dict[str, int]:
    """Parse limits: ``NAME=N``."""
    from ..errors import UsageError

    limits = {}
    for word in words or ():
        name, _, number = word.partition("=")
        if name not in MEASURED or not (number.isascii() and number.isdigit()):
            raise UsageError(f"a limit is NAME=N, not {word}; there are {', '.join(MEASURED)}")
        limits[name] = int(number)
    return limits


def _compare(address: str | None, warn: dict[str, int], critical: dict[str, int]) -> int:
    """Compare measured values with limits. Print the line of a monitoring plugin, and return its status.

    Source: the guidelines of the Monitoring Plugins project.
    """
    from ..errors import SbusError, StateError

    try:
        values = _measure(address)
    except StateError as error:
        print(f"SBUS UNKNOWN - {plain(str(error))}")
        return 3
    except (SbusError, OSError) as error:
        print(f"SBUS CRITICAL - {plain(str(error))}")
        return 2

    above = [[name for name in limits if values[name] > limits[name]] for limits in (warn, critical)]
    status = 2 if above[1] else 1 if above[0] else 0
    text = ", ".join(f"{values[name]:,} {name}" for name in dict.fromkeys([*above[1], *above[0]])) or "within limits"
    measured = " ".join(
        f"{name}={value};{warn.get(name, '')};{critical.get(name, '')}" for name, value in values.items()
    )
    print(f"SBUS {('OK', 'WARNING', 'CRITICAL')[status]} - {text} | {measured}")
    return status


def _measure(address: str | None) -> dict[str, int]:
    """Return the values of :data:`MEASURED`. Raises :exc:`~sbuslib.errors.StateError` for a user without trust."""
    from ..blocking import Client
    from ..monitor.diagnosis import examine

    with Client(address) as client:
        hub, links = client.hub.statistics(), client.hub.links()
        levels = [finding.level for finding in examine(client.address)]
    sums = [sum(counts.values()) for counts in (hub.lost, hub.violations, hub.dropped)]
    away = sum(link.state != "joined" for link in links)
    counts = (hub.clients, hub.waiting, *sums, away, levels.count("warning"), levels.count("problem"))
    return dict(zip(MEASURED, counts, strict=True))


def add_whoami(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = "Print the credentials of this process as the hub sees them: !/cred/GID/UID/PID."
    parser.epilog = "examples:\n  sbus whoami\n  sbus whoami --json | jq .uid"
    add_address(parser)
    add(parser, "--json", "as JSON in a line, with gid, uid and pid")


def run_whoami(arguments: Namespace) -> None:
    from ..secrets import UNKNOWN
    from ..secrets import Namespace as Secrets
    from ..wire.text import printable
    from . import messages

    with messages.connected(arguments) as client:
        key = client.hub.whoami()
        separator = client.hub.separator
    if not arguments.json:
        print(printable(key))
        return
    who = (Secrets(separator).chain(key) or (UNKNOWN,))[-1]  # of a relay, its hub comes first
    show_json({"credentials": printable(key), "gid": who.gid, "uid": who.uid, "pid": who.pid})


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

    add(parser, "[SCENARIO...]", "what to measure; without: one ten four trip")
    add_address(parser, help="measure the daemon that listens there, not a hub of our own")
    add(parser, "--rounds N", "times that each is run (%(default)s)", default=3)
    add(parser, "--window TIME", "how long each run takes, about (300ms)", default=0.3)
    add(parser, "--size SIZE", "bytes of a payload (%(default)s)", default=100)
    add(parser, "--runs FILE", "write every run to a file, as JSON")
    add(parser, "--list", "list the scenarios")


def run_bench(arguments: Namespace) -> int:
    import tempfile
    from contextlib import ExitStack
    from pathlib import Path

    from .. import __version__
    from ..bench.results import Plan, encode
    from ..bench.runner import Bench
    from ..bench.scenarios import SCENARIOS, find
    from ..bench.tables import terminal
    from ..errors import UsageError
    from ..kernel.defaults import temporary_folder

    if arguments.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:<12} {scenario.title}")
        return EXIT_SUCCESS
    try:
        scenarios = [find(name) for name in arguments.scenarios or ("one", "ten", "four", "trip")]
    except KeyError as error:
        raise UsageError(f"there is no scenario {error.args[0]}; sbus bench --list shows which there are") from None
    plan = Plan(rounds=arguments.rounds, seconds=arguments.window, payload=arguments.size)

    # However this program ends, the ones that it started have to end, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sbus-bench-", dir=temporary_folder())))
        bench = Bench(stack, folder, plan, show_status, version=__version__, address=arguments.address)
        results = bench.measure(scenarios)
    if arguments.runs is not None:
        from ..kernel.regular_files import open_emptied

        with open_emptied(arguments.runs) as file:
            file.write(encode(results))
    print(terminal(results), end="")
    return EXIT_SUCCESS if results.records else EXIT_FAILURE
