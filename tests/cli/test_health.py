"""``sbus ping``, ``hz``, ``doctor`` and ``bench`` as programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from accounting import acting_as
from cli.conftest import Await, Program, Run, Start
from gevent.socket import wait_read
from support import PATIENCE, HubThread, Peer, PlainDaemon, eventually

from sbuslib.bench.scenarios import SCENARIOS
from sbuslib.blocking import Client
from sbuslib.kernel.users import name_of_user
from sbuslib.limits import Limits

# -- ``sbus doctor`` as a plugin of a monitoring system


def test_a_value_above_its_limit_gives_a_status_and_a_line(run: Run, bus: HubThread, path: str) -> None:
    def doctor(*limits: str) -> tuple[int, str]:
        done = run("sbuslib", "doctor", "-a", path, *limits)
        assert done.stderr == ""
        return done.returncode, done.stdout

    status, line = doctor("--warn", "lost=0", "clients=100")
    assert status == 0
    assert re.fullmatch(
        r"SBUS OK - within limits \| clients=\d+;100; waiting=0;; lost=0;0; kicked=0;; dropped=0;; links=0;; "
        r"warnings=0;; problems=0;;\n",
        line,
    )
    with Peer(path) as peer:
        peer.send(b"nonsense")
        assert peer.is_disconnected()
    assert doctor("--warn", "kicked=0")[0] == 1
    status, line = doctor("--warn", "kicked=0", "--critical", "kicked=0", "clients=100")
    assert (status, line.partition(" |")[0]) == (2, "SBUS CRITICAL - 1 kicked")
    assert "kicked=1;0;0" in line


def test_a_hub_that_is_away_is_critical_and_one_that_does_not_trust_is_unknown(
    run_here: Run, bus: HubThread, path: str
) -> None:
    bus.call(lambda: setattr(bus.hub.context, "trusted", frozenset()))  # as another user would find it
    unknown = run_here("sbuslib", "doctor", "-a", path, "--warn", "lost=0")
    assert (unknown.returncode, unknown.stdout[:15]) == (3, "SBUS UNKNOWN - ")
    bus.stop()
    away = run_here("sbuslib", "doctor", "-a", path, "--critical", "lost=0")
    assert (away.returncode, away.stdout[:16]) == (2, "SBUS CRITICAL - ")


# -- ``sbus ping`` as a program


def test_each_answer_is_shown_and_their_times(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "ping", "-a", path, "-n", "3", "-i", "0.001")
    assert (done.returncode, done.stderr) == (0, "")
    *lines, summary = done.stdout.splitlines()
    assert len(lines) == 3
    for number, line in enumerate(lines, 1):
        assert re.fullmatch(rf"{re.escape(path)}: number={number} time=[0-9.]+ ms", line)
    assert re.fullmatch(r"least/mean/most = [0-9.]+/[0-9.]+/[0-9.]+ ms", summary)
    done = run("sbuslib", "ping", "-a", path, "-c", "2", "-i", "1ms", "--json")
    assert [json.loads(line)["number"] for line in done.stdout.splitlines()] == [1, 2]


def test_ctrl_c_ends_it_with_the_summary(start: Start, bus: HubThread, path: str) -> None:
    process = start("sbuslib", "ping", "-a", path, "-i", "10")
    assert b"time=" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, b"")
    assert output.startswith(b"least/mean/most = ")


def test_it_outlives_its_hub(start: Start, bus: HubThread, path: str) -> None:
    process = start("sbuslib", "ping", "-a", path, "-i", "0.001")
    for _ in range(5):
        assert b"time=" in process.stdout.readline()
    bus.stop()
    assert b"waiting for it" in process.stderr.readline()
    with HubThread(path):
        assert b"again" in process.stderr.readline()
        assert b"time=" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


def test_a_tree_with_a_hub_that_does_not_answer_is_partial(run: Run, folder: str) -> None:
    path = f"{folder}/bus"
    with HubThread(path, limits=Limits(sync_wait=0.01)), Peer(path) as silent:
        assert "scope=tree" in run("sbuslib", "ping", "-a", path, "--tree", "-n", "1").stdout
        silent.send(b"CMSG interest/on")
        silent.barrier()
        done = run("sbuslib", "ping", "-a", path, "--tree", "-n", "1")
        assert (done.returncode, done.stderr) == (1, "")
        assert "scope=partial" in done.stdout
        assert run("sbuslib", "ping", "-a", path, "-n", "1").returncode == 0


# -- ``sbus hz`` as a program: how often messages come


def lines(program: Program) -> Iterator[str]:
    return (line.decode().rstrip("\n") for line in program.stdout)


def test_a_table_tells_rate_bytes_and_intervals_by_key(
    start: Start, bus: HubThread, path: str, await_patterns: Await
) -> None:
    program = start("sbuslib", "hz", "-a", path, "--window", "0.2", "")
    await_patterns(1)
    with Client(path) as client:
        client.publish(b"\x1b[31m", b"x" * 100)
        client.publish_many([(b"fast", b"")] * 5)
    shown = lines(program)
    assert next(shown).split() == ["RATE", "BYTES", "MEAN", "DEVIATION", "MAX", "KEY"]
    rate, size, mean, deviation, longest, _ = next(line.split() for line in shown if line.endswith("fast"))
    assert float(rate) > 0
    assert size == "0"
    assert 0 <= float(mean) <= float(longest)
    assert float(deviation) >= 0
    hostile = next(line.split() for line in shown if line.endswith("\\x1b[31m"))
    assert hostile[2:5] == ["-", "-", "-"]


def test_json_has_the_fastest_keys_and_all_others_together(
    start: Start, bus: HubThread, path: str, await_patterns: Await
) -> None:
    program = start("sbuslib", "hz", "-a", path, "--window", "0.2", "--json", "--rows", "1", "a", "b/")
    await_patterns(2)
    with Client(path) as client:
        client.publish_many([(b"a", b"")] * 3 + [(b"b/1", b""), (b"b/2", b"")])
    came = 0
    for told in map(json.loads, lines(program)):
        assert told["window"] == 0.2
        assert len(told["keys"]) <= 2
        came += sum(row["messages"] for row in told["keys"])
        if came == 5:
            break
    assert [row["key"] is None for row in told["keys"]] == [False, True]


def test_a_plain_daemon_is_measured_too(start: Start, path: str) -> None:
    with PlainDaemon(path) as daemon, Peer(path) as publisher:
        program = start("sbuslib", "hz", "-a", path, "--window", "0.2", "--json", "key")
        eventually(lambda: any(held[b"key"] for held in daemon._patterns.values()))
        publisher.publish(b"key", b"payload")
        told: list[int] = []
        while 1 not in told:
            wait_read(program.stdout.fileno(), PATIENCE)
            told += [row["messages"] for row in json.loads(program.stdout.readline())["keys"]]


def test_lost_messages_are_told_on_standard_error(start: Start, path: str) -> None:
    with HubThread(path, limits=Limits(queued_packets=1)) as bus:
        program = start("sbuslib", "hz", "-a", path, "--window", "0.2", "")
        while not bus.call(lambda: bus.hub.statistics().patterns):
            pass
        program.send_signal(signal.SIGSTOP)
        with Client(path) as client:
            while not client.hub.statistics().lost:
                client.publish_many([(b"key", b"x" * 10_000)] * 100)
        program.send_signal(signal.SIGCONT)
        assert program.stderr.readline().endswith(b" messages were lost: overflow\n")


def test_it_ends_when_nothing_comes(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "hz", "-a", path, "--window", "0.01", "-n", "3", "--json", "")
    assert [json.loads(line)["keys"] for line in done.stdout.splitlines()] == [[], [], []]
    done = run("sbuslib", "hz", "-a", path, "--timeout", "0.05", "")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"sbus: {path}: no message within 0.05 s\n"


# -- ``sbus doctor`` as a program


def test_each_culprit_is_found_by_one_command(run: Run, path: str, folder: str) -> None:
    """Who floods, who does not read, whose quota is full, and a child that does not answer."""
    os.chmod(folder, 0o755)
    limits = Limits(queued_packets=3, user_queued_packets=12, sync_wait=0.01)
    with ExitStack() as stack:
        stack.enter_context(HubThread(path, mode=0o777, limits=limits))

        # 1. One reader of a user, for whom its own queue is full, and four of another one, whose quota is.
        clients = {}
        for name, user in (("slow", 1001), *((f"crowd {number}", 1002) for number in range(4)), ("flooder", 1003)):
            with acting_as(user):
                clients[name] = stack.enter_context(Peer(path))
            if name != "flooder":
                clients[name].send(b"CMSG blocking/soft/queue", b"CMSG blocking/hard/discard")
                clients[name].subscribe(b"slow" if name == "slow" else b"crowd")
        for key in [b"slow", b"slow", b"crowd"] * 100:
            clients["flooder"].publish(key, bytes(10_000))
        clients["flooder"].barrier()

        # 2. A link whose hub never answers; a daemon asks by itself now and then.
        relay = stack.enter_context(Peer(path))
        relay.send(b"CMSG interest/on")
        relay.barrier()
        assert run("sbuslib", "ping", "-a", path, "--tree", "-n", "1").returncode == 1

        found = run("sbuslib", "doctor", "-a", path).stdout
        shown = {name: run("sbuslib", *name.split(), "-a", path).stdout for name in ("stat", "top -n 1 --by users")}

    slow, crowd, flooder = (re.escape(name_of_user(user)) for user in (1001, 1002, 1003))
    for line in (
        rf"warning +slowest receiver: user {slow}, .+ \d+ \(!/cred/1001/1001/\d+\): [\d,]+ messages lost",
        rf"ok +busiest publisher: user {flooder}, .+ \d+ \(!/cred/1003/1003/\d+\): 300 messages published",
        rf"warning +over quota: user {crowd}: [\d,]+ messages lost",
        r"warning +links of .*: it owes an answer",
    ):
        assert re.search(f"^{line}", found, re.MULTILINE), found
    assert re.search(rf"^child +- +{name_of_user(os.getuid())} +lagging ", shown["stat"], re.MULTILINE)
    assert "(quota " in shown["stat"]
    assert re.search(rf"^{flooder} ", shown["top -n 1 --by users"], re.MULTILINE)


def test_a_problem_is_shown_with_what_to_do_and_is_status_1(run: Run, path: str) -> None:
    done = run("sbuslib", "doctor", env={"SBUS_ADDRESS": f"{path}\x1b[31m"})
    assert (done.returncode, done.stderr) == (1, "")
    shown = f"{path}\\x1b[31m"
    assert f"problem  address: {shown} (SBUS_ADDRESS, 1 of 1): it does not exist\n" in done.stdout
    assert f"         -> start a hub: sbus hub -a {shown}; or name another: export SBUS_ADDRESS=PATH\n" in done.stdout
    told = [json.loads(line) for line in run("sbuslib", "doctor", "-a", path, "--json").stdout.splitlines()]
    assert {(one["about"], one["level"]) for one in told} >= {("address", "problem")}
    assert all(one.keys() == {"level", "about", "text", "advice"} for one in told)
    with HubThread(path):
        done = run("sbuslib", "doctor", "-a", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"ok       address: {path} (given, 1 of 1): something listens\n" in done.stdout


SHORT = ("--rounds", "1", "--window", "0.001")
pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


def test_list_shows_every_scenario(run: Run) -> None:
    done = run("sbuslib", "bench", "--list")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [scenario.name for scenario in SCENARIOS]


def test_without_an_address_bench_starts_a_hub(run: Run, tmp_path: Path) -> None:
    done = run("sbuslib", "bench", "one", "trip", *SHORT, "--size", "50", "--runs", str(tmp_path / "runs.json"))
    assert done.returncode == 0, done.stderr
    assert "one to one" in done.stdout
    assert "round trip" in done.stdout
    runs = json.loads((tmp_path / "runs.json").read_bytes())
    assert {record["scenario"] for record in runs["records"]} == {"one", "trip"}
    assert runs["plan"]["payload"] == 50


def test_with_an_address_bench_measures_that_daemon(run: Run, bus: HubThread, path: str, tmp_path: Path) -> None:
    done = run("sbuslib", "bench", "-a", path, "one", "clients", *SHORT, "--runs", str(tmp_path / "runs.json"))
    assert done.returncode == 0, done.stderr
    records = json.loads((tmp_path / "runs.json").read_bytes())["records"]
    assert {record["scenario"] for record in records} == {"one"}, "the idle clients need a hub of its own"
    assert "daemon" in {record["target"] for record in records}
    assert bus.hub.statistics().published > 0


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"  # a zombie is gone but for its status
    except FileNotFoundError:
        return False


def test_processes_that_bench_started_end_with_it(start: Start) -> None:
    process = start("sbuslib", "bench", "one", "--window", "5")
    assert b"cases" in process.stderr.readline()  # by now hub and forwarder are there
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        children = [int(pid) for pid in file.read().split()]
    assert len(children) >= 1
    process.terminate()
    assert process.wait(PATIENCE) == -signal.SIGINT
    eventually(lambda: not any(map(runs, children)))
