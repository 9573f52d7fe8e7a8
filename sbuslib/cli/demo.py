"""``./run demo``: shows the bus at work on this machine, with real processes. It ends by itself and tells the results.

There is a hub, a recorder of all messages, a publisher of this machine's live figures and two subscribers. Then two
processes prove to each other who they are, and a third tries to listen in. In the end, Spark makes a report. The demo
is in the package and not in ``examples/``, so that it also runs where the package was installed::

    python -m sbuslib.cli.demo

This process, the *director*, starts the others, which are in :mod:`.demo_roles`, and believes only what they report.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from ..blocking import Client
from ..lake.blocks import read_records
from ..segments.directory import list_segments
from ..wire.text import printable
from .console import EXIT_FAILURE, EXIT_SUCCESS
from .demo_roles import PATIENCE

__all__ = ["main"]


class DemoError(Exception):
    """A part of the demo failed; the message says which."""


class Report(NamedTuple):
    """What a process reported. When it ended, ``event`` is ``end``, with its ``status``."""

    process: Actor
    event: str
    details: dict[str, Any]


class Actor:
    """A process of the demo, and what it has reported so far."""

    def __init__(self, name: str, address: str, reports: queue.Queue[Report], role: str, *arguments: object) -> None:
        self.name = name
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._reports = reports
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sbuslib.cli.demo_roles", role, address, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            details = json.loads(line)
            self._reports.put(Report(self, details.pop("event"), details))
        self._reports.put(Report(self, "end", {"status": self.process.wait()}))

    def go_on(self) -> None:
        """Tell the process to go on."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which is reported

    def told(self, event: str) -> list[dict[str, Any]]:
        """The details of all its reports of ``event``."""
        return [details for name, details in self.events if name == event]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Director:
    """Starts the processes, follows their reports, and judges the results."""

    def __init__(self, stack: ExitStack, rounds: int, pause: float) -> None:
        self._stack = stack
        self._reports: queue.Queue[Report] = queue.Queue()
        self._rounds = rounds
        self._pause = pause
        self.verdicts: list[tuple[bool, str]] = []
        self._figures: list[dict[str, Any]] = []
        self._secrets: list[str] = []

    def judge(self, holds: bool, what: str) -> None:
        """Note whether ``what`` happened."""
        self.verdicts.append((holds, what))

    def start(self, name: str, role: str, *arguments: object) -> Actor:
        """Start a process, and return once it is ready."""
        actor = Actor(name, self.address, self._reports, role, *arguments)
        self._stack.callback(actor.close)
        self._follow(lambda: bool(actor.told("ready")), f"{name} to be ready")
        what = " ".join(map(str, arguments))
        print(f"  {name:<12} process {actor.process.pid}{'  ' * bool(what)}{what}", flush=True)
        return actor

    def _follow(self, until: Callable[[], bool], what: str) -> None:
        """Take reports, and show what subscribers receive, until ``until`` is true; ``what`` is its name."""
        deadline = time.monotonic() + PATIENCE + self._rounds * self._pause
        while not until():
            try:
                actor, event, details = self._reports.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise DemoError(f"waited in vain for {what}") from None
            actor.events.append((event, details))
            if event == "received":
                print(f"  {actor.name:<12} {details['key']}: {details['payload']}", flush=True)
            elif event == "end" and details["status"] != 0:
                status = details["status"]
                how = f"was ended by signal {-status}" if status < 0 else f"failed with status {status}"
                raise DemoError(f"{actor.name} (process {actor.process.pid}) {how}")

    def _follow_to_end(self, *actors: Actor) -> None:
        names = " and ".join(actor.name for actor in actors)
        self._follow(lambda: all(actor.told("end") for actor in actors), f"{names} to end")

    def start_hub(self, folder: str) -> None:
        """Start a hub, and return once it listens."""
        self.address = os.path.join(folder, "bus")
        # The hub ends with its last client, which is this process. So it ends even when this process is killed.
        self.hub = subprocess.Popen(
            [sys.executable, "-m", "sbuslib.cli.daemon", "-f", "-c", "-a", self.address], stdout=subprocess.PIPE
        )
        self._stack.callback(self._end_hub)
        assert self.hub.stdout is not None
        with self.hub.stdout as pipe:
            pipe.read()  # it closes its output once it listens
        if self.hub.poll() is not None:
            raise DemoError(f"the hub ended with status {self.hub.returncode}")
        self._stack.callback(Client(self.address).close)
        print(f"  {'hub':<12} process {self.hub.pid}  {self.address}", flush=True)

    def _end_hub(self) -> None:
        try:
            status = self.hub.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.hub.kill()
            status = self.hub.wait()
        self.judge(status == 0 and not os.path.exists(self.address), "the hub ended with its last client, tidily")

    def start_recording(self, folder: str) -> None:
        """Start a process that records all messages from now on."""
        self.journal = os.path.join(folder, "journal")
        self._recorder = self.start("recorder", "recorder", self.journal)

    def show_recording(self) -> None:
        """End the recording, and check the journal."""
        print("\nThe journal of all that passed:", flush=True)
        self._recorder.go_on()
        self._follow_to_end(self._recorder)
        records = list(read_records(self.journal))
        (told,) = self._recorder.told("recorded")
        size = sum(segment.size for segment in list_segments(self.journal))
        print(f"  {'journal':<12} {len(records)} messages, {size} bytes, durable up to {told['durable']}", flush=True)
        recorded = [(printable(record.key or b""), printable(record.payload or b"")) for record in records]
        published = [(message["key"], message["payload"]) for message in self._figures]
        self.judge(
            [one for one in recorded if one in published] == published and told["durable"] == len(records),
            f"the journal has each of the {len(published)} figures, in order and durable",
        )
        leaked = [key for key, payload in recorded if key.startswith("!/") or any(s in payload for s in self._secrets)]
        self.judge(bool(self._secrets) and not leaked, f"the journal has {len(leaked)} secret messages")

    def show_figures(self) -> None:
        """One process publishes, two receive."""
        print("\nFigures of this machine, from one process to two others:", flush=True)
        machine = f"machine/{os.uname().nodename}"
        exact_key = f"{machine}/memory"
        source = self.start("publisher", "publisher", machine, self._rounds, self._pause)
        wildcard = self.start("wildcard", "subscriber", "machine/*/", 3 * self._rounds)
        exact = self.start("exact", "subscriber", exact_key, self._rounds)
        source.go_on()
        self._follow_to_end(source, wildcard, exact)
        published = self._figures = source.told("published")
        of_key = [message for message in published if message["key"] == exact_key]
        for actor, pattern, wanted in ((wildcard, "machine/*/", published), (exact, exact_key, of_key)):
            received = actor.told("received")
            self.judge(
                received == wanted and bool(wanted),
                f"{pattern} brought {len(received)} of {len(wanted)} messages, in order",
            )

    def show_secrets(self) -> None:
        """Two processes prove who they are; a third tries to listen in."""
        print("\nTwo processes prove to each other who they are; a third tries to listen in:", flush=True)
        first = self.start("alice", "alice")
        second = self.start("bob", "bob")
        third = self.start("eavesdropper", "eavesdropper")
        first.go_on()
        self._follow_to_end(first, second)
        third.go_on()
        self._follow_to_end(third)
        for actor, other in ((first, second), (second, first)):
            for check in actor.told("checked"):
                print(f"  {actor.name:<12} {other.name} is {check['other']}", flush=True)
            self.judge(
                [
                    check["proven"] and check["other"].endswith(f"/{other.process.pid}")
                    for check in actor.told("checked")
                ]
                == [True],
                f"{other.name} proved to {actor.name} to be process {other.process.pid}",
            )
        for key, payload in (seen := [message for told in third.told("saw") for message in told["messages"]]):
            print(f"  {third.name:<12} {key}: {payload}", flush=True)
        told_secrets = self._secrets = [secret for told in first.told("secret") for secret in told["secrets"]]
        leaked = [key for key, payload in seen if key.startswith("!/") or any(s in payload for s in told_secrets)]
        self.judge(
            bool(seen) and bool(told_secrets) and not leaked,
            f"the eavesdropper's wildcards brought {len(seen)} public and {len(leaked)} secret messages",
        )
        refused = third.told("disconnected")
        for refusal in refused:
            print(f"  {third.name:<12} was disconnected for asking for {refusal['pattern']}", flush=True)
        self.judge(bool(refused), "the eavesdropper was disconnected for asking for alice's secrets")


REPORT_PATIENCE = 300.0
"""Seconds for the report. Java takes long to start where it has to share its cores."""


def make_report(director: Director, folder: str) -> str | None:
    """Make a report of the journal. Returns its path, or ``None``, also where Java is missing."""
    from .demo_report import MISSING

    print("\nA report of the journal, by Spark, for which Java has to start:", flush=True)
    report = os.path.join(folder, "traffic.html")
    command = [sys.executable, "-m", "sbuslib.cli.demo_report", director.journal, os.path.join(folder, "lake"), report]
    try:
        status = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=REPORT_PATIENCE, check=False).returncode
    except subprocess.TimeoutExpired:
        status = EXIT_FAILURE
    if status == EXIT_SUCCESS:
        director.judge(True, "the journal was taken into a lake, and a report made of it")
        # The report stays; all other files of the demo are removed.
        return shutil.move(report, tempfile.mkdtemp(prefix="sbus-demo-report-"))
    if status != MISSING:
        director.judge(False, f"the report was not made: status {status}")
    return None


def direct(rounds: int, pause: float, report: bool = False, keep: str | None = None) -> int:
    """Run the demo, with or without the report at its end; its exit status.

    The journal is moved into the folder ``keep``, for a report later.
    """
    page: str | None = None
    with tempfile.TemporaryDirectory(prefix="sbus-demo-") as folder:
        director: Director | None = None
        with ExitStack() as stack:
            director = Director(stack, rounds, pause)
            try:
                print("A bus of its own:", flush=True)
                director.start_hub(folder)
                director.start_recording(folder)
                director.show_figures()
                director.show_secrets()
                director.show_recording()
            except DemoError as error:
                director.judge(False, str(error))
        if report and all(holds for holds, _ in director.verdicts):
            page = make_report(director, folder)
        if keep is not None and os.path.isdir(f"{folder}/journal"):
            shutil.move(f"{folder}/journal", keep)
    return conclude(director.verdicts, page)


def report_of(folder: str) -> int:
    """Make the report of the journal in a folder, which ``keep`` named before; the exit status."""
    director = Director(ExitStack(), 0, 0)
    director.journal = f"{folder}/journal"
    return conclude(director.verdicts, make_report(director, folder))


def conclude(verdicts: list[tuple[bool, str]], page: str | None) -> int:
    """Tell what happened, and where the report is; the exit status."""
    print("\nSummary:")
    for holds, what in verdicts:
        print(f"  {'ok    ' if holds else 'FAILED'}  {what}")
    failed = sum(not holds for holds, _ in verdicts)
    print(f"The demo failed: {failed} of {len(verdicts)}." if failed else "All of it happened.", flush=True)
    if page is not None:
        print(f"The report: {page}", flush=True)
    return EXIT_FAILURE if failed else EXIT_SUCCESS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status."""
    parser = argparse.ArgumentParser(prog="demo", description="Show the bus at work on this machine.")
    parser.add_argument("--rounds", type=int, default=5, help="how many times the figures are published")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds between two times")
    parser.add_argument("--no-report", action="store_true", help="make no report with Spark at the end")
    parser.add_argument("--keep", metavar="FOLDER", help="likewise, and leave the recording in FOLDER")
    parser.add_argument("--report", metavar="FOLDER", help="make only the report, of the recording left in FOLDER")
    options = parser.parse_args(argv)
    try:
        if options.report is not None:
            return report_of(options.report)
        return direct(options.rounds, options.pause, not (options.no_report or options.keep), options.keep)
    except (KeyboardInterrupt, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or else Python complains when it flushes
        return EXIT_FAILURE


if __name__ == "__main__":
    sys.exit(main())
