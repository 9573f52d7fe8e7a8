"""What the commands that need Spark share: their arguments, and how they begin and end."""

from __future__ import annotations

import os
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from .console import (
    EXIT_SUCCESS,
    EXIT_USAGE,
    advise,
    beside,
    complain,
    explain,
    is_told,
    on_stop,
    tell,
    yield_to_ctrl_c,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SPARK", "Work", "add_spark_arguments", "run", "stop_event"]

Work: TypeAlias = "Callable[[SparkSession], object]"
"""The work of a command, once Spark runs."""

SPARK = (
    "This needs Java 17 or newer, which is that of JAVA_HOME or else the one in the path, and pip install "
    "'sbuslib[spark]'. SBUS_SPARK_LOG=warn (or info, error) shows what Spark logs."
)
"""The end of the help of each of these commands."""


def add_spark_arguments(parser: ArgumentParser) -> None:
    """Add the option that says where the work is done."""
    parser.add_argument(
        "--master",
        metavar="URL",
        help="the cluster that does the work, as Spark names it: spark://host:7077; else here",
    )
    parser.add_argument(
        "--conf", metavar="KEY=VALUE", action="append", default=[], help="a setting of Spark; may be repeated"
    )


def _settings(arguments: Namespace) -> dict[str, str]:
    """The settings of Spark that the user gave, and those that suit a command."""
    from ..errors import UsageError
    from ..spark.sessions import QUICK

    given = dict[str, str]()
    for text in arguments.conf:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"a setting of Spark is KEY=VALUE, not {text}")
        given[key] = value
    return given if arguments.master and not arguments.master.startswith("local") else QUICK | given


def _progress(spark: SparkSession) -> AbstractContextManager[None]:
    """Draw how many of the tasks of Spark's present work are done, if standard error is a terminal."""

    def draw(ended: threading.Event) -> None:
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(0.5):
            stages = [*filter(None, map(tracker.getStageInfo, tracker.getActiveStageIds()))]
            tasks, done = (sum(getattr(stage, name) for stage in stages) for name in ("numTasks", "numCompletedTasks"))
            bar = f"[{'=' * (30 * done // tasks):30}] {done:,} of {tasks:,} tasks" if tasks else ""
            os.write(2, f"\r\x1b[K{bar}".encode())
        os.write(2, b"\r\x1b[K")

    return beside(draw) if os.isatty(2) and is_told() else nullcontext()


def stop_event() -> threading.Event:
    """An event that is set at the signals that stop this process.

    A thread sets it. A signal handler must not: it may interrupt the main thread while that holds the event's lock, and
    would wait for itself. The queue's ``put`` is safe in a signal handler.
    """
    event, told = threading.Event(), SimpleQueue[None]()

    def hear() -> None:
        told.get()
        event.set()

    threading.Thread(target=hear, name="stop", daemon=True).start()
    on_stop(lambda: told.put(None))
    return event


def run(arguments: Namespace, prepare: Callable[[Namespace], Work | None], *, light: bool = False) -> int:
    """Prepare, start Spark, do the work, stop Spark, and turn what goes wrong into one line; the exit status.

    :param prepare: finds out what is wrong with the arguments as far as that can be known without Spark, which takes
        ten seconds to start, and returns the work; ``None`` if it has done it without Spark.
    :param light: ``prepare`` needs nothing of the extra ``spark``.
    """
    from ..errors import SbusError, UsageError

    try:
        if not light:
            from ..spark.sessions import require

            require()
        work = prepare(arguments)
        return EXIT_SUCCESS if work is None else _run_on_spark(arguments, work)
    except UsageError as error:
        complain("sbus", explain(error))
        return EXIT_USAGE
    except (SbusError, OSError) as error:
        return complain("sbus", explain(error) + advise(error, arguments))


def _run_on_spark(arguments: Namespace, work: Work) -> int:
    from ..spark.sessions import check_executors, session
    from ..spark.sessions import explain as explain_spark

    yield_to_ctrl_c()  # an interrupted call into Java would break the next one
    settings = _settings(arguments)
    tell("starting Spark ...")
    spark = session(arguments.master, settings=settings)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        check_executors(spark, tell)
        with _progress(spark):
            work(spark)
    except (PySparkException, Py4JError) as error:
        return complain("sbus", explain_spark(error) + advise(error, arguments))
    finally:
        spark.stop()
    return EXIT_SUCCESS
