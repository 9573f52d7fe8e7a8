"""``sbusd`` as a program: its flags, signals and files."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from accounting import acting_as
from cli.conftest import Program, Run, Start
from support import PATIENCE, WHOAMI, Peer, own_key

from sbuslib.blocking import Client
from sbuslib.cli.config import read_settings
from sbuslib.cli.daemon import build_parser
from sbuslib.cli.process import PidFile

SBUSD = "sbuslib.cli.daemon"


@pytest.fixture
def background(execute: Run, tmp_path: Path) -> Run:
    """Run ``sbusd`` in the background. What the daemon says later goes to the same place as standard error."""

    def background(*flags: str, **options: object) -> subprocess.CompletedProcess[str]:
        with open(tmp_path / "errors", "w+") as errors:
            done = execute(SBUSD, *flags, stderr=errors, **options)
            errors.seek(0)
            done.stderr = errors.read()
        return done

    return background


@pytest.fixture
def pid_file(folder: str) -> Iterator[str]:
    """Where a daemon may write its pid; what is named there is ended after the test."""
    path = os.path.join(folder, "pid")
    yield path
    if os.path.exists(path):
        os.kill(daemon_pid(path), signal.SIGKILL)


def daemon_pid(pid_file: str) -> int:
    with open(pid_file) as file:
        return int(file.read())


def await_exit(pid: int) -> None:
    """Wait for the end of a process that is not a child of this one."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], PATIENCE)[0], "it still runs"
    finally:
        os.close(fd)


def answers(address: str) -> bool:
    with Client(address) as client:
        return client.credentials == own_key()


def status_field(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/status") as file:
        return next(line.split()[1] for line in file if line.startswith(name + ":"))


def handles(pid: int, field: str, number: int) -> bool:
    return bool(int(status_field(pid, field), 16) & 1 << (number - 1))


def as_user(uid: int, path: str) -> str:
    """What happens to a client of another user: ``served``, ``refused`` or ``no permission``."""
    with acting_as(uid):
        try:
            peer = Peer(path)
        except PermissionError:
            return "no permission"
    with peer, suppress(BrokenPipeError):
        peer.send(WHOAMI)
        return "served" if peer.receive().startswith(WHOAMI) else "refused"
    return "refused"


# -- listening ------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_c_daemon() -> None:
    arguments = build_parser().parse_args([])
    assert read_settings(arguments).address == "/run/sbus.socket"
    assert (arguments.pid_file, arguments.foreground) == ("/run/sbus.pid", False)


def test_the_daemon_listens_when_it_closes_its_output(serve: Start, path: str) -> None:
    process = serve()
    assert process.printed == b""
    assert process.poll() is None
    assert answers(path)
    for fd in (0, 1):
        assert os.readlink(f"/proc/{process.pid}/fd/{fd}") == os.devnull


@pytest.mark.parametrize(
    ("flags", "mode", "umask"),
    [((), 0o700, 0), (("-g",), 0o770, 0o777), (("-o",), 0o777, 0o022), (("-go",), 0o777, 0o777)],
)
def test_the_socket_has_its_mode(serve: Start, path: str, flags: tuple[str, ...], mode: int, umask: int) -> None:
    serve(*flags, umask=umask)
    assert stat.S_IMODE(os.stat(path).st_mode) == mode


@pytest.mark.parametrize(("listening", "fd"), [(False, None), (True, 0)], ids=["high", "standard input"])
def test_a_passed_socket_is_served_and_keeps_its_mode(serve: Start, path: str, listening: bool, fd: int | None) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        os.chmod(path, 0o700)
        if listening:
            listener.listen()
        address = f"/dev/fd/{listener.fileno() if fd is None else fd}"
        where = {"pass_fds": [listener.fileno()]} if fd is None else {"stdin": listener}
        process = serve("-a", address, "-go", **where)
    assert answers(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    process.terminate()
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert said.decode() == (
        f"sbusd: {address}: -g and -o are ignored: a socket that was passed has its mode already\n"
    )
    assert os.path.exists(path), "a file that it did not make is not its to remove"


def test_the_daemon_starts_without_standard_descriptors(start: Start, path: str, pid_file: str) -> None:
    shell = subprocess.run(
        ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-m", SBUSD, "-a", path, "-p", pid_file],
        timeout=PATIENCE,
        check=False,
    )
    assert shell.returncode == 0
    assert answers(path)
    for fd in range(3):
        assert os.readlink(f"/proc/{daemon_pid(pid_file)}/fd/{fd}") == os.devnull


def test_the_limit_of_open_files_is_raised_and_violations_are_logged(serve: Start, path: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    process = serve(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)))
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    with Peer(path) as peer:
        peer.send(b"NONSENSE")
        assert peer.is_disconnected()
    line = process.stderr.readline().decode()
    assert line.startswith(f"sbusd: sbus hub at {path}: disconnected (repeats are summed up): unknown verb; user ")
    assert f", process {os.getpid()} (" in line


# -- ending ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_the_daemon_and_remove_its_socket(serve: Start, path: str, number: signal.Signals) -> None:
    process = serve()
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, b"")
    assert not os.path.exists(path)


def test_a_signal_while_it_starts_leaves_nothing_behind(start: Start, path: str) -> None:
    process = start(SBUSD, "-f", "-a", path)
    deadline = time.monotonic() + PATIENCE
    while not os.path.exists(path):
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert not os.path.exists(path)


def test_messages_sent_before_the_signal_are_delivered(serve: Start, path: str) -> None:
    process = serve()
    with Client(path) as subscriber, Client(path) as publisher:
        subscriber.subscribe(b"")
        publisher.publish_many((b"key", b"%d" % n) for n in range(200))
        process.terminate()
        assert [int(subscriber.receive(timeout=PATIENCE).payload) for _ in range(200)] == list(range(200))
    assert process.wait(PATIENCE) == 0


def test_close_ends_the_daemon_with_its_last_client(serve: Start, path: str) -> None:
    process = serve("-c")
    with Client(path):
        with Client(path):
            pass
        with Client(path) as another:
            another.hub.whoami()
            assert process.poll() is None
    assert process.wait(PATIENCE) == 0
    assert not os.path.exists(path)


# -- in the background ----------------------------------------------------------------------------------


def test_the_daemon_runs_in_the_background(background: Run, path: str, pid_file: str) -> None:
    done = background("-a", path, "-p", pid_file, umask=0o777)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert answers(path)
    pid = daemon_pid(pid_file)
    assert stat.S_IMODE(os.stat(pid_file).st_mode) == 0o644
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.getsid(pid) not in (os.getsid(0), pid), "its own session, which it does not lead"
    assert handles(pid, "SigIgn", signal.SIGHUP)
    assert os.readlink(f"/proc/{pid}/fd/1") == os.devnull
    assert os.readlink(f"/proc/{pid}/fd/2") != os.devnull, "a log file is kept; a terminal would not be"
    os.kill(pid, signal.SIGTERM)
    await_exit(pid)
    assert not os.path.exists(path)
    assert not os.path.exists(pid_file)


def test_the_daemon_runs_without_a_pid_file(background: Run, path: str) -> None:
    assert background("-c", "-a", path, "-p", "/dev/null").returncode == 0
    with Client(path) as client:
        client.subscribe(b"")
    deadline = time.monotonic() + PATIENCE
    while os.path.exists(path):  # nothing else tells that it has gone
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_pid_file_that_is_there_is_refused(background: Run, folder: str, path: str, pid_file: str) -> None:
    assert background("-a", path, "-p", pid_file).returncode == 0
    pid = daemon_pid(pid_file)
    done = background("-a", path + "2", "-p", pid_file)
    assert done.returncode == 1
    assert done.stderr == f"sbusd: {pid_file}: the pid file is there already, of process {pid}, which runs\n"
    done = background("-a", path, "-p", f"{pid_file}2")
    assert (done.returncode, done.stderr) == (1, f"sbusd: {path}: address in use\n")
    assert sorted(os.listdir(folder)) == ["bus", "pid"]
    assert answers(path)


def test_a_pid_file_of_an_ended_daemon_is_refused_with_advice(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / "pid").write_text(f"{gone.pid}\n")
    with pytest.raises(FileExistsError, match=f"left behind by process {gone.pid}, which is gone: remove it"):
        PidFile(str(tmp_path / "pid"))


# -- -r and -u ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "said", "replaced"),
    [
        ("", "address in use by an empty file (reuse, or -r, replaces it)", ""),  # of the C daemon's test, for a name
        ("precious", "address in use by something that is no socket", "neither a socket nor an empty file"),
    ],
)
def test_reuse_replaces_an_empty_file_and_nothing_else(
    execute: Run, serve: Start, path: str, there: str, said: str, replaced: str
) -> None:
    Path(path).write_text(there)
    done = execute(SBUSD, "-f", "-a", path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"sbusd: {path}: {said}")
    if replaced:
        done = execute(SBUSD, "-f", "-r", "-a", path)
        assert (done.returncode, done.stderr) == (1, f"sbusd: {path}: {replaced}, so it is not replaced\n")
        assert Path(path).read_text() == there
    else:
        serve("-r")
        assert answers(path)


def test_a_random_address_is_printed_with_one_write(start: Start) -> None:
    """Read over a socket that keeps packets apart, so that two writes would show, as without buffering."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        start(SBUSD, "-f", "-a", "/dev/unix/abstract", stdout=there, env={"PYTHONUNBUFFERED": "1"})
        there.close()
        here.settimeout(PATIENCE)
        (packet,) = iter(lambda: here.recv(4_096), b"")
    assert packet.endswith(b"\n")
    assert answers(packet.decode().strip())


def test_too_few_descriptors_are_an_error(execute: Run, path: str) -> None:
    """Beside the descriptors that the process needs, too few are left to give each user a share."""
    few = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))}
    done = execute(SBUSD, "-f", "-a", path, **few)
    assert (done.returncode, done.stderr) == (
        1,
        f"sbusd: {path}: this process may open 64 files, and a hub needs 80: raise the limit with `ulimit -n 1024`, or "
        "LimitNOFILE= in a systemd unit\n",
    )
    assert not os.path.exists(path)


@pytest.mark.parametrize(
    ("flags", "outcome"),
    [
        (("-g",), "no permission"),
        (("-o", "-u", "12345", "-u", "daemon"), "served"),
        (("-o", "-u", "daemon"), "refused"),
        (("-u", "12345"), "no permission"),
    ],
)
def test_only_allowed_users_may_connect(
    serve: Start, folder: str, path: str, flags: tuple[str, ...], outcome: str
) -> None:
    os.chmod(folder, 0o755)
    serve(*flags)
    assert as_user(12_345, path) == outcome
    assert answers(path), "the hub's own user always may"


# -- what is wrong is told in one line --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "flags", "status", "told"),
    [
        ("-f", "-a {}/none/bus", 1, "{}/none/bus: No such file or directory"),
        ("-p {}/pid", "-a {}/none/bus", 1, "{}/none/bus: No such file or directory"),
        ("-f", "-a {}/\x1b[2J/bus", 1, "{}/\\x1b[2J/bus: No such file or directory"),
        ("-p {}/pid", "-a /" + 200 * "x", 2, "the path of a socket has at most 107 bytes"),
        ("-f", "-a ''", 2, "an address is not empty and holds no NUL"),
        ("-f", "-a /dev/fd/999", 2, "/dev/fd/999: no socket: Bad file descriptor"),
        ("-p {}/pid", "-a /dev/fd/2", 2, "/dev/fd/2: no socket"),
        ("-f", "-a /dev/unix/abstract/0g", 2, "an abstract name is an even number of hexadecimal digits"),
        ("-f", "-a {}/bus -u nobody-by-this-name", 2, "there is no user 'nobody-by-this-name' on this machine"),
    ],
)
def test_impossible_arguments_are_refused(
    run_here: Run, folder: str, where: str, flags: str, status: int, told: str
) -> None:
    words = f"{where} {flags}".replace("{}", folder).split()
    done = run_here(SBUSD, *(word.replace("''", "") for word in words))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    assert told.replace("{}", folder) in done.stderr
    assert os.listdir(folder) == []


@pytest.mark.parametrize("where", ["127.0.0.1:0x", "0.0.0.0:0"])
def test_metrics_are_for_this_machine_alone(execute: Run, folder: str, path: str, where: str) -> None:
    done = execute(SBUSD, "-f", "-a", path, "--metrics", where)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert where in done.stderr
    assert os.listdir(folder) == []


def test_metrics_are_served_until_the_daemon_ends(serve: Start, folder: str) -> None:
    where = os.path.join(folder, "metrics")
    daemon = serve("--metrics", where)
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(PATIENCE)
        asking.connect(where)
        asking.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: asking.recv(65_536), b""))
    assert b"\nsbus_clients 0.0\n" in answer
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0
    assert not os.path.exists(where)


COLLECTED = """
import gc, sys
from sbuslib.cli import daemon
status = daemon.main(["-f", "-c", "-a", sys.argv[1]])
gc.collect()
print(len(gc.get_objects()), gc.get_freeze_count(), file=sys.stderr)
sys.exit(status)
"""


def test_what_survived_a_full_collection_is_kept_from_the_next(path: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", COLLECTED, path]
    with Program(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as sbusd:
        sbusd.stdout.read()  # closed once clients can connect
        Client(path).close()
        looked_at, frozen = map(int, sbusd.stderr.read().split())
        assert sbusd.wait(PATIENCE) == 0
    assert looked_at < 100 < frozen


def test_the_pid_file_of_a_daemon_that_takes_over_stays(tmp_path: Path) -> None:
    place = tmp_path / "bus.pid"
    old = PidFile(str(place))
    old.write()
    new = PidFile(str(place), replaces=True)
    assert place.stat().st_size
    new.write()
    old.await_successor()
    old.remove()
    assert place.read_text() == f"{os.getpid()}\n"
    new.remove()
    assert list(tmp_path.iterdir()) == []
