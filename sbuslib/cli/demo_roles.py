"""The processes of the demo. Each does its part as a client of the bus, and reports to :mod:`.demo` what it saw.

Run ``python -m sbuslib.cli.demo_roles ROLE ADDRESS [ARGUMENT...]``. A report is a line of JSON on standard output; a
byte on standard input tells the process to go on.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from ..blocking import Client
from ..errors import DisconnectedError, RefusedError
from ..journal.follower import Follower
from ..wire.text import printable
from .console import EXIT_FAILURE, EXIT_SUCCESS, explain, yield_to_signals

__all__ = ["PATIENCE", "main"]

PATIENCE = 20.0
"""Seconds that anything may take before the demo counts it as failed: far more than it ever takes."""

HELLO = b"demo/hello"


def report(event: str, **details: object) -> None:
    """Tell the director."""
    print(json.dumps({"event": event, **details}), flush=True)


words: queue.SimpleQueue[bytes] = queue.SimpleQueue()


def heed_director() -> None:
    """Take the words of the director. End this process when the director has ended."""
    while word := os.read(0, 1):
        words.put(word)
    os._exit(EXIT_FAILURE)


def await_word() -> None:
    """Wait until the director says go on."""
    words.get()


def read_figures() -> Iterator[dict[str, str]]:
    """The use of this machine's CPU, memory and network since the last call, from /proc."""
    before = None
    while True:
        with open("/proc/stat") as file:
            ticks = [int(field) for field in file.readline().split()[1:9]]
        with open("/proc/meminfo") as file:
            memory = {line.split(":")[0]: int(line.split()[1]) / 1024**2 for line in file}
        with open("/proc/net/dev") as file:
            links = [line.split(":")[1].split() for line in file.readlines()[2:]]
        now = (
            time.monotonic(),
            sum(ticks),
            ticks[3] + ticks[4],
            sum(int(f[0]) for f in links),
            sum(int(f[8]) for f in links),
        )
        if before is not None:
            seconds, total, idle, received, sent = (new - old for new, old in zip(now, before, strict=True))
            yield {
                "cpu": f"{100 * (1 - idle / total) if total else 0:.1f} % busy",
                "memory": f"{memory['MemTotal'] - memory['MemAvailable']:.2f} of {memory['MemTotal']:.2f} GiB in use",
                "network": f"{received / seconds / 1024:.1f} KiB/s in, {sent / seconds / 1024:.1f} KiB/s out",
            }
        before = now


def publisher(client: Client, machine: str, rounds: str, pause: str) -> None:
    """Publish the figures, ``rounds`` times."""
    figures = read_figures()
    report("ready")
    await_word()
    for _ in range(int(rounds)):
        time.sleep(float(pause))
        for name, figure in next(figures).items():
            key = f"{machine}/{name}"
            client.publish(key.encode(), figure.encode())
            report("published", key=key, payload=figure)
    client.sync()


def subscriber(client: Client, pattern: str, count: str) -> None:
    """Receive ``count`` messages that match ``pattern``."""
    client.subscribe(pattern.encode())
    report("ready")
    for _ in range(int(count)):
        message = client.receive(timeout=PATIENCE)
        report("received", key=message.key.decode(), payload=message.payload.decode())


def alice(client: Client) -> None:
    """Prove to bob who this process is, and let bob prove who he is."""
    client.subscribe(client.credentials + b"/")
    report("ready")
    await_word()
    client.publish(HELLO, client.credentials)
    answer = json.loads(client.receive(timeout=PATIENCE).payload)
    # Only the process with our credentials could read that. What we send back proves that we have them.
    challenge = secrets.token_hex(16)
    reply = {"challenge": challenge, "answer": answer["challenge"]}
    client.publish(answer["credentials"].encode() + b"/to-bob", json.dumps(reply).encode())
    proof = client.receive(timeout=PATIENCE).payload.decode()
    report("checked", other=answer["credentials"], proven=secrets.compare_digest(proof, challenge))
    report("secret", secrets=[challenge, answer["challenge"]])


def bob(client: Client) -> None:
    """The other side of :func:`alice`."""
    client.subscribe(HELLO, client.credentials + b"/")
    report("ready")
    other = client.receive(timeout=PATIENCE).payload
    challenge = secrets.token_hex(16)
    offer = {"credentials": client.credentials.decode(), "challenge": challenge}
    client.publish(other + b"/to-alice", json.dumps(offer).encode())
    reply = json.loads(client.receive(timeout=PATIENCE).payload)
    report("checked", other=other.decode(), proven=secrets.compare_digest(reply["answer"], challenge))
    client.publish(other + b"/to-alice", reply["challenge"].encode())
    client.sync()


def eavesdropper(client: Client) -> None:
    """Try to read what alice and bob tell each other: with wildcards, then by asking for it by name."""
    client.subscribe(b"", b"*/", b"*/*/*/*/*/*", b"*")
    report("ready")
    hello = client.receive(timeout=PATIENCE)
    seen = [hello]
    await_word()  # alice and bob are done
    client.sync()  # every message for this process is here
    while True:
        try:
            seen += client.receive_many(timeout=0)
        except TimeoutError:
            break
    report("saw", messages=[[printable(message.key), printable(message.payload)] for message in seen])
    try:
        client.subscribe(hello.payload + b"/")
    except RefusedError:
        report("disconnected", pattern=printable(hello.payload + b"/"))


def recorder(client: Client, directory: str) -> None:
    """Record everything into a journal until told to end."""
    follower = Follower(client.address, directory)

    def stop_at_word() -> None:
        await_word()
        follower.stop()

    threading.Thread(target=stop_at_word, daemon=True).start()
    report("ready")
    follower.run()
    report("recorded", messages=follower.received, durable=follower.durable_sequence)


ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role for role in (publisher, subscriber, alice, bob, eavesdropper, recorder)
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the processes; its exit status."""
    role, address, *arguments = sys.argv[1:] if argv is None else argv
    yield_to_signals()
    threading.Thread(target=heed_director, daemon=True).start()
    try:
        with Client(address) as client:
            ROLES[role](client, *arguments)
    except (OSError, DisconnectedError) as error:
        sys.exit(f"demo: {role}: {explain(error, address)}")
    return EXIT_SUCCESS


if __name__ == "__main__":
    sys.exit(main())
