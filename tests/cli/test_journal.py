"""``sbus journal``: what it tells of journals, and its consumers."""

from __future__ import annotations

import json
import os

import pyarrow.parquet
import pytest
from cli.conftest import Run, Start
from journal.format.journals import EXAMPLE, SENDER, flip, message, write
from support import PATIENCE, HubThread

from sbuslib.blocking import Client
from sbuslib.journal.consume import consume
from sbuslib.wire.offers import Offer, encode_offer

# -- ``sbus journal`` as a program


def damage(journal: str) -> str:
    path = os.path.join(journal, min(os.listdir(journal)))
    flip(path, 250)
    return path


def test_info_tells_what_a_journal_holds(run: Run, journal: str) -> None:
    done = run("sbuslib", "journal", "info", journal)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    told = dict(line.split(None, 1) for line in lines[:8])
    assert told["files"].startswith("2, ")
    assert told["rows"] == "9, the first is row 1"
    assert told["recorder"] == "none at work"
    assert [line.split()[0] for line in lines[8:]] == sorted(os.listdir(journal))
    assert all(line.endswith("ended") for line in lines[8:])
    found = json.loads(run("sbuslib", "journal", "info", "--json", journal).stdout)
    assert [file["rows"] for file in found["files"]] == [3, 6]
    assert found["journal"] == told["journal"]


def test_cat_shows_messages_and_tells_gaps(run: Run, journal: str) -> None:
    moment, rest = run("sbuslib", "journal", "cat", journal, "-t", "-s", "-n", "1").stdout.split("\t", 1)
    assert (moment[:2], rest) == ("20", "!/cred/100/1000/4711\troom/1/temp\t21.5\n")
    done = run("sbuslib", "journal", "cat", journal, "-p", "room/*/temp", "-n", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "room/1/temp\t21.5\nroom/1/temp\t" + r"\x00\xff" * 20 + "\n"
    done = run("sbuslib", "journal", "cat", journal)
    assert done.stdout.count("\n") == 6
    assert done.stderr.splitlines() == [
        "sbus: row 5: 7 messages were lost: overflow",
        "sbus: row 6: an unknown number of messages were lost: outage",
        "sbus: row 7: 1 messages were lost: overflow",
    ]


def test_what_cat_writes_as_json_can_be_published(run: Run, journal: str, bus: HubThread, path: str) -> None:
    lines = run("sbuslib", "journal", "cat", "--json", "--timestamps", "--senders", journal).stdout
    with Client(path) as client:
        client.subscribe(b"")
        assert run("sbuslib", "pub", "-a", path, "--json", input=lines).returncode == 0
        found = [client.receive(timeout=PATIENCE) for _ in range(6)]
    rows = [row for segment in EXAMPLE for block in segment for row in block if row.key is not None]
    assert [(one.key, one.payload) for one in found] == [(row.key, row.payload) for row in rows]


def test_damage_ends_cat_unless_it_is_skipped(run: Run, journal: str) -> None:
    path = damage(journal)
    done = run("sbuslib", "journal", "cat", journal)
    assert done.returncode == 1
    assert done.stderr.startswith(f"sbus: {path}: byte ")
    assert done.stderr.endswith("; --skip-corrupt goes on after it\n")
    done = run("sbuslib", "journal", "cat", "--skip-corrupt", journal)
    assert done.returncode == 0
    assert done.stdout.startswith("room/2/temp\t19\n")
    assert "bytes at 112 skipped" in done.stderr


def test_verify_finds_damage(run: Run, journal: str) -> None:
    done = run("sbuslib", "journal", "verify", journal)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{journal}: 6 messages from row 1 on, in 2 files: all of it is whole",
        f"{journal}: 0 lost, and 1 times nobody knows how many: outage",
        f"{journal}: 8 lost: overflow",
        "not every message is accounted for: 6 recorded, 8 lost by known causes, and nobody knows how many by outage",
    ]
    found = json.loads(run("sbuslib", "journal", "verify", journal, "--json").stdout)
    assert (found["journal"], found["messages"], found["is_whole"], found["damages"]) == (journal, 6, True, [])
    assert (found["lost"]["overflow"], found["unknown"]["outage"]) == (8, 1)

    path = damage(journal)
    done = run("sbuslib", "journal", "verify", journal, "--json")
    (damaged,) = json.loads(done.stdout)["damages"]
    assert (done.returncode, damaged["path"], damaged["position"]) == (1, path, 112)
    done = run("sbuslib", "journal", "verify", journal)
    assert (done.returncode, done.stderr) == (1, "")
    first, second, third, *_ = done.stdout.splitlines()
    assert first.startswith(f"{path}: byte 112: a block is damaged (")
    assert second == f"{journal}: 3 messages from row 1 on, in 2 files: 1 places are damaged"
    assert third == f"{journal}: 3 lost: damaged"


def test_query_looks_into_payloads_and_writes_files(run: Run, folder: str) -> None:
    payloads = [b'{"temp": {"value": 1.5}}', b'{"temp": {"value": 2.5}}', b"no json", b"\xff"]
    write(f"{folder}/inside", [[message(number, b"room/1", payload) for number, payload in enumerate(payloads, 1)]])
    sql = "SELECT avg(try(decode(payload) ->> '$.temp.value')::DOUBLE) AS mean FROM journal"
    assert run("sbuslib", "journal", "query", f"{folder}/inside", sql).stdout.split() == ["mean", "2.0"]
    sql = f"COPY (SELECT * FROM journal WHERE sequence > 2) TO '{folder}/part.parquet'"
    assert run("sbuslib", "journal", "query", f"{folder}/inside", sql).returncode == 0
    assert pyarrow.parquet.read_table(f"{folder}/part.parquet").column("payload").to_pylist() == payloads[2:]


def test_verify_counts_the_frames_that_no_journal_has(run: Run, folder: str) -> None:
    offers = [
        Offer("frame", 1_000_001, store=bytes(16)),
        Offer("file", 9, store=bytes(16)),
        Offer("frame", 4),
    ]
    payloads = [encode_offer(offers[0]), encode_offer(offers[1]), encode_offer(offers[2], b"here"), b"plain"]
    write(f"{folder}/frames", [[message(number, b"camera", payload) for number, payload in enumerate(payloads, 1)]])
    whole, frames, verdict = run("sbuslib", "journal", "verify", f"{folder}/frames").stdout.splitlines()
    assert whole.endswith("4 messages from row 1 on, in 1 files: all of it is whole")
    assert frames.endswith(": 2 of them name frames, files or descriptors, which are not recorded")
    assert verdict == "every message is accounted for: 4 recorded, 0 lost by known causes"


@pytest.mark.parametrize("verb", ["info", "cat", "verify"])
def test_what_is_no_journal_is_reported_and_the_others_are_read(run: Run, journal: str, folder: str, verb: str) -> None:
    good = run("sbuslib", "journal", verb, journal)
    assert good.returncode == 0
    done = run("sbuslib", "journal", verb, folder, f"{folder}/none", journal)
    assert (done.returncode, done.stdout) == (1, good.stdout)
    assert done.stderr.splitlines()[:2] == [
        f"sbus: {folder}: there is no journal and no lake here",
        f"sbus: {folder}/none: no such directory",
    ]


def test_sealed_rows_are_shown_and_counted(run: Run, journal: str) -> None:
    before = {verb: run("sbuslib", "journal", verb, journal).stdout for verb in ("cat", "verify")}
    assert run("sbuslib", "seal", journal).returncode == 0
    assert run("sbuslib", "journal", "cat", journal).stdout == before["cat"]
    told = run("sbuslib", "journal", "verify", journal).stdout
    assert told.splitlines()[1:] == before["verify"].splitlines()[1:]
    assert " 9 rows " in run("sbuslib", "journal", "info", journal).stdout.splitlines()[-1]


def test_query_answers_sql(run: Run, journal: str) -> None:
    sql = "SELECT key, count(*) AS n FROM journal WHERE key IS NOT NULL GROUP BY key ORDER BY n DESC, key"
    done = run("sbuslib", "journal", "query", journal, sql)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["key", "n"],
        ["room/1/temp", "2"],
        ["room/2/temp", "2"],
        ["k", "1"],
        ["log/a", "1"],
    ]
    lines = run("sbuslib", "journal", "query", "--json", journal, f"{sql} LIMIT 1").stdout
    assert json.loads(lines) == {"key": "room/1/temp", "n": 2}
    wrong = run("sbuslib", "journal", "query", journal, "SELECT nothing FROM journal")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("sbus: Binder Error")
    assert len(wrong.stderr.splitlines()) == 1


def test_query_ends_with_the_place_of_the_damage(run: Run, journal: str) -> None:
    path = damage(journal)
    done = run("sbuslib", "journal", "query", journal, "SELECT count(payload) FROM journal")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"sbus: {path}: byte 112: a block is damaged")
    assert (done.stderr.count("\n"), done.stderr.count("Traceback")) == (1, 0)


def test_a_journal_without_a_row_is_verified_and_so_are_the_others(run: Run, journal: str, folder: str) -> None:
    os.mkdir(f"{folder}/new")
    with open(f"{folder}/new/recorder.lock", "w"):
        pass
    done = run("sbuslib", "journal", "verify", f"{folder}/new", journal)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"{folder}/new: 0 messages, in 0 files: all of it is whole"
    assert done.stdout.endswith(run("sbuslib", "journal", "verify", journal).stdout)


@pytest.mark.parametrize("verb", ["seal", "ingest"])
def test_a_damaged_header_is_no_journal_without_rows(run: Run, folder: str, verb: str) -> None:
    (path,) = write(f"{folder}/one", EXAMPLE[0])
    flip(path, 50)
    for skip in ([], ["--skip-corrupt"]):
        done = run("sbuslib", "journal", verb, *skip, f"{folder}/one", *[f"{folder}/lake"] * (verb == "ingest"))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"sbus: {path}: byte 0: the segment's header is damaged")


# -- ``sbus consume`` as a program


def test_each_run_goes_on_where_the_one_before_stopped(run: Run, journal: str) -> None:
    done = run("sbuslib", "consume", "a", journal, "-n", "1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "room/1/temp\t21.5\n", "")
    done = run("sbuslib", "consume", "a", journal, "room/2/", "k", "--once", "--senders")
    assert done.stdout == f"{SENDER.decode()}\troom/2/temp\t19\n{SENDER.decode()}\troom/2/temp\txxxxxxxxx\n" + (
        f"{SENDER.decode()}\tk\ty\n"
    )
    assert done.stderr.splitlines() == [
        "sbus: row 5: 7 messages were lost: overflow",
        "sbus: row 6: an unknown number of messages were lost: outage",
        "sbus: row 7: 1 messages were lost: overflow",
    ]
    done = run("sbuslib", "consume", "a", journal, "--once")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads(run("sbuslib", "consume", "b", journal, "-n", "1", "--json").stdout)["key"] == "room/1/temp"


def test_what_is_recorded_meanwhile_is_shown(
    start: Start, ready: Start, bus: HubThread, path: str, folder: str
) -> None:
    journal = f"{folder}/recorded"
    ready("record", journal)
    shown = start("sbuslib", "consume", "a", journal, "room/")
    with Client(path) as client:
        for number in range(3):
            client.publish(b"hall", b"")
            client.publish(b"room/1", b"%d" % number)
            assert shown.stdout.readline() == b"room/1\t%d\n" % number
    shown.kill()
    shown.wait()
    with consume("a", [b"room/"], journal, follow=False) as consumer:
        assert len(list(consumer)) <= 1, "what was shown before the last message was acknowledged before it"


def test_a_command_is_run_for_each_message_until_one_fails(run: Run, journal: str, folder: str) -> None:
    command = (
        f'test "$SBUS_ROW" != 4 && printf "%s %s " "$SBUS_KEY" "$SBUS_SENDER" >>{folder}/out && cat >>{folder}/out'
    )
    done = run("sbuslib", "consume", "a", journal, "room/", "log/", "--execute", command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "sbus: the command ended with status 1, and gets this message again\n"
    with open(f"{folder}/out", "rb") as file:
        assert file.read() == b"room/1/temp %b 21.5log/a %b room/1/temp %b " % (SENDER, SENDER, SENDER) + b"\0\xff" * 20
    done = run("sbuslib", "consume", "a", journal, "-n", "1", "-x", "exit 0")
    assert (done.returncode, done.stderr) == (0, ""), "it need not read its standard input"
    done = run("sbuslib", "consume", "a", journal, "-n", "1")
    assert done.stdout == "room/2/temp\txxxxxxxxx\n"


def test_a_key_that_no_environment_takes_is_left_out(run: Run, folder: str) -> None:
    write(f"{folder}/journal", [[message(1, b"k" * 300_000, b"x" * 300_000)]])
    command = f'echo "${{SBUS_KEY-none}} $(wc -c)" >{folder}/out'
    done = run("sbuslib", "consume", "a", f"{folder}/journal", "--once", "-x", command)
    assert (done.returncode, done.stderr) == (0, "")
    with open(f"{folder}/out") as file:
        assert file.read().split() == ["none", "300000"]


def test_a_second_consumer_of_a_name_is_refused(start: Start, run: Run, journal: str, folder: str) -> None:
    first = start("sbuslib", "consume", "a", journal, "--positions", folder)
    first.stdout.readline()
    done = run("sbuslib", "consume", "a", journal, "--positions", folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("consumer-a.position: another consumer of this name is at work\n")
    first.kill()
    first.wait(PATIENCE)
    assert run("sbuslib", "consume", "a", journal, "--positions", folder, "--once").returncode == 0


def test_damage_is_skipped_if_asked(run: Run, journal: str) -> None:
    damage(journal)
    done = run("sbuslib", "consume", "a", journal, "--once")
    assert done.returncode == 1
    assert done.stderr.endswith("; --skip-corrupt goes on after it\n")
    done = run("sbuslib", "consume", "a", journal, "--once", "--skip-corrupt")
    assert (done.returncode, done.stdout.count("\n")) == (0, 3)
    assert done.stderr.startswith("sbus: row 3: 3 messages were lost: damaged\n")
