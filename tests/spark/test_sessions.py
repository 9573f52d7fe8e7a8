"""How Spark is started, and the one line that says what is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from segments.journals import rows, segment
from support import PATIENCE, ROOT, python

from sbuslib.errors import StateError
from sbuslib.spark import sessions
from sbuslib.spark.sessions import (
    _NOISE,
    _forward,
    check_executors,
    check_java,
    explain,
    java_package,
    session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java(folder: Path, says: str) -> Path:
    """A program in place of Java that writes this to standard error."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("says", "version"), [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "25" 2025-09-16 LTS', 25)]
)
def test_new_versions_of_java_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, version: int
) -> None:
    java(tmp_path / "bin", says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java() == version
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    assert check_java() == version


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is 11"),
        ('java version "1.8.0_292"', "is 8"),
        ("what?", "is of an unknown version"),
    ],
)
def test_old_versions_of_java_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, found: str
) -> None:
    program = java(tmp_path / "bin", says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StateError) as caught:
        check_java()
    assert str(caught.value) == f"Spark needs Java 17 or newer, and {program} {found}: {java_package()}"


def test_the_error_without_java_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StateError) as caught:
        check_java()
    assert str(caught.value).startswith("Spark needs Java 17 or newer, and there is none here: install a Java runtime")
    for manager, command in (("apt-get", "apt-get install openjdk-17-jre-headless"), ("apk", "apk add openjdk17-")):
        (tmp_path / manager).touch(0o755)
        assert java_package().startswith(command)
        (tmp_path / manager).unlink()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StateError, match=f"{tmp_path}/bin/java does not run"):
        check_java()


def test_a_command_without_java_ends_with_one_line(journal: Path, tmp_path: Path) -> None:
    segment(journal, 1, rows(1))
    done = subprocess.run(
        [sys.executable, "-m", "sbuslib", "report", "traffic", "--engine", "spark", str(journal)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAVA_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    sign_of_life, error = done.stderr.splitlines()
    assert sign_of_life == "sbus: starting Spark ..."
    assert error.startswith("sbus: Spark needs Java 17 or newer, and ")


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_the_error_for_a_missing_library_names_the_extra(journal: Path, missing: str) -> None:
    segment(journal, 1, rows(1))
    code = f"""
import sys
sys.modules[{missing!r}] = None
from sbuslib.cli.main import main
sys.stderr = sys.stdout
sys.exit(main(["report", "traffic", "--engine", "spark", {str(journal)!r}]) - 1)
"""
    assert python("-c", code) == f"sbus: {missing} is missing: pip install 'sbuslib[spark]'\n"


def test_there_is_one_session(spark: SparkSession) -> None:
    assert session() is spark
    assert session("local[2]") is spark
    with pytest.raises(StateError, match=r"already, with the master local\[2\]"):
        session("spark://elsewhere:7077")
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (_NOISE, b""),
        (_NOISE + b"more\n", b"more\n"),
        (b"WARNING: something else\n", b"WARNING: something else\n"),
        (_NOISE[:20], _NOISE[:20]),
        (b"", b""),
    ],
)
def test_the_usual_warning_of_java_is_left_out(capfd: pytest.CaptureFixture[str], said: bytes, shown: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, said)
    os.close(writing)
    _forward(open(reading, "rb"))  # noqa: SIM115  # which closes it
    assert capfd.readouterr().err.encode() == shown


def test_explain_makes_one_line_of_the_error_of_a_worker() -> None:
    text = """[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):
  File "/x/places.py", line 1, in f
sbuslib.errors.JournalError: /j: no such directory
 SQLSTATE: 38000"""
    assert explain(RuntimeError(text)) == "/j: no such directory"
    assert explain(RuntimeError("[SOME] thing\nJVM stacktrace:\n at x")) == "[SOME] thing"
    assert explain(RuntimeError()) == "RuntimeError"


def test_ctrl_c_waits_until_java_runs() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        with sessions._ctrl_c_waits():
            signal.raise_signal(signal.SIGINT)
            assert not came
        assert came == [signal.SIGINT]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with sessions._ctrl_c_waits():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGINT]


class Pages(BaseHTTPRequestHandler):
    """The page of a master of Spark with two workers that live, and one that does not."""

    def do_GET(self) -> None:
        workers = [("ALIVE", 900), ("ALIVE", 600), ("DEAD", 4_000)]
        body = json.dumps({"workers": [{"state": state, "memory": memory} for state, memory in workers]}).encode()
        self.send_response(200 if self.path == "/json/" else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def cluster(port: int, executors: int, asked: int) -> Any:
    """A session with what :func:`check_executors` asks: a real cluster takes minutes on a busy machine."""
    java = SimpleNamespace(
        getExecutorMemoryStatus=lambda: SimpleNamespace(size=lambda: 1 + executors), executorMemory=lambda: asked
    )
    context = SimpleNamespace(master="spark://127.0.0.1:7077", _jsc=SimpleNamespace(sc=lambda: java))
    settings = {"spark.master.ui.port": str(port)}
    return SimpleNamespace(sparkContext=context, conf=SimpleNamespace(get=settings.get))


def test_a_cluster_without_executors_is_told_with_the_memory_asked_and_offered() -> None:
    said: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            port = server.server_address[1]
            check_executors(cluster(port, executors=1, asked=1_024), said.append, 0)
            assert said == []
            with pytest.raises(StateError) as caught:
                check_executors(cluster(port, executors=0, asked=1_024), said.append, 0)
            check_executors(cluster(port, executors=0, asked=512), said.append, 0)
        finally:
            server.shutdown()
    check_executors(cluster(port, executors=0, asked=512), said.append, 0)
    offers = "workers offer 900 MiB, 600 MiB"
    assert str(caught.value) == (
        f"no executor was accepted in 0 s: each asks 1024 MiB, and {offers}; "
        "--conf spark.executor.memory=810m asks less"
    )
    assert said == [
        f"no executor was accepted in 0 s: each asks 512 MiB, and {offers}. Other work may have it; waiting",
        "no executor was accepted in 0 s: each asks 512 MiB, and workers offer what their master's page tells. "
        "Other work may have it; waiting",
    ]
