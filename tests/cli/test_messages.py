"""Commands of messages: what ``sbus pub``, ``sub`` and ``whoami`` share, and ``sub`` by itself."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from accounting import acting_as
from cli.conftest import Await, Run, Start, publish
from support import PATIENCE, HubThread

from sbuslib.blocking import Client
from sbuslib.errors import NoServerError
from sbuslib.limits import PACKET_BYTES
from sbuslib.wire.offers import MAGIC

# -- What ``sbus pub``, ``sub`` and ``whoami`` have in common: how they write bytes, tell errors, and end


ODD = b"\x00\x1b[2J\xff\xc2\x9b\t\n\\ \xe2\x80\xae"

ODD_SHOWN = rb"\x00\x1b[2J\xff\xc2\x9b\t\n\\ \xe2\x80\xae"


@pytest.mark.parametrize("extra", [(), ("--raw",), ("--json",)], ids=["text", "raw", "json"])
def test_bytes_that_cannot_be_printed_are_escaped(subscribed: Start, path: str, extra: tuple[str, ...]) -> None:
    subscriber = subscribed("-n", "2", *extra, "")
    key = ODD.replace(b"\0", b"")
    publish(path, (key, ODD), (b"plain/key", "ü".encode()))
    output, errors = subscriber.communicate(timeout=PATIENCE)
    assert errors == b""
    if extra == ("--raw",):
        assert output == ODD + "ü".encode()
    elif extra == ("--json",):
        assert output.isascii()
        assert [json.loads(line) for line in output.splitlines()] == [
            {"key_base64": base64.b64encode(key).decode(), "payload_base64": base64.b64encode(ODD).decode()},
            {"key": "plain/key", "payload": "ü"},
        ]
    else:
        shown = ODD_SHOWN.replace(rb"\x00", b"")
        assert output == shown + b"\t" + ODD_SHOWN + b"\n" + "plain/key\tü\n".encode()


def test_requests_jobs_and_offers_are_shown_as_what_they_are_and_raw_as_bytes(
    subscribed: Start, start: Start, path: str, await_patterns: Await
) -> None:
    subscriber, raw = subscribed("-n", "3", ""), start("sbuslib", "sub", "-a", path, "-n", "3", "--raw", "")
    await_patterns(2)
    with Client(path) as client:
        own = client.credentials.decode()
        with pytest.raises(NoServerError):
            client.request("bob", b"who\tam I?")
        with pytest.raises(NoServerError):
            client.queue("mail").submit("mail/anna", b"Hello Anna")
        client.frames.publish("camera", bytes(1_000_001))
    assert subscriber.communicate(timeout=PATIENCE)[0].decode().splitlines() == [
        f"bob\t(request, reply to {own}) who\\tam I?",
        f"queue/mail/submit\t(job mail/anna, reply to {own}) Hello Anna",
        "camera\t(frame, 1,000,001 bytes, at its publisher)",
    ]
    shown = raw.communicate(timeout=PATIENCE)[0]
    assert shown.startswith(b"REQ1")
    assert MAGIC in shown


def test_a_line_that_is_too_long_is_refused(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "pub", "-a", path, "log", "-", input="x" * (2 * PACKET_BYTES))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("sbus: a line of more than 409,600 bytes")


@pytest.mark.parametrize("command", [("whoami",), ("pub", "key", "payload")])
def test_missing_permission_is_reported_as_a_refusal(
    run: Run, bus: HubThread, path: str, command: tuple[str, ...]
) -> None:
    os.chmod(os.path.dirname(path), 0o755)
    run("sbuslib", command[0], "-a", "/nowhere", *command[1:])  # loads what a stranger may not read
    with acting_as(65_533):
        done = run("sbuslib", command[0], "-a", path, *command[1:])
    advice = f"sbus doctor -a {path} says why"
    assert done.returncode == 1
    assert done.stderr == f"sbus: {path} refuses this user: Permission denied; {advice}\n"


@pytest.mark.parametrize("command", [("whoami",), ("sub", ""), ("pub", "key", "payload"), ("pub", "key", "-")])
def test_a_refused_user_reads_why(run: Run, bus: HubThread, path: str, command: tuple[str, ...]) -> None:
    bus.call(lambda: setattr(bus.hub._here.acceptor, "_users", {12345}))  # as another user would find it
    done = run("sbuslib", command[0], "-a", path, *command[1:])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"sbus: {path}: the hub closed the connection (user not allowed)\n"


def test_ctrl_c_ends_sub_silently(subscribed: Start) -> None:
    subscriber = subscribed("")
    subscriber.send_signal(signal.SIGINT)
    assert subscriber.communicate(timeout=PATIENCE) == (b"", b"")
    assert subscriber.returncode == -signal.SIGINT


def test_ctrl_c_ends_pub_silently_while_it_reads_lines(start: Start, subscribed: Start, path: str) -> None:
    subscriber = subscribed("-n", "1", "--raw", "")
    publisher = start("sbuslib", "pub", "-a", path, "log", "-")
    publisher.stdin.write(b"line\n")
    publisher.stdin.flush()
    assert subscriber.communicate(timeout=PATIENCE)[0] == b"line"
    publisher.send_signal(signal.SIGINT)
    assert publisher.wait(PATIENCE) == -signal.SIGINT
    assert publisher.stderr.read() == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_an_error(subscribed: Start, path: str) -> None:
    with open("/dev/full", "wb") as full:
        subscriber = subscribed("", stdout=full)
    publish(path, (b"key", b"payload"))
    _, errors = subscriber.communicate(timeout=PATIENCE)
    assert (subscriber.returncode, errors) == (1, b"sbus: standard output: No space left on device\n")


@pytest.mark.parametrize("command", [["sub", ""], ["stat"]])
def test_a_closed_standard_output_is_an_error(
    environment: dict[str, str], bus: HubThread, path: str, command: list[str]
) -> None:
    shell = ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "sbuslib", *command, "-a", path]
    done = subprocess.run(shell, env=environment, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr.decode()) == (1, f"sbus: {path}: standard output is closed\n")


def test_a_client_uses_a_socket_that_is_passed_to_it(execute: Run, bus: HubThread, path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
        connected.connect(path)
        fd = connected.fileno()
        done = execute("sbuslib", "pub", "-a", f"/dev/fd/{fd}", "key", "payload", pass_fds=[fd])
    assert (done.returncode, done.stderr) == (0, "")


# -- ``sbus whoami`` as a program: the credentials that it prints, and the hub that it asks


def test_whoami_prints_the_credentials(start: Start, bus: HubThread, path: str) -> None:
    process = start("sbuslib", "whoami", "-a", path)
    output, _ = process.communicate(timeout=PATIENCE)
    assert output.decode() == f"!/cred/{os.getgid()}/{os.getuid()}/{process.pid}\n"


def test_the_address_is_taken_from_the_environment(run: Run, bus: HubThread, folder: str, path: str) -> None:
    assert run("sbuslib", "whoami", env={"SBUS_ADDRESS": path}).returncode == 0
    assert run("sbuslib", "whoami", "-a", path, env={"SBUS_ADDRESS": "/nowhere"}).returncode == 0
    done = run("sbuslib", "whoami", env={"SBUS_ADDRESS": "/nowhere", "XDG_RUNTIME_DIR": folder})
    assert done.returncode == 1
    assert done.stderr.startswith("sbus: no hub at /nowhere: No such file or directory; ")
    done = run("sbuslib", "whoami", env={"XDG_RUNTIME_DIR": folder})
    tried = f"sbus: no hub at {folder}/sbus/bus: No such file or directory; nor at /run/sbus.socket"
    assert (done.returncode, done.stderr.startswith(tried)) == (1, True)
