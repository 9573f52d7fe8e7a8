"""Commands that use Spark: what they print, write and refuse. The numbers are those of docs/tutorial-spark.md."""

from __future__ import annotations

import csv
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet
import pytest
from docs.pages import DOCS, blocks
from lake.journals import rows as journal_rows
from lake.journals import segment
from spark.frames import SECOND, START_NS, Row, message, recording

from sbuslib.cli import demo_report, jobs
from sbuslib.cli.main import build_parser
from sbuslib.errors import SbusError, StateError, UsageError
from sbuslib.lake.sealing import ingest
from sbuslib.spark import lake
from sbuslib.spark.sessions import QUICK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Prepare = Callable[..., jobs.Work]
Run = Callable[..., None]


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Run the part of a command that comes before Spark starts, in a directory with a lake. Errors are raised."""
    monkeypatch.chdir(tmp_path)
    segment(tmp_path / "recorded", 1, journal_rows(3))
    ingest([tmp_path / "recorded"], LAKE)
    monkeypatch.setattr(jobs, "run", lambda arguments, prepare, **options: prepare(arguments))

    def run(*arguments: object) -> jobs.Work:
        parsed = build_parser().parse_args([*map(str, arguments)])
        work: jobs.Work = parsed.run(parsed)
        return work

    return run


@pytest.fixture
def run(prepare: Prepare, spark: SparkSession, rows: DataFrame, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in the session of the tests. Errors are raised."""
    read = lake.read
    monkeypatch.setattr(lake, "read", lambda spark, place: rows if place == LAKE else read(spark, place))

    def run(*arguments: object) -> None:
        prepare(*arguments)(spark)

    return run


def tutorial() -> list[Row]:
    """The messages that the tutorial's program publishes."""
    sensors, service = b"!/cred/100/1000/4711", b"!/cred/100/1000/4712"
    rows = []
    for number in range(500):
        at = number / 100
        rows += [message(b"room/%d/temp" % room, b"21.5", at=at, sender=sensors) for room in (1, 2)]
        if number % 10 == 0:
            rows.append(message(b"ask/target", b'{"id": %d}' % number, at=at, sender=sensors))
            answer = b'{"id": %d, "target": 21}' % number
            rows.append(message(b"answer/target", answer, at=at + 0.003, sender=service))
    return rows


LAKE = "lake"
"""The place of a lake whose rows are those of the tutorial. Tests replace reading it: making a real lake is slow."""


@pytest.fixture(scope="module")
def rows(spark_session: SparkSession) -> DataFrame:
    return recording(spark_session, tutorial())


def read_csv(directory: Path) -> list[dict[str, str]]:
    with directory.with_suffix(".csv").open(newline="") as file:
        return list(csv.DictReader(file))


def read_parquet(directory: Path) -> Any:
    """Read a table from memory, as Arrow would keep its file open."""
    return pyarrow.parquet.read_table(pyarrow.BufferReader(directory.with_suffix(".parquet").read_bytes()))


def text_of(name: str, page: str = "tutorial-spark.md") -> str:
    """A block of the tutorial."""
    (found,) = [block.text for block in blocks(DOCS / page) if block.language == name]
    return found


def test_report_traffic_writes_a_page_and_tables(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, tables = tmp_path / "traffic.html", tmp_path / "tables"
    run("report", "traffic", LAKE, "--output", output, "--csv", tables, "--levels", 2)
    assert capsys.readouterr().out.splitlines() == [str(output), str(tables)]
    text = output.read_text("utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "<b>1,100</b><span>messages</span>" in text
    assert text.count("<svg") == 3
    assert read_csv(tables / "by_level")[0] == {
        "level": "1",
        "prefix": "room/",
        "messages": "1000",
        "bytes": "4000",
        "keys": "2",
        "largest": "4",
    }


def test_report_subscriptions_writes_the_table_of_the_tutorial(run: Run, tmp_path: Path) -> None:
    patterns, tables = tmp_path / "patterns.txt", tmp_path / "tables"
    patterns.write_text(text_of("text"))
    run("report", "subscriptions", LAKE, patterns, "--output", "-", "--parquet", tables)
    found = read_parquet(tables / "patterns").to_pylist()
    assert [(row["pattern"], row["messages"], row["covered_by"]) for row in found] == [
        (b"room/*/temp", 1000, []),
        (b"room/1/temp", 500, [b"room/*/temp"]),
        (b"ask/", 50, []),
        (b"room/*/humidity", 0, []),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "traffic", "LAKE", "--output", "/nowhere/x.html"], "cannot be written"),
        (["report", "traffic", "NOTHING"], "nothing was recorded"),
        (["report", "subscriptions", "LAKE", "EMPTY"], "no patterns"),
        (["watch", "FOLDER", "--above", "a", "many"], "not many"),
        (["watch", "FOLDER", "--window", "0.1"], "windows are of 1"),
        (["watch", "FOLDER", "--above", "!/cred/0/0/1/x", "1"], "never recorded"),
        (["watch", "/nowhere"], "No such file or directory"),
    ],
)
def test_wrong_arguments_are_refused_before_spark_starts(
    prepare: Prepare, tmp_path: Path, arguments: list[str], said: str
) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    (tmp_path / "nothing").mkdir()
    places = {"LAKE": LAKE, "EMPTY": str(empty), "FOLDER": str(tmp_path), "NOTHING": str(tmp_path / "nothing")}
    with pytest.raises((SbusError, OSError), match=said):
        prepare(*(places.get(argument, argument) for argument in arguments))


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (["--hub", "none"], "nothing of hub none was recorded"),
        (["--start", "2040-01-01"], "nothing was recorded in that time"),
        (["--end", f"@{START_NS // SECOND}"], "nothing was recorded in that time"),
    ],
)
def test_a_choice_without_records_is_an_error(run: Run, choice: list[str], said: str) -> None:
    with pytest.raises(StateError, match=said):
        run("report", "traffic", LAKE, *choice)


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
    assert jobs._settings(build_parser().parse_args(["report", "traffic", LAKE, *master, *words])) == expected


def test_a_setting_of_spark_without_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match="KEY=VALUE, not spark"):
        jobs._settings(build_parser().parse_args(["report", "traffic", LAKE, "--conf", "spark"]))


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
        (["report", "traffic", LAKE, "--period", "-1"], "'-1' is no whole number above 0"),
        (["report", "traffic", LAKE, "--separator", "ab"], "a separator is one byte of ASCII"),
        (["watch", "journal", "--separator", "7"], "a separator is one byte of ASCII"),
    ],
)
def test_wrong_values_are_refused_by_the_parser(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser().parse_args(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_missing_matplotlib_is_told_before_spark_starts(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(StateError, match="matplotlib"):
        prepare("report", "traffic", LAKE, "--output", tmp_path / "x.html")


def test_the_report_of_the_demo_is_made_of_its_journal(
    spark: SparkSession,
    journal: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sbuslib.spark.sessions.session", lambda *arguments, **options: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    segment(journal, 1, journal_rows(20))
    report = tmp_path / "traffic.html"
    assert demo_report.main([str(journal), str(tmp_path / "lake"), str(report)]) == 0
    assert "  lake         20 messages as Parquet\n" in capsys.readouterr().out
    assert "<b>20</b><span>messages</span>" in report.read_text("utf-8")
