"""Stop signals and Spark sessions for the commands about journals."""

from __future__ import annotations

import os
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING

from .arguments import Parser, add
from .console import on_stop, show_status, shows_status, yield_to_ctrl_c

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK = (
    "Spark needs Java 17 or newer, which is that of JAVA_HOME or else the one in the path, and pip install "
    "'sbuslib[spark]'. SBUS_SPARK_LOG=warn (or info, error) shows what it logs."
)
"""The end of the help of each command that can use Spark."""


def add_spark_arguments(parser: Parser) -> None:
    """Add the options that choose where Spark does the work."""
    add(parser, "--master URL", "the cluster that does the work with Spark: spark://host:7077; else here")
    add(parser, "--conf KEY=VALUE", "a setting of Spark; may be repeated", action="append", default=[])


def _settings(arguments: Namespace) -> dict[str, str]:
    """Return the settings of Spark that the user gave, and those that suit a command."""
    from ..errors import UsageError
    from ..spark.sessions import QUICK

    given = dict[str, str]()
    for text in arguments.conf:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"a setting of Spark is KEY=VALUE, not {text}")
        given[key] = value
    quick = {} if arguments.master and not arguments.master.startswith("local") else QUICK
    shows = os.isatty(2) and shows_status()
    return quick | {"spark.ui.showConsoleProgress": "true" if shows else "false"} | given


def stop_event() -> threading.Event:
    """Return an event that is set at the signals that stop this process.

    A thread sets it. A signal handler must not: it may interrupt the main thread while that holds the event's lock, and
    would wait for itself. The queue's ``put`` is safe in a signal handler.
    """
    event, stops = threading.Event(), SimpleQueue[None]()

    def wait() -> None:
        stops.get()
        event.set()

    threading.Thread(target=wait, name="stop", daemon=True).start()
    on_stop(lambda: stops.put(None))
    return event


@contextmanager
def spark(arguments: Namespace) -> Iterator[SparkSession]:
    """Start Spark by the arguments, and stop it after the block. It takes ten seconds to start.

    Raises :exc:`~sbuslib.errors.StateError`, also for an error of Spark in the block.
    """
    from ..errors import StateError
    from ..spark.sessions import check_executors, require, session
    from ..spark.sessions import explain as explain_spark

    require()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    settings = _settings(arguments)
    yield_to_ctrl_c()  # an interrupted call into Java would break the next one
    show_status("starting Spark ...")
    running = session(arguments.master, settings=settings)
    try:
        check_executors(running, show_status)
        yield running
    except (PySparkException, Py4JError) as error:
        raise StateError(explain_spark(error)) from None
    finally:
        running.stop()
