"""``sbus pub`` as a program: what it publishes, and what it says when it cannot."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import PATIENCE, HubThread

from sbuslib.blocking import Client
from sbuslib.cli.messages import to_json
from sbuslib.limits import PACKET_BYTES
from sbuslib.wire.packets import Message

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[bytes]"]


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


def test_all_of_standard_input_is_one_payload(start: Start, receiver: Client, path: str) -> None:
    publisher = start("sbuslib", "pub", "-a", path, "key", "--stdin")
    assert publisher.communicate(ODD, PATIENCE) == (b"", b"")
    assert publisher.returncode == 0
    assert received(receiver, 1) == [(b"key", ODD)]


def test_a_file_is_one_payload(run: Run, receiver: Client, path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(ODD)
    assert run("sbuslib", "pub", "-a", path, "key", "--file", str(tmp_path / "file")).returncode == 0
    assert received(receiver, 1) == [(b"key", ODD)]
    done = run("sbuslib", "pub", "-a", path, "key", "--file", str(tmp_path / "none"))
    assert (done.returncode, done.stderr) == (1, f"sbus: {tmp_path}/none: No such file or directory\n")


@pytest.mark.parametrize("words", [("key", "-l"), ("-l", "key"), ("key", "-")])
def test_each_line_is_a_message(run: Run, receiver: Client, path: str, words: tuple[str, ...]) -> None:
    assert run("sbuslib", "pub", "-a", path, *words, input="one\n\nlast").returncode == 0
    assert received(receiver, 3) == [(b"key", b"one"), (b"key", b""), (b"key", b"last")]


def test_options_may_stand_between_key_and_payload(run: Run, receiver: Client, path: str) -> None:
    assert run("sbuslib", "pub", "key", "-a", path, "payload").returncode == 0
    assert received(receiver, 1) == [(b"key", b"payload")]


def test_json_lines_of_sub_are_published_again(start: Start, receiver: Client, path: str) -> None:
    pairs = [(b"a/1", ODD), (b"\xff", b"text"), (b"a", "ü".encode())]
    subscriber = start("sbuslib", "sub", "-a", path, "--json", "--senders", "--timestamps", "-n", "3", "")
    while receiver.statistics().patterns < 2:
        pass
    receiver.publish_many(pairs)
    lines, _ = subscriber.communicate(timeout=PATIENCE)
    assert received(receiver, 3) == pairs
    publisher = start("sbuslib", "pub", "-a", path, "--json")
    assert publisher.communicate(lines, PATIENCE) == (b"", b"")
    assert received(receiver, 3) == pairs


def test_the_longest_line_of_json_is_published(start: Start, receiver: Client, path: str) -> None:
    payload = b"\1" * (PACKET_BYTES - 10)  # of which JSON makes six times as many
    lines = to_json(Message(b"k", payload))
    publisher = start("sbuslib", "pub", "-a", path, "--json")
    assert publisher.communicate(lines, PATIENCE) == (b"", b"")
    assert received(receiver, 1) == [(b"k", payload)]


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[]", "{}", '{"key": "k"}', '{"key": 1, "payload": "p"}', '{"key": "k", "payload_base64": "*"}', "7"],
)
def test_a_line_that_is_no_message_is_an_error(run: Run, bus: HubThread, path: str, line: str) -> None:
    done = run("sbuslib", "pub", "-a", path, "--json", input=line + "\n")
    assert done.returncode == 2
    assert done.stderr == f"sbus: not a message in JSON, with key and payload: {line}\n"


def test_lines_before_a_wrong_line_are_published(run: Run, receiver: Client, path: str) -> None:
    text = base64.b64encode(ODD).decode()
    done = run("sbuslib", "pub", "-a", path, "--json", input=json.dumps({"key": "k", "payload_base64": text}) + "\nx\n")
    assert done.returncode == 2
    assert received(receiver, 1) == [(b"k", ODD)]


def test_a_payload_is_repeated(run: Run, receiver: Client, path: str) -> None:
    assert run("sbuslib", "pub", "-a", path, "key", "x", "--repeat", "300", "--rate", "10000").returncode == 0
    assert received(receiver, 300) == [(b"key", b"x")] * 300


def test_the_rate_spreads_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    from sbuslib.cli import messages

    now = [100.0]
    times: list[float] = []

    class Sink:
        def publish(self, key: bytes, payload: bytes) -> None:
            times.append(now[0])
            now[0] += 0.1  # it takes a while

        def sync(self) -> None: ...

    monkeypatch.setattr(messages, "monotonic", lambda: now[0])
    monkeypatch.setattr(messages, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    messages.publish(Sink(), [[(b"k", b"v")] * 2, [(b"k", b"v")] * 2], rate=2)  # type: ignore[arg-type]
    assert times == pytest.approx([100, 100.5, 101, 101.5])


def test_publishing_once_returns_when_the_hub_has_it(run: Run, receiver: Client, path: str) -> None:
    for size in (0, 1, 60_000, 100_000):  # the last needs a larger send buffer, and so a client
        payload = "x" * size
        done = run("sbuslib", "pub", "-a", path, "key", payload)
        assert (done.returncode, done.stderr) == (0, "")
        assert received(receiver, 1) == [(b"key", payload.encode())]


def test_publishing_once_loads_next_to_nothing(run: Run, receiver: Client, path: str) -> None:
    done = run("sbuslib", "pub", "-a", path, "key", "payload", env={"PYTHONPROFILEIMPORTTIME": "1"})
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert received(receiver, 1) == [(b"key", b"payload")]
    assert not loaded & {"typing", "msgspec", "socket", "logging", "shutil", "sbuslib.blocking"}


def test_help_loads_next_to_nothing(run: Run) -> None:
    done = run("sbuslib", "--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "sbuslib.cli.main" in loaded
    assert not loaded & {"typing", "msgspec", "socket", "shutil", "sbuslib.cli.pub", "sbuslib.cli.bench"}


def test_pub_publishes_each_line_at_once(start: Start, subscribed: Start, path: str) -> None:
    subscriber = subscribed("")
    publisher = start("sbuslib", "pub", "-a", path, "log", "-")
    assert subscriber.stdout is not None
    assert publisher.stdin is not None
    for line in (b"one\n", b"two\n"):
        publisher.stdin.write(line)
        publisher.stdin.flush()
        assert subscriber.stdout.readline() == b"log\t" + line
    publisher.stdin.close()
    assert publisher.wait(PATIENCE) == 0


def test_a_payload_that_is_too_long_is_refused(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "pub", "-a", path, "log", "-", input="x" * PACKET_BYTES)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "does not fit a packet" in done.stderr
