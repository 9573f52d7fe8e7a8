"""What ``sbus doctor`` finds out."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import gevent
import pytest
from support import FakeHub, HubThread, Peer, PlainDaemon, eventually, own_key
from worlds import World

from sbuslib import Hub, Limits
from sbuslib.blocking import Client
from sbuslib.federation.membership import BridgeStatistics, Heartbeat
from sbuslib.kernel import defaults
from sbuslib.kernel.users import name_of_user, program_of
from sbuslib.monitor import diagnosis
from sbuslib.monitor.diagnosis import Finding, examine
from sbuslib.services.queue_rules import Jobs
from sbuslib.services.queue_service import QueueService
from sbuslib.wire.control import SUPPORTED

STRANGER = 65_533


def findings(address: str | None, **options: Any) -> list[Finding]:
    """What is found, in another thread than that of the hubs."""
    return list(gevent.get_hub().threadpool.apply(lambda: list(examine(address, **options))))


def of(about: str, found: list[Finding], level: str) -> Finding:
    (one,) = (one for one in found if one.about.startswith(about) and one.level == level)
    return one


@pytest.fixture(autouse=True)
def _names_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SBUS_ADDRESS", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(diagnosis, "_QUEUES_SECONDS", 0.01)


def test_a_hub_in_order_has_no_problem_and_no_warning(address: str) -> None:
    with Hub(address) as hub:
        found = findings(address)
    assert {one.level for one in found} == {"ok"}, found
    subjects = f"address, permissions, hub, buffers, features, namespaces, trust, links of {address}, clock"
    assert [one.about for one in found if one.about != "descriptors"] == subjects.split(", ")
    assert of("links of ", found, "ok").text == f"hub {hub.hub_id.decode()} is the root of its tree"


def test_addresses_are_tried_in_their_order(address: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setattr(defaults, "SYSTEM_ADDRESS", address)
    own = os.path.join(folder, "sbus", "bus")
    with Hub(address):
        first, second = [one.text for one in findings(None) if one.about == "address"]
    assert first == f"{own} (default, 1 of 2): it does not exist, so the next was tried"
    assert second == f"{address} (default, 2 of 2): something listens"
    missing = [one for one in findings(None) if one.about == "address"]
    assert [one.level for one in missing] == ["problem", "problem"]
    assert "export SBUS_ADDRESS=" in missing[0].advice


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user")
def test_an_environment_of_another_user_is_reported(address: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ``su``, and under ``sudo -E``."""
    os.chown(folder, STRANGER, STRANGER)
    monkeypatch.setattr(defaults, "SYSTEM_ADDRESS", f"{folder}/system")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    os.mkdir(f"{folder}/sbus")
    with Hub(f"{folder}/sbus/bus"):
        found = findings(None)
        assert f"XDG_RUNTIME_DIR is {folder}, which is not of user" in of("address", found, "warning").text
        assert f"{folder}/system" in of("address", found, "problem").text
        assert findings(f"{folder}/sbus/bus")[1].text.endswith("something listens"), "a given address counts"
    monkeypatch.setenv("SBUS_ADDRESS", address)
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    assert f"belongs to user {STRANGER}, who called sudo" in of("address", findings(None), "problem").text


def test_what_stands_at_the_address_is_reported(address: str) -> None:
    for kind, text in ((socket.SOCK_SEQPACKET, "nobody listens there"), (socket.SOCK_STREAM, "another kind of socket")):
        with socket.socket(socket.AF_UNIX, kind) as other:
            other.bind(address)
            if kind == socket.SOCK_STREAM:
                other.listen()
            assert text in of("address", findings(address), "problem").text
        os.unlink(address)
    Path(address).touch()
    assert "it is no socket" in of("address", findings(address), "problem").text
    assert "at most 107 bytes" in of("address", findings("/" + 200 * "x"), "problem").text


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user")
def test_the_folder_or_socket_that_is_closed_to_the_user_is_named(address: str, folder: str) -> None:
    os.chmod(folder, 0o711)
    with Hub(address):
        for mode, closed in ((0o711, address), (0o700, folder)):
            os.chmod(folder, mode)
            os.seteuid(STRANGER)
            try:
                found = list(examine(address))
            finally:
                os.seteuid(0)
            problem = of("address", found, "problem")
            assert f"permission denied at {closed}, which is" in problem.text
            assert "sbusd -o" in problem.advice


def test_a_folder_in_which_anybody_may_replace_the_socket_is_warned_about(address: str, folder: str) -> None:
    os.chmod(folder, 0o777)
    with Hub(address):
        assert of("permissions", findings(address), "warning").advice == f"chmod o-w {folder}"


def test_a_hub_that_does_not_answer_is_a_problem(address: str) -> None:
    with FakeHub(address):
        assert of("hub", findings(address, timeout=0.1), "problem").text == "it does not answer in time"


def test_a_user_or_process_that_is_unknown_to_the_hub_gets_the_reason(address: str) -> None:
    words = b" ".join(sorted({*SUPPORTED} - {b"hub/statistics", b"hub/links"}))
    for ids, unknown, namespace in (("0/0/0", "process id", "pid"), ("65534/65534/7", "user", "user")):
        with FakeHub(address) as hub:
            asking = gevent.spawn(findings, address)
            hub.accept().close()  # which only looks whether anybody listens
            peer = hub.accept()
            peer.receive()
            peer.receive()
            peer.send(b"CMSG hub/features\0id=x path=x " + words, f"CMSG !/cred/whoami\0!/cred/{ids}".encode())
            while (packet := peer.receive()) != b"CMSG hub/sync\0" + b"1":
                assert packet, "disconnected"
            peer.send(b"CMSG hub/sync\0" + b"1\0tree")  # what it subscribed to, to hear of bridges, is in force
            found = asking.get()
        os.unlink(address)
        text = of("namespaces", found, "warning").text
        assert text == (
            f"your {unknown} is unknown to this hub, which runs in another {namespace} namespace: !/cred/{ids}"
        )
        assert "hub/statistics" in of("features", found, "warning").text


def test_a_plain_daemon_is_reported_as_such(address: str) -> None:
    with PlainDaemon(address):
        found = findings(address)
    assert of("features", found, "warning").text.startswith("a plain daemon")
    assert [one for one in found if one.about == "trust"] == []


def test_a_user_that_is_not_trusted_learns_what_to_ask_for(address: str) -> None:
    with Hub(address) as hub:
        hub.context.trusted = frozenset()
        found = findings(address)
    assert of("trust", found, "warning").advice.startswith(f"ask for --trusted {os.geteuid()} ")
    assert of("links of ", found, "ok").text == f"hub {hub.hub_id.decode()} is the root of its tree"


def test_lost_messages_and_kicked_clients_are_reported_with_their_causes(address: str) -> None:
    with Hub(address, limits=Limits(queued_packets=3)) as hub, Peer(address) as reader, Peer(address) as publisher:
        reader.subscribe(b"k")
        for _ in range(200):
            publisher.publish(b"k", bytes(10_000))
        publisher.barrier()
        with Peer(address) as wrong:
            wrong.send(b"nonsense")
            assert wrong.is_disconnected()
        found = findings(address)
        lost = hub.statistics().lost["overflow"]
    told = of("lost", found, "warning")
    assert told.text == f"{lost:,} messages: overflow"
    assert "sbus stat --clients --sort lost" in told.advice
    assert of("kicked", found, "warning").text == "1 clients: unknown verb"


def test_a_queue_that_fills_is_reported_before_anything_is_lost(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(queued_packets=100)
    with HubThread(address, limits=limits) as bus, Peer(address) as reader, Peer(address) as publisher:

        def publish_until(waiting: int) -> None:
            while bus.call(lambda: bus.hub.statistics().waiting) < waiting:
                publisher.publish(b"k", bytes(10_000))
                publisher.barrier()

        def warnings(waiting: int) -> list[str]:
            monkeypatch.setattr(diagnosis, "sleep", lambda seconds: publish_until(waiting))
            return [one.text for one in examine(address) if one.level == "warning"]

        reader.subscribe(b"k")
        publish_until(10)
        who = f"user {name_of_user(os.getuid())}, {program_of(os.getpid())} {os.getpid()} ({own_key().decode()})"
        assert warnings(10) == [], "it has 10 of 100, and they are not more after a while"
        assert warnings(20) == [f"{who}: 20 messages wait, 10 more than 0.5 s before"]
        publish_until(51)
        assert warnings(51) == [f"{who}: 51 messages wait, its queue is 51% full"]
        assert of("busiest publisher", [*examine(address)], "ok").text.startswith(f"{who}: ")
        assert not bus.call(lambda: bus.hub.statistics().lost)


def test_a_queue_whose_workers_are_refused_is_reported(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_QUEUES_SECONDS", 1.1)
    with HubThread(address), Client(address) as client, client.queue("mail").work(print):
        assert of("queue mail", [*examine(address)], "warning").advice == "start sbus queue mail"
        service = QueueService(address, b"mail", [b"mail/"], Jobs(10, 1_000, 1.0, 1))
        service.access.note_worker(b"mail", STRANGER)
        thread = threading.Thread(target=service.run)
        thread.start()
        found = [*examine(address)]
        service.stop()
        thread.join()
    process = f"({own_key().decode()})"
    assert of("queue mail", found, "ok").text == f"0 jobs and 1 workers, says its service {process}"
    told = of("queue mail", found, "warning")
    assert told.text == f"workers of user {STRANGER} get no jobs: its service {process} does not trust them"
    assert told.advice == f"start it with --trusted {STRANGER}, if they may work"


def test_links_are_followed_up_to_the_root(world: World) -> None:
    world.chain("root", "middle", "low")
    found = [one for one in findings(world.address("low")) if one.about.startswith("links of ")]
    assert {one.level for one in found} == {"ok"}
    assert [*dict.fromkeys(one.about for one in found)] == [
        f"links of {world.address(name)}" for name in ("low", "middle", "root")
    ]
    assert f"from {world.address('middle')}: joined" in [one.text for one in found]


def test_a_link_that_is_down_is_a_problem(world: World) -> None:
    world.chain("root", "low")
    world.hubs["root"].stop(0)
    eventually(lambda: "outage" in str(findings(world.address("low"))))
    problem = of("links of ", findings(world.address("low")), "problem")
    root = world.address("root")
    assert (problem.text, problem.advice) == (f"to {root}: outage", f"sbus doctor -a {root}")


def test_a_link_whose_messages_the_rules_refuse_is_named(world: World) -> None:
    world.hub("top", relays=[STRANGER], authorize=lambda who, verb, key: (who.uid, verb) != (STRANGER, "publish"))
    world.uids["top"] = STRANGER
    world.hub("low")
    world.relay("low", "top")
    world.uids.clear()
    world.client("top").subscribe(b"no/")
    publisher = world.client("low")
    publisher.publish(b"no/1")
    eventually(lambda: world.hubs["top"].statistics().dropped)
    warning = of("dropped from ", findings(world.address("top")), "warning")
    assert warning.about == f"dropped from {world.address('low')}"
    assert warning.text == "1 packets: publishing refused"
    assert warning.advice == f"sbus hub explain {STRANGER} shows the rule"


def test_a_bridge_that_is_away_or_loses_messages_is_reported(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its text says."""
    away, losing = BridgeStatistics(connected=False), BridgeStatistics(lost={"outage": 1})
    for counts, level in ((BridgeStatistics(exported=5), "ok"), (away, "warning"), (losing, "warning")):
        heartbeat = Heartbeat("g1", "x", text="bridge to nats: away, 0 lost", counts=counts)
        monkeypatch.setattr(diagnosis, "bridges_heard", lambda receive, heartbeat=heartbeat: [(heartbeat, None)])
        with Hub(address):
            assert of("bridge", findings(address), level).text == heartbeat.text
