"""``sbus report night``: what happened, in order of time, from a journal that a recorder wrote meanwhile."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from accounting import acting_as
from cli.conftest import Run, Start
from journal.format.journals import Row, segment
from support import PATIENCE, Peer

from sbuslib.blocking import Client
from sbuslib.errors import SbusError

pytest.importorskip("duckdb")

SECOND = 1_000_000_000


def await_recorder(path: str) -> None:
    with Client(path) as client:
        while client.hub.statistics().patterns != 1:
            time.sleep(0.002)


@pytest.mark.promise("reports.md", "what happened is listed in order of time")
def test_a_night_with_five_troubles_is_reported_in_order(
    serve: Start, start: Start, run: Run, path: str, folder: str, tmp_path: Path
) -> None:
    """A link goes away, a flood, a take-over, a refused user, ``kill -9`` of the hub; and a key fell silent before."""
    os.chmod(folder, 0o755)
    journal, now = tmp_path / "journal", time.time_ns()
    journal.mkdir()
    segment(journal, 1, [Row(b"beat/1", b"", now - (3_600 - 30 * number) * SECOND) for number in range(60)])
    hub = serve("-o", "-u", "root")
    recorder = start("sbuslib", "journal", "record", "-a", path, "--no-seal", str(journal))
    await_recorder(path)

    with Peer(path) as link:
        link.send(b"CMSG interest/on")
        while "a link has joined" not in hub.stderr.readline().decode():
            pass
    while "a link has ended" not in hub.stderr.readline().decode():
        pass
    with Client(path) as flooder:
        flooder.publish_many((b"flood/1", b"") for _ in range(20_000))
        flooder.sync()
    successor = serve("-o", "-u", "root", "--take-over")
    assert hub.wait(PATIENCE) == 0
    with acting_as(4_321), pytest.raises(SbusError):
        Client(path)
    with Client(path) as witness:  # whose answer comes after what the recorder was told
        witness.sync()
    successor.kill()
    successor.wait()
    serve("-o", "-u", "root")
    await_recorder(path)
    with Client(path) as client:
        client.publish(b"k")
        client.sync()
    recorder.send_signal(signal.SIGINT)
    assert recorder.wait(PATIENCE) == 0

    page = str(tmp_path / "night.html")
    done = run("sbuslib", "report", "night", str(journal), "--output", page)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line[2:3] == ":"]
    kinds = [line[10:20].strip() for line in lines]
    before = ["silent", "outage", "serves", "joined", "ended"]
    assert kinds == [*before, "flood", "took over", "refused", "outage", "serves"], done.stdout
    text = dict(zip(kinds, lines, strict=True))  # of two of a kind the later one
    assert "nothing came under beat/1 after that; before, 60 messages, 30 s apart at most" in text["silent"]
    assert "user root (0) published" in text["flood"]
    assert text["flood"].endswith(" a second, usually 0")
    assert "user not allowed; user 4321 (4321), process " in text["refused"]
    assert "nothing was recorded for " in text["outage"]
    assert all(kind in Path(page).read_text() for kind in kinds)

    # What reads a journal otherwise sees no message and no loss in it.
    assert run("sbuslib", "journal", "cat", str(journal), "-p", "k").stdout
    found = run("sbuslib", "journal", "verify", str(journal)).stdout
    assert "lost: hub" not in found


def test_a_time_of_the_day_is_the_last_one(run: Run) -> None:
    from sbuslib.cli.values import moment

    minute = time.localtime(time.time() + 120)
    assert -86_400 < moment(f"{minute.tm_hour:02}:{minute.tm_min:02}") / SECOND - time.time() < -86_000
