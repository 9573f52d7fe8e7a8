"""Starts Spark, says in one line what is missing for it, and turns its errors into one line.

PySpark is loaded when a session is made.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.request import urlopen

from ..errors import StateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JAVA_VERSION", "QUICK", "check_executors", "check_java", "explain", "java_package", "session"]

JAVA_VERSION = 17
"""The oldest Java that Spark 4 runs on."""

QUICK = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"}
"""Settings for work of seconds on this machine: they halve what Java spends on itself. Work of many minutes is faster
without them."""

_EXECUTOR_SECONDS = 15.0
"""How long a cluster may take to start the first executor before somebody is told."""

_PACKAGES = {
    "apt-get": "openjdk-17-jre-headless",
    "dnf": "java-21-openjdk-headless",
    "apk": "openjdk17-jre-headless",
    "pacman": "jre-openjdk-headless",
    "zypper": "java-17-openjdk-headless",
}
_INSTALL = {"apk": "apk add", "pacman": "pacman -S"}
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_LOGGING = Path(__file__).resolve().with_name("log4j2.properties")
_NOISE = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
"""What Java says whenever Spark 4 starts. No setting turns this off."""


def java_package() -> str:
    """The command that installs a headless Java with the package manager of this machine."""
    for manager, package in _PACKAGES.items():
        if shutil.which(manager):
            return f"{_INSTALL.get(manager, f'{manager} install')} {package}"
    return f"install a Java runtime, version {JAVA_VERSION} or newer"


def check_java() -> int:
    """The version of the Java that Spark will start: that of ``JAVA_HOME``, else the one on the path.

    Raises :exc:`~sbuslib.errors.StateError`, whose message names what to install, when none is new enough.
    """
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    wanted = f"Spark needs Java {JAVA_VERSION} or newer"
    if program is None:
        raise StateError(f"{wanted}, and there is none here: {java_package()}")
    try:
        # Java says its version on standard error, in a line such as: openjdk version "17.0.15" 2025-04-15
        said = subprocess.run([program, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        raise StateError(f"{wanted}, and {program} does not run: {java_package()}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', said)  # before 9 it was 1.8
    version = int(found[1]) if found else 0
    if version < JAVA_VERSION:
        raise StateError(f"{wanted}, and {program} is {version or 'of an unknown version'}: {java_package()}")
    return version


def _forward(pipe: IO[bytes]) -> None:
    """Pass on what Java writes to its standard error, without the line that it always writes."""
    with pipe:
        fd = pipe.fileno()
        held = b""
        while chunk := os.read(fd, 65_536):
            held += chunk
            if held == _NOISE or not _NOISE.startswith(held):
                break
        chunk = held.removeprefix(_NOISE)
        while chunk or (chunk := os.read(fd, 65_536)):
            os.write(2, chunk)
            chunk = b""


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block: if starting Java is interrupted, its process stays."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler in (None, signal.SIG_IGN):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


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
    """The Spark session of this process, which knows the data source ``sbus``. It is started if there is none.

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
            with _ctrl_c_waits():
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


def check_executors(spark: SparkSession, tell: Callable[[str], object], seconds: float = _EXECUTOR_SECONDS) -> None:
    """Wait until a cluster has given an executor to this session.

    When none has come after ``seconds``, ``tell`` is called with a line that says what memory is asked and what workers
    offer, and work waits as Spark does. Raises :exc:`~sbuslib.errors.StateError` with that line if no worker can ever
    offer enough.
    """
    context = spark.sparkContext
    if str(context.master).startswith("local") or spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return
    java = context._jsc.sc()
    deadline = time.monotonic() + seconds
    while java.getExecutorMemoryStatus().size() < 2:  # the driver counts as one
        if time.monotonic() >= deadline:
            asked, offered = java.executorMemory(), _offered(spark)
            workers = ", ".join(f"{memory} MiB" for memory in offered) or "what their master's page tells"
            said = f"no executor was accepted in {seconds:.0f} s: each asks {asked} MiB, and workers offer {workers}"
            if offered and max(offered) < asked:
                raise StateError(f"{said}; --conf spark.executor.memory={max(offered) * 9 // 10}m asks less")
            tell(f"{said}. Other work may have it; waiting")
            return
        time.sleep(0.1)


def _offered(spark: SparkSession) -> list[int]:
    """The memory of each worker that lives, in MiB, as the page of Spark's master tells; empty if it does not."""
    found = re.fullmatch(r"spark://(.+):\d+", str(spark.sparkContext.master))
    if found is None:
        return []
    page = f"http://{found[1]}:{spark.conf.get('spark.master.ui.port', '8080')}/json/"
    try:
        with urlopen(page, timeout=2) as answer:  # of the scheme above
            workers = json.loads(answer.read(1_000_000))["workers"]
        return [int(worker["memory"]) for worker in workers if worker["state"] == "ALIVE"]
    except (OSError, ValueError, LookupError, TypeError):
        return []


_OURS = re.compile(r"^(?:\w+\.)*(\w+Error): (.+)$", re.MULTILINE)


def explain(error: BaseException) -> str:
    """An error in one line. For an error of Spark that holds the traceback of a Python worker, the worker's error."""
    text = str(error)
    inner = [found[2] for found in _OURS.finditer(text) if not found[0].startswith(("pyspark.", "py4j."))]
    return inner[-1] if inner else (text.strip().splitlines() or [type(error).__name__])[0]
