"""The last part of ``./run demo``: takes the journal into a lake, and makes a report of it with Spark.

It is a process of its own, ``python -m sbuslib.cli.demo_report JOURNAL LAKE REPORT``, so that the demo does not load
Spark. Where Java or an extra is missing, it says so in one line and ends with :data:`MISSING`; the demo does not fail
for that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .console import EXIT_FAILURE, EXIT_SUCCESS, explain, yield_to_ctrl_c

__all__ = ["MISSING", "main"]

MISSING = 3
"""The exit status where Java or an extra is missing."""

_SETTINGS = {
    # There are a few messages: compiling code and splitting work would take longer than the work.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.showConsoleProgress": "false",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Make the report; the exit status."""
    journal, lake, report = sys.argv[1:] if argv is None else argv
    from ..errors import SbusError, StateError
    from ..reports.html import check_page
    from ..spark.sessions import QUICK, check_java, session
    from ..spark.sessions import explain as explain_spark

    try:
        check_page()
        check_java()
        print(f"  {'spark':<12} is starting, with Java", flush=True)
        spark = session("local[2]", name="sbus demo", settings=QUICK | _SETTINGS)
    except StateError as error:
        print(f"  no report: {explain(error)}", flush=True)
        return MISSING
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from ..lake.sealing import Written, ingest
    from ..reports.sql import in_spark
    from ..reports.traffic import traffic

    try:
        files: list[Written] = []
        ingest([journal], lake, progress=files.append)
        print(f"  {'lake':<12} {sum(file.rows for file in files)} messages as Parquet", flush=True)
        print(f"  {'spark':<12} makes the report", flush=True)
        made = traffic(in_spark(spark, lake))
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
    yield_to_ctrl_c()  # not to closed pipes: Spark is a socket
    sys.exit(main())
