"""How Spark is started, and the one line that says what is missing. No Spark is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from journal.format.journals import rows, segment

from sbuslib.cli import jobs
from sbuslib.cli.main import main, parse
from sbuslib.errors import StateError, UsageError
from sbuslib.spark.sessions import _NOISE, QUICK, _forward, check_executors, check_java, explain


@pytest.mark.parametrize(
    ("says", "said"),
    [
        ('openjdk version "17.0.15" 2025-04-15', ""),
        ('java version "25" 2025-09-16 LTS', ""),
        ('openjdk version "11.0.2" 2019-01-15', "is 11"),
        ('java version "1.8.0_292"', "is 8"),
        ("what?", "is of an unknown version"),
        (None, "does not run"),
    ],
)
def test_java_is_new_enough_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str | None, said: str
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    if says is not None:
        program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
        program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if not said:
        check_java()
        monkeypatch.delenv("JAVA_HOME")
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
        return check_java()
    with pytest.raises(StateError) as caught:
        check_java()
    expected = f"Spark needs Java 17 or newer, and {program} {said}: apt-get install openjdk-17-jre-headless"
    assert str(caught.value) == expected
    return None


@pytest.mark.parametrize("missing", ["java", "pyspark", "pyarrow"])
def test_a_command_without_what_spark_needs_ends_with_one_line(
    journal: Path, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    segment(journal, 1, rows(1))
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("sbuslib.cli.jobs.yield_to_ctrl_c", lambda: None)
    assert main(["report", "traffic", "--engine", "spark", str(journal)]) == 1
    *before, said = capsys.readouterr().err.splitlines()
    if missing == "java":
        assert before == ["sbus: starting Spark ..."]
        assert said.startswith("sbus: Spark needs Java 17 or newer, and there is none here: apt-get install")
    else:
        assert (before, said) == ([], f"sbus: {missing} is missing: pip install 'sbuslib[spark]'")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (_NOISE, b""),
        (_NOISE + b"more\n", b"more\n"),
        (b"WARNING: something else\nand more", b"WARNING: something else\nand more"),
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


@pytest.mark.parametrize(("executors", "said"), [(1, []), (0, ["no executor was accepted in 0 s: each asks 1024 MiB"])])
def test_a_cluster_without_executors_is_told(executors: int, said: list[str]) -> None:
    java = SimpleNamespace(
        getExecutorMemoryStatus=lambda: SimpleNamespace(size=lambda: 1 + executors), executorMemory=lambda: 1_024
    )
    context = SimpleNamespace(master="spark://127.0.0.1:7077", _jsc=SimpleNamespace(sc=lambda: java))
    cluster: Any = SimpleNamespace(sparkContext=context, conf=SimpleNamespace(get=lambda name, default: default))
    told: list[str] = []
    check_executors(cluster, told.append, 0)
    assert [line.partition(",")[0] for line in told] == said


# -- the options of commands that can use Spark


@pytest.mark.parametrize(
    ("master", "given", "expected"),
    [
        ([], ["spark.a=b=c"], {**QUICK, "spark.a": "b=c"}),
        (["--master", "spark://host:7077"], ["spark.a=1", "spark.a=2"], {"spark.a": "2"}),
        (["--master", "local[3]"], ["spark.driver.defaultJavaOptions="], {"spark.driver.defaultJavaOptions": ""}),
    ],
)
@pytest.mark.parametrize("terminal", [True, False])
def test_settings_of_spark_are_given_by_the_user(
    master: list[str], given: list[str], expected: dict[str, str], terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbuslib.cli.jobs.os.isatty", lambda descriptor: terminal)
    words = [word for text in given for word in ("--conf", text)]
    found = jobs._settings(parse(["report", "traffic", "lake", *master, *words]))
    assert found.pop("spark.ui.showConsoleProgress") == str(terminal).lower()
    assert found == expected


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(UsageError, match="KEY=VALUE, not spark"):
        jobs._settings(parse(["report", "traffic", "lake", "--conf", "spark"]))
