"""``sbus sub`` as a program: forms, the end of waiting, and what was lost."""

from __future__ import annotations

import os
import select
import signal
from datetime import datetime

from cli.conftest import Await, Run, Start, publish
from support import PATIENCE, HubThread, eventually

from sbuslib.blocking import Client


def test_a_format_is_filled_in(subscribed: Start, path: str) -> None:
    subscriber = subscribed("-n", "1", "--format", "{size}|{key}={payload}|{sender}|{", "")
    publish(path, (b"key", b"pay\nload"))
    shown = subscriber.communicate(timeout=PATIENCE)[0].decode()
    assert shown.startswith("8|key=pay\\nload|!/cred/")
    assert shown.endswith("|{\n")


def test_a_descriptor_says_when_it_is_in_force_and_some_keys_are_left_out(
    start: Start, bus: HubThread, path: str
) -> None:
    ready, tell = os.pipe()
    subscriber = start(
        *("sbuslib", "sub", "-a", path, "-n", "2", "--ready-fd", str(tell), "", "--not", "log/", "bus/*/tick"),
        pass_fds=[tell],
    )
    os.close(tell)
    assert os.read(ready, 10) == b"\n"
    assert os.read(ready, 10) == b"", "it is closed"
    os.close(ready)
    publish(path, (b"log/1", b""), (b"a", b""), (b"bus/1/tick", b""), (b"bus/1/tock", b""))
    assert subscriber.communicate(timeout=PATIENCE)[0] == b"a\t\nbus/1/tock\t\n"


def test_waiting_ends_with_the_timeout(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "sub", "-a", path, "-n", "1", "--timeout", "0.5", "")  # connecting has as long
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"sbus: {path}: no message within 0.5 s\n"


def test_a_wildcard_of_another_broker_is_reported_in_a_line(start: Start, bus: HubThread, path: str) -> None:
    subscriber = start("sbuslib", "sub", "-a", path, "x/#")
    told = "sbus: # is no wildcard here, in x/#: NATS and MQTT write it so; here it is x/\n"
    assert subscriber.stderr.readline().decode() == told


def test_flood_control_is_chosen_and_losses_are_reported(
    start: Start, bus: HubThread, path: str, await_patterns: Await
) -> None:
    """The subscriber cannot write, so it does not read; the hub discards what it may not queue."""
    subscriber = start(
        "sbuslib", "sub", "-a", path, "--soft", "discard", "--hard", "discard", "--order", "queue", "--raw", ""
    )
    await_patterns(1)
    with Client(path) as client:
        while not bus.call(lambda: bus.hub.statistics().lost):
            client.publish_many([(b"key", bytes(10_000))] * 100)
    while subscriber.stderr not in select.select([subscriber.stdout, subscriber.stderr], [], [], PATIENCE)[0]:
        assert os.read(subscriber.stdout.fileno(), 1 << 20)
    told = subscriber.stderr.readline().decode()
    assert told.startswith("sbus: ")
    assert " messages were lost: " in told


def test_a_published_message_is_shown_by_sub(run: Run, subscribed: Start, path: str) -> None:
    subscriber = subscribed("-n", "2", "room/*/temp")
    for arguments, line in (
        (("room/1/temp", "21.5"), b"room/1/temp\t21.5\n"),
        (("--", "room/ü/temp", "-5 °C"), "room/ü/temp\t-5 °C\n".encode()),
    ):
        done = run("sbuslib", "pub", "-a", path, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert subscriber.stdout.readline() == line, "each message is there at once"
    assert subscriber.wait(PATIENCE) == 0


def test_sub_shows_senders(subscribed: Start, path: str) -> None:
    own = f"!/cred/{os.getgid()}/{os.getuid()}/{os.getpid()}"
    before = datetime.now().astimezone()
    subscriber = subscribed("-n", "1", "-s", "-t", "")
    publish(path, (b"key", b"payload"))
    moment, *rest = subscriber.communicate(timeout=PATIENCE)[0].decode().split("\t")
    assert rest == [own, "key", "payload\n"]
    assert before <= datetime.fromisoformat(moment) <= datetime.now().astimezone()


def test_sub_ends_after_the_count(subscribed: Start, path: str) -> None:
    subscriber = subscribed("-n", "3", "--raw", "")
    publish(path, *((b"key", b"%d" % n) for n in range(100)))
    assert subscriber.communicate(timeout=PATIENCE)[0] == b"012"
    assert subscriber.returncode == 0


def test_sub_outlives_its_hub(subscribed: Start, bus: HubThread, path: str) -> None:
    subscriber = subscribed("")
    publish(path, (b"key", b"payload"))
    assert subscriber.stdout.readline() == b"key\tpayload\n"  # it knows by now that it has subscribed
    bus.stop()
    assert subscriber.stderr.readline().decode() == f"sbus: {path}: the hub closed the connection; waiting for it\n"
    with HubThread(path) as new:
        eventually(lambda: new.call(lambda: new.hub.statistics().patterns) == 1)
        publish(path, (b"key", b"again"))
        assert subscriber.stdout.readline() == b"key\tagain\n"
    subscriber.stdout.close()
    assert subscriber.wait(PATIENCE) == -signal.SIGPIPE, "it looks at its output while the hub is away"
