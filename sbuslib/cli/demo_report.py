"""What ``./run demo`` does last: takes the journal that it recorded into a lake, and makes a report of it.

In a process of its own, ``python -m sbuslib.cli.demo_report JOURNAL LAKE REPORT``, as Spark belongs into no other.
Where Java or an extra is missing it says so in one line and ends with :data:`MISSING`, which is no failure of the
demo's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .console import EXIT_FAILURE, EXIT_SUCCESS, explain, yield_to_signals

__all__ = ["MISSING", "main"]

MISSING = 3
"""The exit status where something is not installed that this needs."""

_ATTEMPTS = 3
"""Spark gives the process that reads a stream ten seconds to start, which on a busy machine may be too few. What was
taken in is not taken in again."""

_SETTINGS = {
    # For a minute's traffic: what pays in an hour of work would take most of the time here.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.showConsoleProgress": "false",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Make the report; the exit status."""
    journal, lake, report = sys.argv[1:] if argv is None else argv
    from ..errors import SbusError, StateError
    from ..spark.page import check_plots
    from ..spark.sessions import check_java, session
    from ..spark.sessions import explain as explain_spark

    try:
        check_plots()
        check_java()
        print(f"  {'spark':<12} is starting, with Java", flush=True)
        spark = session("local[2]", name="sbus demo", settings=_SETTINGS)
    except StateError as error:
        print(f"  no report: {explain(error)}", flush=True)
        return MISSING
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from ..spark.lake import Progress, ingest, read
    from ..spark.reports import traffic

    try:
        print(f"  {'spark':<12} takes the journal in", flush=True)
        batches: list[Progress] = []
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                ingest(spark, journal, lake, progress=batches.append)
                break
            except PySparkException:
                if attempt == _ATTEMPTS:
                    raise
        print(f"  {'lake':<12} {sum(batch.rows for batch in batches)} messages as Parquet", flush=True)
        print(f"  {'spark':<12} makes the report", flush=True)
        made = traffic(read(spark, lake))
        if made is None:
            print("  the lake is empty", flush=True)
            return EXIT_FAILURE
        with open(report, "w", encoding="utf-8") as file:
            file.write(made.page())
    except (SbusError, OSError, PySparkException, Py4JError) as error:
        print(f"  {explain_spark(error)}", flush=True)
        return EXIT_FAILURE
    finally:
        spark.stop()
    return EXIT_SUCCESS


if __name__ == "__main__":
    yield_to_signals()
    sys.exit(main())
