"""Sessions of Spark: start, checks of its requirements, and its errors in one line.

PySpark is loaded when a session is made.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION = 17
"""The oldest Java that Spark 4 runs on."""

QUICK = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"}
"""Settings for work of seconds on this machine: they halve what Java spends on itself. Work of many minutes is faster
without them."""

_EXECUTOR_SECONDS = 15.0
"""Seconds without an executor of a cluster after which the user gets a message."""

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_LOGGING = Path(__file__).resolve().with_name("log4j2.properties")
_NOISE = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
"""Line that Java prints whenever Spark 4 starts. No setting turns it off."""


def check_java() -> None:
    """Check the Java that Spark will start: that of ``JAVA_HOME``, else the one on the path.

    Raises :exc:`~sbuslib.errors.StateError`, with the command to install one, when none is new enough.
    """
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    fault = "there is none here"
    if program is not None:
        try:
            # Java prints its version to standard error, for example: openjdk version "17.0.15" 2025-04-15
            output = subprocess.run([program, "-version"], capture_output=True, text=True, check=True).stderr
        except (OSError, subprocess.CalledProcessError):
            fault = f"{program} does not run"
        else:
            match = re.search(r'version "(?:1\.)?(\d+)', output)  # before 9 it was 1.8
            if match and int(match[1]) >= JAVA_VERSION:
                return
            fault = f"{program} is {match[1] if match else 'of an unknown version'}"
    raise StateError(f"Spark needs Java {JAVA_VERSION} or newer, and {fault}: apt-get install openjdk-17-jre-headless")


def _forward(pipe: BufferedReader) -> None:
    """Pass on what Java writes to its standard error, without the line that it always writes."""
    with pipe:
        chunk = pipe.readline()
        if chunk == _NOISE:
            chunk = pipe.read1()
        while chunk:
            os.write(2, chunk)
            chunk = pipe.read1()


def require() -> None:
    """Raise :exc:`~sbuslib.errors.StateError` when a library that Spark needs is missing."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise StateError(
            f"{(error.name or str(error)).partition('.')[0]} is missing: pip install 'sbuslib[spark]'"
        ) from None


def session(
    master: str | None = None, *, name: str = "sbus", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the Spark session of this process, with the data source ``sbus``. Starts one if there is none.

    :param master: where the work is done, as Spark names it, for example ``spark://host:port``. The default,
        ``local[*]``, is the cores of this machine. On a cluster, ``sbuslib[spark]`` must be installed for the Python of
        every worker. If that Python has another path than this one, ``PYSPARK_PYTHON`` names it.
    :param name: the name of the application.
    :param settings: further settings of Spark, which override those chosen here.

    Raises :exc:`~sbuslib.errors.StateError` when PySpark or Java 17 is missing, or when this process has a session
    with another master.
    """
    require()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        if master not in (None, running.sparkContext.master):
            raise StateError(f"Spark runs in this process already, with the master {running.sparkContext.master}")
    else:
        check_java()
        running = _start(master or "local[*]", name, settings or {})
    _register(running)
    return running


def _register(spark: SparkSession) -> None:
    """Register the data source. Spark finds it without this, except when the package is installed as editable."""
    from pyspark.errors import AnalysisException

    from .source import JournalSource

    try:
        spark.dataSource.register(JournalSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _start(master: str, name: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    local = master.startswith("local")
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    }
    if local:
        chosen["spark.driver.host"] = chosen["spark.driver.bindAddress"] = "127.0.0.1"
        chosen["spark.sql.shuffle.partitions"] = str(max(8, 2 * (os.cpu_count() or 1)))
    conf = SparkConf().setMaster(master).setAppName(name).setAll([*{**chosen, **settings}.items()])
    # The processes that Spark starts must find this package as this process does.
    before = {key: os.environ.get(key) for key in ("PYTHONPATH", "SPARK_LOCAL_IP")}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), before["PYTHONPATH"]]))
    try:
        if SparkContext._gateway is None:
            # In a session of its own, so that a signal to our process group, as timeout(1) sends it, does not kill Java
            # before this process has stopped its work. Java ends by itself when this process has ended.
            options = {"stderr": subprocess.PIPE, "start_new_session": True}
            gateway = launch_gateway(conf, options)  # type: ignore[no-untyped-call]
            if gateway.proc is not None:  # it is None if spark-submit started this process
                threading.Thread(target=_forward, args=(gateway.proc.stderr,), name="spark-stderr", daemon=True).start()
        else:
            gateway = SparkContext._gateway
        handler = signal.getsignal(signal.SIGINT)
        context = SparkContext(conf=conf, gateway=gateway)
        # Spark makes Ctrl-C cancel its jobs before KeyboardInterrupt is raised, which suits a notebook. If this process
        # does not handle Ctrl-C in Python, that is kept.
        if handler in (signal.SIG_DFL, signal.SIG_IGN) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)
        return SparkSession(context)
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def check_executors(spark: SparkSession, warn: Callable[[str], object], seconds: float = _EXECUTOR_SECONDS) -> None:
    """Wait until a cluster has given an executor to this session.

    If there is none after ``seconds``, calls ``warn`` with a line of advice, and returns: Spark goes on waiting.
    """
    context = spark.sparkContext
    if str(context.master).startswith("local") or spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return
    java = context._jsc.sc()
    deadline = time.monotonic() + seconds
    while java.getExecutorMemoryStatus().size() < 2:  # the driver counts as one
        if time.monotonic() >= deadline:
            asked = f"each asks {java.executorMemory()} MiB, and --conf spark.executor.memory=512m asks less"
            warn(f"no executor was accepted in {seconds:.0f} s: {asked}. Waiting")
            return
        time.sleep(0.1)


_OURS = re.compile(r"^(?:\w+\.)*(\w+Error): (.+)$", re.MULTILINE)


def explain(error: BaseException) -> str:
    """Convert an error to one line. For an error of Spark with the traceback of a Python worker, the worker's error."""
    text = str(error)
    inner = [match[2] for match in _OURS.finditer(text) if not match[0].startswith(("pyspark.", "py4j."))]
    return inner[-1] if inner else (text.strip().splitlines() or [type(error).__name__])[0]
