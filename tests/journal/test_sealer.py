"""The sealer: segments are sealed as they end."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from journal.format.journals import records_of
from support import eventually

from sbuslib import Hub
from sbuslib.journal.format.directory import DirectoryLock
from sbuslib.journal.limits import JournalLimits
from sbuslib.journal.recorder import Recorder
from sbuslib.journal.sealer import Sealer
from sbuslib.journal.summary import summarize

# -- A recorder seals its segments as they end, and neither loses a row nor keeps a process

LIMITS = JournalLimits(segment_bytes=2_000, block_seconds=0.001)


def publish(hub: Hub, recorder: Recorder, first: int) -> None:
    """Publish ten messages, which end a segment at least."""
    for number in range(first, first + 10):
        hub.publish(b"k", b"%03d" % number + b"x" * 300)
        recorder.flush()
        eventually(lambda number=number: recorder.durable_sequence >= number)  # type: ignore[misc]


def states(journal: str) -> set[str]:
    return {file.state for found in summarize(journal) for file in found.files}


def children() -> set[str]:
    """The processes that are children of this one."""
    found = set[str]()
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found.update(file.read_text().split())
    return found


def has_open(process: int | None, path: str) -> bool:
    """Whether a process has opened a file."""
    with suppress(FileNotFoundError):  # it has just closed another
        return any(os.readlink(one) == path for one in Path(f"/proc/{process}/fd").iterdir())
    return False


def test_segments_are_sealed_as_they_end(hub: Hub, journal: str) -> None:
    pytest.importorskip("pyarrow")
    before = children()  # of other tests of this process
    with Recorder(hub, journal, limits=LIMITS, seal=True) as recorder:
        publish(hub, recorder, 1)
        eventually(lambda: "sealed" in states(journal))
        publish(hub, recorder, 11)
    assert children() <= before
    payloads = [row.payload[:3] for row in records_of(journal) if row.payload]
    assert payloads == [b"%03d" % number for number in range(1, 21)]


def test_a_sealer_that_is_killed_loses_nothing(hub: Hub, journal: str, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pyarrow")
    with Recorder(hub, journal, limits=LIMITS) as recorder:
        publish(hub, recorder, 1)
        before = records_of(journal)
        sealer = Sealer(journal)
        sealer.start()
        assert sealer._process is not None
        os.kill(sealer._process, signal.SIGKILL)
        eventually(lambda: sealer.look() or sealer._process is None)  # type: ignore[func-returns-value]
        assert "sealing ended with status -9" in caplog.text
        assert records_of(journal)[: len(before)] == before
        sealer.start()
        sealer.stop()
        sealer.stop()
        assert records_of(journal)[: len(before)] == before


def test_the_sealer_that_a_killed_recorder_left_is_waited_for(
    hub: Hub, journal: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is normal life: nobody is warned, and what it has not sealed is sealed after it."""
    pytest.importorskip("pyarrow")
    with Recorder(hub, journal, limits=LIMITS) as recorder:
        publish(hub, recorder, 1)
    former = DirectoryLock(journal, "sealer.lock")
    sealer = Sealer(journal)
    sealer.start()
    eventually(lambda: has_open(sealer._process, f"{journal}/sealer.lock"))
    former.close()
    eventually(lambda: sealer.look() or sealer._process is None)  # type: ignore[func-returns-value]
    assert "sealed" in states(journal)
    assert (caplog.text, capfd.readouterr().err) == ("", "")


def test_nothing_is_sealed_where_there_is_no_arrow(journal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbuslib.journal.sealer.find_spec", lambda name: None)
    Path(journal).mkdir()
    sealer = Sealer(journal)
    sealer.start()
    assert sealer._process is None
    assert list(Path(journal).iterdir()) == []
