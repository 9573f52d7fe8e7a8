"""Commands that use Spark: what they write, refuse and set. What they count is tested in ``tests/reports``."""

from __future__ import annotations

import tempfile
import threading
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from segments.journals import rows, segment

from sbuslib.cli import jobs
from sbuslib.cli.console import finish
from sbuslib.cli.main import main, parse
from sbuslib.errors import UsageError
from sbuslib.spark.sessions import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LAKE = "lake"


@pytest.fixture
def own_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Commands use the session of the tests, and do not end it."""
    monkeypatch.setattr("sbuslib.spark.sessions.session", lambda *arguments, **options: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    return spark


def test_a_report_by_spark_has_the_same_tables_and_says_who_made_it(
    own_session: SparkSession,
    journal: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs, "yield_to_ctrl_c", lambda: None)
    segment(journal, 1, rows(20))
    for engine in ("duckdb", "spark"):
        words = ["--engine", engine, "--output", f"{engine}.html", "--csv", engine]
        assert main(["report", "traffic", str(journal), *words]) == 0
        out, err = capsys.readouterr()
        assert out.splitlines() == [f"{engine}.html", engine]
        assert ("starting Spark ..." in err) is (engine == "spark")
    tables = [{path.name: path.read_text() for path in (tmp_path / engine).iterdir()} for engine in ("duckdb", "spark")]
    assert tables[0] == tables[1]
    assert len(tables[0]) == 6
    assert "Made by sbus with Spark on " in (tmp_path / "spark.html").read_text("utf-8")
    assert main(["report", "traffic", str(journal), "--engine", "spark", "--hub", "none"]) == 1
    assert f"sbus: {journal}: nothing of hub none was recorded\n" in capsys.readouterr().err


def test_what_spark_raises_is_one_line(
    own_session: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs, "yield_to_ctrl_c", lambda: None)

    def work(arguments: Namespace) -> None:
        with jobs.spark(arguments) as spark:
            spark.sql("SELECT nothing").collect()

    arguments = parse(["report", "traffic", LAKE])
    arguments.run = work
    assert finish("sbus", arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("sbus: [UNRESOLVED_COLUMN")


@pytest.mark.parametrize(
    ("master", "given", "expected"),
    [
        ([], ["spark.a=b=c"], {**QUICK, "spark.a": "b=c"}),
        (["--master", "spark://host:7077"], ["spark.a=1", "spark.a=2"], {"spark.a": "2"}),
        (["--master", "local[3]"], ["spark.driver.defaultJavaOptions="], {"spark.driver.defaultJavaOptions": ""}),
    ],
)
def test_settings_of_spark_are_given_by_the_user(master: list[str], given: list[str], expected: dict[str, str]) -> None:
    words = [word for text in given for word in ("--conf", text)]
    assert jobs._settings(parse(["report", "traffic", LAKE, *master, *words])) == expected


def test_a_setting_of_spark_without_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match="KEY=VALUE, not spark"):
        jobs._settings(parse(["report", "traffic", LAKE, "--conf", "spark"]))


def test_the_progress_of_spark_is_drawn_on_a_terminal(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = list[bytes]()
    came = threading.Event()

    def write(descriptor: int, text: bytes) -> None:
        drawn.append(text)
        if b" tasks" in text:
            came.set()

    monkeypatch.setattr("sbuslib.cli.jobs.os.isatty", lambda descriptor: True)
    monkeypatch.setattr("sbuslib.cli.jobs.os.write", write)

    def work(batches: Any) -> Any:
        while not stop.exists():
            time.sleep(0.01)
        return batches

    with tempfile.TemporaryDirectory() as folder:
        stop = Path(folder, "stop")
        threading.Thread(target=lambda: came.wait() and stop.touch()).start()  # type: ignore[func-returns-value]
        with jobs._progress(spark):
            spark.range(3).coalesce(1).mapInArrow(work, "id long").collect()
    assert b"[                              ] 0 of 1 tasks" in b"".join(drawn)
    assert drawn[-1] == b"\r\x1b[K"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "traffic", LAKE, "--interval", "-1"], "'-1' is no span of time"),
        (["report", "traffic", LAKE, "--separator", "ab"], "a separator is one byte of ASCII"),
        (["watch", "journal", "--separator", "7"], "a separator is one byte of ASCII"),
    ],
)
def test_wrong_values_are_refused_by_the_parser(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
