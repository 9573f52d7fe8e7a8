"""All that needs a session of Spark, in one file, as that takes ten seconds to start: frames, streams, reports."""

from __future__ import annotations

import random
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from journal.format.journals import START_NS, Row, flip, rows, segment
from pyspark.sql.pandas.types import to_arrow_schema
from reports.rows import Row as Recorded
from reports.rows import in_memory, recording
from spark.conftest import MASTER
from support import PATIENCE, ROOT, HubThread

import sbuslib
from sbuslib.blocking import Client
from sbuslib.cli.main import main
from sbuslib.errors import StateError
from sbuslib.journal.format.directory import DirectoryLock
from sbuslib.journal.read.schema import SCHEMA
from sbuslib.journal.read.sealing import Written, ingest, seal
from sbuslib.reports import traffic
from sbuslib.reports.by_key import by_key, by_level, by_pattern
from sbuslib.reports.sql import Choice, InSpark, in_duckdb, in_spark
from sbuslib.reports.sql import Recorded as Engine
from sbuslib.reports.subscriptions import subscriptions
from sbuslib.spark.lake import on_spark
from sbuslib.spark.sessions import explain, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def sequences(spark: SparkSession, *places: Path, **options: Any) -> list[int]:
    frame = sbuslib.read(places, "spark", session=spark, columns=["sequence"], **options)
    return sorted(row.sequence for row in frame.collect())


def received(client: Client, count: int) -> list[tuple[bytes, bytes]]:
    """Receive exactly ``count`` messages."""
    got: list[tuple[bytes, bytes]] = []
    while len(got) < count:
        got += [(message.key, message.payload) for message in client.receive_many(timeout=PATIENCE)]
    client.sync()
    with pytest.raises(TimeoutError):
        client.receive(timeout=0)
    return got


@pytest.fixture
def subscriber(folder: str) -> Iterator[Client]:
    """A client that receives everything, of a hub at ``folder/bus``."""
    with HubThread(f"{folder}/bus"), Client(f"{folder}/bus") as client:
        client.subscribe(b"")
        yield client


# -- the data source


def test_a_frame_has_the_rows_and_columns_of_every_reader(spark: SparkSession, journal: Path) -> None:
    segment(journal, 1, rows(3), (START_NS + 9, "outage", 17))
    frame = spark.read.format("sbus").load(str(journal))
    assert to_arrow_schema(frame.schema, timezone="UTC") == SCHEMA
    assert frame.toArrow().to_pylist() == sbuslib.read(journal).to_pylist()
    assert frame.where("time = timestamp'2025-06-15 15:06:41'").count() == 1, "in UTC"


def test_options_and_columns_apply_to_several_journals(spark: SparkSession, tmp_path: Path) -> None:
    one, other, empty = tmp_path / "one", tmp_path / "other", tmp_path / "empty"
    segment(one, 1, rows(20))
    segment(other, 1, rows(20), hub="hub-2", journal="fedcba9876543210")
    empty.mkdir()
    options = {"pattern": "room/3/", "startTime": "2025-06-15T17:06:44+02:00"}
    source = spark.read.format("sbus").schema("hub STRING, size BIGINT, key BINARY").options(**options)
    frame = source.load([str(one), str(other), str(empty)])
    expected = [("hub-1", 2, b"room/3/temp")] * 2 + [("hub-2", 2, b"room/3/temp")] * 2
    assert sorted(map(tuple, frame.collect())) == expected


def test_the_example_prints_keys_rates_and_losses(
    spark: SparkSession, journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gaps = [(START_NS + 1, "overflow", 3), (START_NS + 2, "outage", None)]
    segment(journal, 1, rows(80, keys=2), *gaps)
    runpy.run_path(str(ROOT / "examples" / "spark_read.py"))["main"](str(journal))
    assert capsys.readouterr().out.splitlines() == [
        "the busiest keys:",
        "  room/0/temp 40 messages, 76 bytes",
        "  room/1/temp 40 messages, 75 bytes",
        "messages by minute:",
        "  15:06 19",
        "  15:07 60",
        "  15:08 1",
        "missing: 3, and 1 times nobody knows how many",
    ]


def test_errors_are_explained_in_one_line(spark: SparkSession, journal: Path, folder: str) -> None:
    def load() -> None:
        spark.read.format("sbus").load(str(journal)).count()

    def publish(mode: str) -> None:
        writer = spark.range(1).selectExpr("'k' AS key", "'p' AS payload").write.format("sbus").mode(mode)
        writer.option("address", f"{folder}/nobody").save()

    def said(work: Callable[..., None], *arguments: str) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            work(*arguments)
        return explain(caught.value)

    assert said(load) == f"{journal}: no such directory"
    path = segment(journal, 1, rows(3))
    path.write_bytes(path.read_bytes()[:-50])
    segment(journal, 4, rows(3))
    assert said(load) == f"{path}: byte 112: a block is cut"
    assert said(publish, "append").startswith(f"no hub at {folder}/nobody")
    assert "say mode('append')" in said(publish, "overwrite")
    assert said(lambda: spark.sql("SELECT nothing").collect()).startswith("[UNRESOLVED_COLUMN")  # type: ignore[arg-type]


def test_there_is_one_session(spark: SparkSession) -> None:
    assert session() is session(MASTER) is spark
    with pytest.raises(StateError, match=rf"already, with the master {re.escape(MASTER)}"):
        session("spark://elsewhere:7077")
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"


# -- frames of sealed files and live tails


def test_sealed_files_and_the_live_tail_are_read_once(spark: SparkSession, journal: Path) -> None:
    segment(journal, 1, rows(10))
    segment(journal, 11, rows(10, 11))
    seal(journal)
    segment(journal, 21, rows(10, 21))
    planned = sbuslib.read(journal, "spark", session=spark)
    chosen = {"start": START_NS + 5_000_000_000, "end": START_NS + 26_000_000_000, "pattern": "room/3/*"}
    assert sequences(spark, journal, **chosen) == [n for n in range(5, 26) if n % 7 == 3]
    segment(journal, 31, rows(1, 31))
    seal(journal)
    assert sorted(row.sequence for row in planned.collect()) == [*range(1, 31)], "sealed after the frame was made"
    assert "BatchScan" not in sbuslib.read(journal, "spark", session=spark)._jdf.queryExecution().toString()
    lock = DirectoryLock(journal)
    segment(journal, 32, rows(3, 32), rows(3, 35), sealed=False)
    lock.write_note(b"%020d" % 34)
    assert sequences(spark, journal, durable_only=True) == [*range(1, 35)]
    lock.close()


def test_a_pattern_that_is_no_utf8_and_other_separators_are_right(spark: SparkSession, tmp_path: Path) -> None:
    for identity, separator in (("0" * 16, b"."), ("1" * 16, b"/")):
        named = [Row(key, b"", START_NS) for key in (b"\xff.1.x", b"\xff/1/x", b"a.1.b")]
        segment(tmp_path / identity, 1, named, journal=identity, separator=separator)
    for _ in range(2):
        for pattern, expected in ((b"\xff.*.x", b"\xff.1.x"), (b"\xff/*/x", b"\xff/1/x"), (b"a.*.b", b"a.1.b")):
            frame = sbuslib.read([*tmp_path.iterdir()], "spark", session=spark, columns=["key"], pattern=pattern)
            assert [bytes(row.key) for row in frame.collect()] == [expected], "a literal, where the separator differs"
        for place in tmp_path.iterdir():
            seal(place)


@pytest.mark.parametrize("at", [200, -3])
def test_damage_of_a_sealed_file_is_an_error_that_names_it(spark: SparkSession, journal: Path, at: int) -> None:
    segment(journal, 1, rows(10))
    seal(journal)
    (path,) = (journal / "sealed").glob("*.parquet")
    flip(path, at)
    with pytest.raises(Exception, match=path.name) as caught:
        sbuslib.read(journal, "spark", session=spark).collect()
    assert any(word in str(caught.value) for word in ("checksum", "Parquet", "FAILED_READ_FILE"))


# -- streams, and rows published on a real bus


def test_a_query_goes_on_from_its_checkpoint_and_publishes(
    spark: SparkSession, folder: str, subscriber: Client, journal: Path, tmp_path: Path
) -> None:
    def run(**options: str) -> int:
        """Publish what there is. Returns how many batches it took."""
        stream = spark.readStream.format("sbus").schema("key BINARY, payload BINARY").options(**options)
        writer = stream.load(str(journal)).writeStream.format("sbus").option("address", f"{folder}/bus")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(200)
        return len(query.recentProgress)

    segment(journal, 1, rows(6), rows(6, 7), rows(6, 13))
    assert run(maxRecordsPerBatch="8") == 3
    segment(journal, 19, rows(4, 19))
    run()
    assert received(subscriber, 22) == [(row.key, row.payload) for row in rows(22)]


def test_a_cluster_takes_journals_into_a_lake_and_publishes_it(
    spark: SparkSession, folder: str, subscriber: Client, tmp_path: Path
) -> None:
    journals = [tmp_path / name for name in "abc"]
    for number, journal in enumerate(journals):
        segment(journal, 1, rows(10), journal=f"{number}123456789abcdef")
    seal(journals[0])
    made: list[Written] = []
    for _ in range(2):
        ingest(journals, tmp_path / "lake", progress=made.append, run=on_spark(spark))
        assert [one.rows for one in made] == [10, 10, 10]
    frame = sbuslib.read(tmp_path / "lake", "spark", session=spark, pattern="room/")
    frame.select("key", "payload").write.format("sbus").mode("append").option("address", f"{folder}/bus").save()
    assert sorted(received(subscriber, 30)) == sorted((row.key, row.payload) for row in rows(10) * 3)


# -- reports are the same rows with DuckDB and with Spark: the SQL is one, and runs unchanged in both

SEPARATORS = (b"/", b".", b"x", b"F", b"\\", b"\n", b"'", b"$", b"\x7f")
"""Those that DuckDB would write into an escaped key (``\\xFF``), and those that SQL or expressions mean otherwise."""

PATTERNS = [b"", b"a/", b"a*/", b"*/b", b"\xff*", b"x", b"xFx", b"nothing/here"]
PIECES = [b"a", b"b", b"x", b"F", b"\\", b"\xff", b"\xc3", b"'", b"\n", b"/", b".", b"$", "é".encode(), b"*"]
SIZES = [0, 1, 2, 3, 4, 5, 1_023, 1_024, 1_025, 2**40, 2**40 + 1, 2**52]


def random_rows(seed: int, count: int) -> list[Recorded]:
    """Rows with whatever a journal may hold, and more: null times, keys that are no text, times before 1970."""
    chance, found = random.Random(seed), list[Recorded]()
    times = [None, -1.8e9, -1.75e9 - 0.5, 0.0, 0.000001, 59.999999, 60.0, 1e9, *(37.1 * n for n in range(6))]
    for _ in range(count):
        at, hub = chance.choice(times), chance.choice([None, "", "hub-1", "hub-é", "9f2c'"])
        if chance.random() < 0.8:
            key = b"".join(chance.choices(PIECES, k=chance.randrange(7)))
            sender = chance.choice([None, b"", b"\xff\xfe", b"!/cred/100/1000/4711"])
            gid, uid = (chance.choice([None, 0, 1000, 2**32 - 1]) for _ in range(2))
            size = chance.choice(SIZES)
            found.append(Recorded(kind="message", at=at, hub=hub, key=key, size=size, sender=sender, gid=gid, uid=uid))
        else:
            lost, cause = chance.choice([None, 0, 1, 2**40]), chance.choice([None, "", "overflow", "cut"])
            found.append(Recorded(kind="gap", at=at, hub=hub, lost=lost, cause=cause))
    return found


def everything(recorded: Engine) -> dict[str, Any]:
    """All that reports ask, by name, with the types of the values."""
    counts = by_key(recorded)
    found = {
        "span": traffic.span(recorded),
        "keys": sorted(counts),
        "levels": [by_level(counts, 3, separator) for separator in SEPARATORS],
        "patterns": by_pattern(counts, PATTERNS, b"/"),
        **{name: table.rows for name, table in traffic.summaries(recorded, 60).items()},
    }
    return {name: (value, repr(value)) for name, value in found.items()}


def test_both_engines_give_the_same_rows_of_random_tables(spark: SparkSession) -> None:
    each_byte = [Recorded(kind="message", at=0, key=bytes([n, 0x61, n]), size=1) for n in range(256)]
    for table in (recording([]), recording(random_rows(1, 1_000) + each_byte)):
        with in_memory(table) as found:
            expected = everything(found)
        assert everything(InSpark(spark.createDataFrame(table))) == expected


def test_both_engines_give_the_same_reports_of_a_journal(
    spark: SparkSession,
    tmp_path: Path,
    journal: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sealed files, with rows that are not sealed; those of a hub and a time, and all of them by the command."""
    second = 1_000_000_000
    some = [
        Row(b"room/%d/\xff" % (n % 3), b"x" * n, START_NS + n * second, b"!/cred/100/1000/%d" % (n % 2))
        for n in range(40)
    ]
    segment(journal, 1, some[:20], (START_NS + 20 * second, "overflow", 7))
    seal(journal)
    segment(journal, 22, some[20:], (START_NS + 41 * second, "cut", None), hub="hub-2")
    for choice in (Choice("hub-2", START_NS + 5 * second, START_NS + 41 * second), Choice(hub="none")):
        with in_duckdb(journal, choice) as in_process:
            found = []
            for recorded in (in_process, in_spark(spark, journal, choice)):
                made = [traffic.traffic(recorded, levels=2), subscriptions(recorded, PATTERNS)]
                found.append([report and report.tables for report in made])
                assert all(f"with {recorded.engine} on" in report.page() for report in made if report is not None)
            assert found[0] == found[1]
            assert (found[0][0] is None) is (choice.hub == "none")

    # The command uses the session of the tests, and does not end it.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sbuslib.spark.sessions.session", lambda *arguments, **options: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    monkeypatch.setattr("sbuslib.cli.jobs.yield_to_ctrl_c", lambda: None)
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
