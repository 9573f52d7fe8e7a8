"""``sbus pub``, ``send``, ``receive``, ``request`` and ``serve`` as programs, and a publish without a client."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.conftest import Run, Start, write_little
from support import PATIENCE, HubThread

from sbuslib import blocking
from sbuslib.blocking import Client
from sbuslib.cli.messages import to_json
from sbuslib.cli.pub import publish_once
from sbuslib.errors import DisconnectedError, ReplyError
from sbuslib.limits import PACKET_BYTES
from sbuslib.wire.packets import Message

# -- ``sbus pub`` as a program: what it publishes, and what it says when it cannot


@pytest.fixture
def receiver(bus: HubThread, path: str) -> Iterator[Client]:
    """A client that is subscribed to everything."""
    with Client(path) as client:
        client.subscribe(b"")
        yield client


def received(receiver: Client, count: int) -> list[tuple[bytes, bytes]]:
    messages = [receiver.receive(timeout=PATIENCE) for _ in range(count)]
    return [(message.key, message.payload) for message in messages]


ODD = b"one\n\n two \x00\xff\n"


def test_standard_input_or_a_file_is_one_payload(run: Run, receiver: Client, path: str, tmp_path: Path) -> None:
    assert run("sbuslib", "pub", "-a", path, "key", "--stdin", input="one\n\n two").returncode == 0
    (tmp_path / "file").write_bytes(ODD)
    assert run("sbuslib", "pub", "key", "-a", path, "--file", str(tmp_path / "file")).returncode == 0
    assert run("sbuslib", "pub", "key", "-a", path, "payload").returncode == 0, "options may stand between"
    assert received(receiver, 3) == [(b"key", b"one\n\n two"), (b"key", ODD), (b"key", b"payload")]


@pytest.mark.parametrize("words", [("key", "-l"), ("-l", "key"), ("key", "-")])
def test_each_line_is_a_message(run: Run, receiver: Client, path: str, words: tuple[str, ...]) -> None:
    assert run("sbuslib", "pub", "-a", path, *words, input="one\n\nlast").returncode == 0
    assert received(receiver, 3) == [(b"key", b"one"), (b"key", b""), (b"key", b"last")]


def test_json_lines_are_published_however_long(run: Run, receiver: Client, path: str) -> None:
    pairs = [(b"a/1", ODD), (b"\xff", b"text"), (b"a", "ü".encode())]
    pairs.append((b"k", b"\1" * (PACKET_BYTES - 10)))  # of which JSON makes six times as many
    lines = b"".join(to_json(Message(*pair, b"!/cred/1/2/3"), "2026-01-31T12:00") for pair in pairs)
    assert run("sbuslib", "pub", "-a", path, "--json", input=lines.decode()).returncode == 0
    assert received(receiver, 4) == pairs


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[]", "{}", '{"key": "k"}', '{"key": 1, "payload": "p"}', '{"key": "k", "payload_base64": "*"}', "7"],
)
def test_a_line_that_is_no_message_is_an_error_after_those_before_it(
    run: Run, receiver: Client, path: str, line: str
) -> None:
    text = base64.b64encode(ODD).decode()
    lines = json.dumps({"key": "k", "payload_base64": text}) + f"\n{line}\n"
    done = run("sbuslib", "pub", "-a", path, "--json", input=lines)
    assert (done.returncode, done.stderr) == (2, f"sbus: not a message in JSON, with key and payload: {line}\n")
    assert received(receiver, 1) == [(b"k", ODD)]


def test_publishing_once_returns_when_the_hub_has_it(run: Run, receiver: Client, path: str) -> None:
    for size in (0, 1, 60_000, 100_000):  # the last needs a larger send buffer, and so a client
        payload = "x" * size
        done = run("sbuslib", "pub", "-a", path, "key", payload)
        assert (done.returncode, done.stderr) == (0, "")
        assert received(receiver, 1) == [(b"key", payload.encode())]


def test_pub_publishes_each_line_at_once(start: Start, subscribed: Start, path: str) -> None:
    subscriber = subscribed("")
    publisher = start("sbuslib", "pub", "-a", path, "log", "-")
    for line in (b"one\n", b"two\n"):
        publisher.stdin.write(line)
        publisher.stdin.flush()
        assert subscriber.stdout.readline() == b"log\t" + line
    publisher.stdin.close()
    assert publisher.wait(PATIENCE) == 0


# -- ``sbus send`` and ``sbus receive`` as programs


def test_files_are_sent_and_received(run: Run, ready: Start, bus: HubThread, path: str, tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    files = [tmp_path / "a.txt", tmp_path / "b\n.txt"]
    files[0].write_bytes(b"x" * 300_000)
    files[1].write_bytes(b"")
    receiver = ready("receive", "--into", str(into), "-n", "2", "--timeout", "20", "files/*")
    sent = run("sbuslib", "send", "-a", path, "files/x", *map(str, files))
    assert sent.returncode == 0, sent.stderr
    assert sent.stderr.splitlines()[0] == f"sbus: {files[0]}: 1 of 1 have it"
    output, _ = receiver.communicate(timeout=20)
    assert receiver.returncode == 0
    first, second = output.decode().splitlines()
    assert first == f"{into}/a.txt"
    assert Path(first).read_bytes() == files[0].read_bytes()
    assert len(Path(second).name) == 32, "a name with a newline is not used"


def test_a_file_nobody_takes_is_an_error(run: Run, ready: Start, bus: HubThread, path: str, tmp_path: Path) -> None:
    assert run("sbuslib", "send", "-a", path, "k", "/nowhere").stderr == "sbus: /nowhere: No such file or directory\n"
    source = tmp_path / "a"
    source.write_bytes(bytes(2_000))
    done = run("sbuslib", "send", "-a", path, "k", str(source), "--timeout", "0.01")
    assert done.returncode == 1
    assert "0 of 1 receivers took the file within 0.01 s" in done.stderr
    receiver = ready("receive", "--into", str(tmp_path), "--max-bytes", "1K", "k")
    done = run("sbuslib", "send", "-a", path, "k", str(source))
    assert done.returncode == 1
    assert "2,000 bytes are more than 1,024" in done.stderr
    receiver.send_signal(signal.SIGTERM)
    receiver.communicate(timeout=20)
    assert receiver.returncode == 0
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_that_does_not_fit_on_the_disk_is_told_and_the_next_one_comes(
    run: Run, ready: Start, bus: HubThread, path: str, tmp_path: Path
) -> None:
    large, small, into = tmp_path / "large", tmp_path / "small", tmp_path / "into"
    large.write_bytes(bytes(1_000_000))
    small.write_bytes(b"x")
    into.mkdir()
    receiver = ready("receive", "--into", str(into), "-n", "1", "k", preexec_fn=write_little)
    assert run("sbuslib", "send", "-a", path, "k", str(large)).returncode == 1
    assert receiver.stderr.readline() == f"sbus: {into}: File too large\n".encode()
    assert run("sbuslib", "send", "-a", path, "k", str(small)).returncode == 0
    output, _ = receiver.communicate(timeout=20)
    assert (receiver.returncode, output) == (0, f"{into}/small\n".encode())
    assert os.listdir(into) == ["small"]


# -- ``sbus request`` and ``sbus serve`` as programs, with each other


def test_a_command_answers_and_ctrl_c_ends_it(run: Run, ready: Start, bus: HubThread, path: str) -> None:
    process = ready("serve", "svc/*", "--", "sh", "-c", 'echo "$SBUS_KEY $SBUS_SENDER"; tr a-z A-Z')
    done = run("sbuslib", "request", "-a", path, "svc/1", "hello")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"svc/1 !/cred/\d+/\d+/\d+\nHELLO", done.stdout)
    assert run("sbuslib", "request", "-a", path, "svc/1", "--stdin", input="piped").stdout.endswith("PIPED")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


def test_a_command_that_fails_or_takes_too_long_is_an_error(run: Run, ready: Start, bus: HubThread, path: str) -> None:
    ready("serve", "-j", "2", "svc", "--", "sh", "-c", "echo wrong >&2; exec $(cat)")
    done = run("sbuslib", "request", "-a", path, "svc", "false")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(": wrong\n")
    done = run("sbuslib", "request", "-a", path, "--timeout", "200ms", "svc", "sleep 60")
    assert done.returncode == 1
    assert re.search("did not answer|no answer|timed out", done.stderr), "both ends give up at the same time"
    assert run("sbuslib", "request", "-a", path, "svc", "true").returncode == 0


def test_a_command_need_not_read_what_it_is_given(run: Run, ready: Start, bus: HubThread, path: str) -> None:
    process = ready("serve", "svc", "--", "true")
    for _ in range(2):
        done = run("sbuslib", "request", "-a", path, "svc", "--stdin", input="x" * 300_000)  # more than a pipe holds
        assert (done.returncode, done.stderr) == (0, "")
    assert process.poll() is None


def test_all_who_serve_a_key_are_shown(run: Run, bus: HubThread, path: str) -> None:
    def fail(question: object) -> bytes:
        raise ReplyError("no \x1b")

    with (
        blocking.Client(path) as one,
        blocking.Client(path) as other,
        one.serve(b"svc", lambda question: b"one\n\x1b"),
        other.serve(b"svc", lambda question: b"two"),
        other.serve(b"svc", fail),
    ):
        done = run("sbuslib", "request", "-a", path, "--all", "--wait", "2s", "svc")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (1, ["one\\n\\x1b", "two"])
    assert "no \\x1b" in done.stderr


@pytest.mark.parametrize(
    ("key", "payload"), [(b"a\0b", b""), (b"!/cred/1/2/3/x", b""), (b"a/!/b", b""), (b"key", bytes(70_000))]
)
def test_what_is_out_of_the_ordinary_is_left_to_a_client(address: str, key: bytes, payload: bytes) -> None:
    with HubThread(address):
        assert not publish_once(address, key, payload)


@pytest.mark.parametrize("place", ["/nowhere/bus", "/dev/fd/7", "/dev/unix/abstract/0041", "x" * 200])
def test_addresses_that_are_not_connected_to_are_left_to_a_client(place: str) -> None:
    assert not publish_once(place, b"key", b"payload")


@pytest.fixture
def stranger(address: str) -> Iterator[Callable[[Callable[[socket.socket], object]], str]]:
    """Serve one connection in a thread in a way of one's own; the address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        listener.settimeout(PATIENCE)
        threads: list[threading.Thread] = []

        def serve(work: Callable[[socket.socket], object]) -> str:
            def run() -> None:
                with listener.accept()[0] as sock:
                    work(sock)

            threads.append(threading.Thread(target=run))
            threads[0].start()
            return address

        yield serve
        for thread in threads:
            thread.join()


def read_question(sock: socket.socket) -> None:
    """Read up to the question that ends what is published."""
    while (packet := sock.recv(999)) != b"CMSG !/cred/whoami\0":
        assert packet


Stranger = Callable[[Callable[[socket.socket], object]], str]


def test_the_reason_of_a_kick_is_told(stranger: Stranger) -> None:
    def kick(sock: socket.socket) -> None:
        read_question(sock)
        sock.send(b"CMSG notice/kicked\0not today")

    with pytest.raises(DisconnectedError, match=r"the hub closed the connection \(not today\)"):
        publish_once(stranger(kick), b"key", b"payload")


def test_the_reason_is_told_if_the_hub_read_nothing(stranger: Stranger) -> None:
    """Then the kernel tells of a connection that was reset, before it hands over what the hub has sent."""
    with pytest.raises(DisconnectedError, match=r"\(not you\)"):
        publish_once(stranger(lambda sock: sock.sendall(b"CMSG notice/kicked\0not you")), b"key", b"payload")


def test_other_packets_are_passed_over(stranger: Stranger) -> None:
    def answer(sock: socket.socket) -> None:
        read_question(sock)
        for packet in (b"MSG other\0x", b"CMSG notice/lost\0queue 1 2", b"CMSG !/cred/whoami\0!/cred/1/2/3"):
            sock.send(packet)

    assert publish_once(stranger(answer), b"key", b"payload")


def test_a_hub_that_does_not_answer_is_told(stranger: Stranger) -> None:
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError, match="the hub did not answer in time"):
            publish_once(stranger(lambda sock: release.wait()), b"key", b"payload", timeout=0.05)
    finally:
        release.set()
