"""Files are opened through no link, and by root in no folder of others, wherever the package writes one."""

from __future__ import annotations

import ast
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from journal.format.journals import rows, segment
from support import ROOT

from sbuslib.clients.fds.files import FileSink
from sbuslib.errors import JournalError, SbusError, StateError
from sbuslib.journal.consume import consume
from sbuslib.journal.format.directory import durable_sequence, is_recorded, read_header
from sbuslib.journal.read.blocks import read_records
from sbuslib.journal.read.sealing import ingest, seal
from sbuslib.journal.summary import summarize
from sbuslib.journal.verify import verify
from sbuslib.journal.writer import Writer
from sbuslib.kernel.regular_files import check_folder, make_folder, open_emptied, open_regular
from sbuslib.reports.exports import Table, write_csv, write_parquet
from sbuslib.services.queue_store import Store
from sbuslib.services.retain import Kept

ANOTHER = 2201
"""The id of a user that need not exist."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of other users")
ALL = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def record(folder: Path) -> None:
    writer = Writer(folder, hub="hub", separator=b"/")
    writer.open()
    writer.end()
    assert writer.join(60)


WRITERS: dict[str, Callable[[Path], object]] = {
    "record": record,
    "seal": seal,
    "consume": lambda folder: consume("c", [b""], folder).close(),
    "ingest": lambda folder: ingest([folder.with_name("journal")], folder / "lake"),
    "queue": lambda folder: Store(folder / "store").__exit__(None, None, None),
    "retain": lambda folder: Kept(folder / "kept").close(),
    "csv": lambda folder: write_csv({"t": Table({"a": "int64"}, [])}, str(folder)),
    "parquet": lambda folder: write_parquet({"t": Table({"a": "int64"}, [])}, str(folder)),
    "receive": lambda folder: FileSink(folder, "file").discard(),
}
"""Whatever writes into a folder that it is given."""

NAMES = {
    "record": "recorder.lock",
    "seal": "sealer.lock",
    "consume": "consumer-c.position",
    "queue": "store",
    "retain": "kept",
    "csv": "t.csv",
    "parquet": "t.parquet",
}
"""A file that each of them opens."""


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT, ALL])
def test_nothing_but_a_regular_file_is_opened(tmp_path: Path, flags: int) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"all")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "nowhere").symlink_to(tmp_path / "new")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name in ("link", "nowhere", "fifo", "folder", "link/below"):
        with pytest.raises(OSError, match=name):
            open_regular(tmp_path / name, flags)
    assert victim.read_bytes() == b"all"
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_emptied_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    open_emptied(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    path.write_bytes(b"before")
    with open_emptied(path) as file:
        file.write(b"now")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"now", 0o640)


@as_root
def test_root_writes_only_where_the_whole_path_is_its_own(tmp_path: Path) -> None:
    for name in ("own", "other/own", "other/link", "sticky"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "to_other").symlink_to("other")
    (tmp_path / "to_own").symlink_to(tmp_path / "own")
    (tmp_path / "link_of_other").symlink_to("own")
    (tmp_path / "other" / "back").symlink_to("../own")
    (tmp_path / "twice").symlink_to("other/back")
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "sticky" / "file").write_bytes(b"theirs")
    for name in ("other", "link_of_other", "sticky/file"):
        os.chown(tmp_path / name, ANOTHER, ANOTHER, follow_symlinks=False)

    for name in ("other", "other/own", "to_other", "to_other/own", "link_of_other", "other/back", "twice"):
        with pytest.raises(StateError, match=rf"belongs to user {ANOTHER}.*setpriv --reuid {ANOTHER}"):
            open_regular(tmp_path / name / "file", ALL)
        with pytest.raises(StateError):
            make_folder(tmp_path / name / "new")
    with pytest.raises(StateError):
        open_regular(tmp_path / "sticky" / "file", ALL)
    assert (tmp_path / "sticky" / "file").read_bytes() == b"theirs"
    assert [*(tmp_path / "own").iterdir()] == []
    for name in ("own", "to_own", "sticky"):
        os.close(open_regular(tmp_path / name / "mine", ALL))
        make_folder(tmp_path / name / "new" / "more")
    os.close(open_regular(tmp_path / "sticky" / "file"))  # reading changes nothing


@as_root
def test_the_sentence_says_what_to_type_for_a_user_with_a_name(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(StateError, match=r"belongs to user nobody, .* runuser -u nobody -- COMMAND"):
        check_folder(tmp_path)


@as_root
def test_root_of_a_sandbox_may_write_where_the_users_above_it_are_unknown(tmp_path: Path) -> None:
    code = f"from sbuslib.kernel.regular_files import check_folder; check_folder({str(tmp_path)!r}); print('may')"
    sandbox = ["unshare", "--user", "--map-root-user", sys.executable, "-c"]
    if subprocess.run([*sandbox, ""], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    os.chown(tmp_path, ANOTHER, ANOTHER)
    assert subprocess.run([*sandbox, code], capture_output=True, check=True, cwd=ROOT).stdout == b"may\n"


@as_root
@pytest.mark.parametrize("name", WRITERS)
def test_root_writes_nothing_into_a_folder_of_another_user(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    for place in (folder, tmp_path / "journal"):
        segment(place, 1, rows(10))
        segment(place, 11, rows(10))
    os.chown(folder, ANOTHER, ANOTHER)
    before = sorted(folder.rglob("*"))
    with pytest.raises(SbusError, match=f"belongs to user {ANOTHER}"):
        WRITERS[name](folder)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_no_writer_opens_a_link_or_waits_for_a_fifo(tmp_path: Path, name: str, kind: str) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_bytes(b"all")
    segment(folder, 1, rows(10))
    if kind == "link":
        (folder / NAMES[name]).symlink_to(victim)
    else:
        os.mkfifo(folder / NAMES[name])
    with pytest.raises((SbusError, OSError), match=r"is a link|no regular file"):
        WRITERS[name](folder)
    assert victim.read_bytes() == b"all"


def test_a_link_in_the_place_of_what_a_sealer_writes_is_replaced(tmp_path: Path) -> None:
    victim, journal = tmp_path / "victim", tmp_path / "journal"
    victim.write_bytes(b"all")
    for first in (1, 11):
        segment(journal, first, rows(10, first))
    (journal / "sealed").mkdir()
    (journal / "sealed" / f"_0123456789abcdef-{1:020d}.new").symlink_to(victim)
    assert seal(journal) == 1
    assert victim.read_bytes() == b"all"
    assert verify(journal).is_whole


def test_a_folder_of_sealed_files_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    for first in (1, 11):
        segment(journal, first, rows(10, first))
    (tmp_path / "elsewhere").mkdir()
    (journal / "sealed").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalError, match="sealed: this is a link"):
        seal(journal)
    assert [*(tmp_path / "elsewhere").iterdir()] == []


READERS: dict[str, Callable[[Path], object]] = {
    "verify": verify,
    "summarize": summarize,
    "read": lambda journal: [*read_records(journal)],
    "seal": seal,
    "record": record,
    "consume": lambda journal: [*consume("c", [b""], journal, follow=False)],
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_no_reader_opens_a_segment_that_is_no_file(tmp_path: Path, name: str, kind: str) -> None:
    journal = tmp_path / "journal"
    segment(journal, 1, rows(10))
    other = segment(tmp_path / "other", 11, rows(10, 11))
    place = journal / other.name
    if kind == "link":
        place.symlink_to(other)
    else:
        os.mkfifo(place)
    with pytest.raises((SbusError, OSError), match=r"is a link|no regular file"):
        READERS[name](journal)


def test_a_lock_that_is_a_fifo_says_nothing_of_a_recorder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "recorder.lock")
    assert not is_recorded(tmp_path)
    assert durable_sequence(tmp_path) == 0
    os.mkfifo(tmp_path / f"{1:020d}.sbj")
    with pytest.raises(OSError, match="no regular file"):
        read_header(tmp_path / f"{1:020d}.sbj")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_sealed_files_are_as_private_as_segments(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir(0o755)
    for first in (1, 11):
        segment(journal, first, rows(10, first))
    seal(journal)
    assert mode(journal / "sealed") == 0o700
    assert {mode(path) for path in (journal / "sealed").iterdir()} == {0o600}


@pytest.mark.parametrize(("of_folder", "of_files"), [(None, 0o600), (0o750, 0o640), (0o755, 0o644), (0o2770, 0o660)])
def test_files_of_a_lake_may_be_read_by_those_who_may_read_its_folder(
    tmp_path: Path, of_folder: int | None, of_files: int
) -> None:
    lake = tmp_path / "lake"
    if of_folder is not None:
        lake.mkdir()
        lake.chmod(of_folder)
    for first in (1, 11):
        segment(tmp_path / "journal", first, rows(10, first))
    ingest([tmp_path / "journal"], lake)
    ingest([lake], tmp_path / "copy")
    assert mode(lake) == (of_folder or 0o700)
    assert {mode(path) for path in lake.glob("*.parquet")} == {of_files}
    assert {mode(path) for path in (tmp_path / "copy").glob("*.parquet")} == {0o600}


def test_the_files_of_services_and_reports_are_private(tmp_path: Path) -> None:
    with closing(Kept(tmp_path / "kept")), Store(tmp_path / "store"):
        paths = [path for path in tmp_path.iterdir() if path.is_file()]
        assert {mode(path) for path in paths} == {0o600}
        assert len(paths) >= 2
    WRITERS["csv"](tmp_path / "tables")
    assert (mode(tmp_path / "tables"), mode(tmp_path / "tables" / "t.csv")) == (0o700, 0o600)


# -- the list ------------------------------------------------------------------------------------------------

CALLS = """
os.chmod os.chown os.fdopen os.link os.makedirs os.mkdir os.mkfifo os.mknod os.rename os.replace os.symlink
os.truncate shutil.copy shutil.copy2 shutil.copyfile shutil.copytree shutil.move sqlite3.connect duckdb.connect
"""
METHODS = """
write_text write_bytes touch mkdir symlink_to hardlink_to mkstemp mkdtemp TemporaryFile NamedTemporaryFile
TemporaryDirectory SpooledTemporaryFile ParquetWriter write_table write_dataset write_feather sink_parquet
open_output_stream open_append_stream create_dir
"""

READ_ONLY = r"os\.O_(RDONLY|PATH)( \| os\.O_(DIRECTORY|NOFOLLOW|CLOEXEC))*"

KNOWN = {
    "kernel/regular_files.py": {"os.fdopen", "os.makedirs", "os.open"},  # the one place
    # Below, in folders that were checked:
    "clients/fds/files.py": {"os.fdopen", "os.link", "os.open", "tempfile.TemporaryFile", "tempfile.mkstemp"},
    "cli/process.py": {"os.fdopen", "os.open", "os.rename"},  # also /dev/null, and a pipe
    "journal/format/directory.py": {"os.rename"},
    # Of files that were opened in the one place, or on their way to another machine:
    "journal/read/sealing.py": {
        "filesystem.create_dir", "filesystem.open_output_stream", "os.fdopen", "pyarrow.parquet.ParquetWriter",
        "tempfile.TemporaryDirectory", "writer.write_table",
    },
    "reports/exports.py": {"parquet.write_table"},
    "services/queue_store.py": {"sqlite3.connect"},
    "services/retain.py": {"sqlite3.connect"},
    # The lock beside a socket, in which nothing is written, and the mode of the socket:
    "kernel/sockets.py": {"os.chmod", "os.open"},
    # In folders that only this user can enter, or in memory:
    "cli/health.py": {"tempfile.TemporaryDirectory"},
    "reports/sql.py": {"TemporaryDirectory", "duckdb.connect"},
    "testing.py": {"tempfile.TemporaryDirectory"},
    "cli/journal.py": {"duckdb.connect"},
    "journal/read/readers.py": {"duckdb.connect"},
    # Of pipes and frames; and what is only read, with flags that are not written there:
    "cli/config.py": {"os.open"},
    "cli/daemon.py": {"os.fdopen"},
    "clients/fds/copying.py": {"os.open"},
    # By who makes the package, into a folder of theirs:
    "cli/manual.py": {"path.parent.mkdir", "path.write_text"},
}  # fmt: skip
"""Calls by which a module may make, change or rename a file, and why they are not in the one place."""


def calls_that_write(path: Path) -> set[str]:
    calls = set[str]()
    for call in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        name, arguments = ast.unparse(call.func), ", ".join(map(ast.unparse, [*call.args, *call.keywords][1:]))
        if (
            name in CALLS.split()
            or name.rpartition(".")[2] in METHODS.split()
            or (name == "os.open" and not re.fullmatch(READ_ONLY, arguments))
            or (name == "open" and re.match(r"'[^']*[wax+]|mode=", arguments))
        ):
            calls.add(name)
    return calls


def test_each_call_that_can_write_a_file_is_known() -> None:
    """What is new goes through one place, which follows no link, or is listed with the reason why not."""
    package = ROOT / "sbuslib"
    found = {str(path.relative_to(package)): calls_that_write(path) for path in package.rglob("*.py")}
    assert {name: calls for name, calls in found.items() if calls} == KNOWN
