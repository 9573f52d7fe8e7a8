"""The load generator in Python, for machines without a C compiler. Options and answer are those of ``load.c``.

It uses more CPU time than the one in C, so rates are lower and latencies longer. The daemon's CPU time for each message
is comparable. It cannot load other brokers.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from ..kernel.areas import PlainArea, make_area
from ..kernel.packet_writer import PacketWriter
from ..kernel.sockets import connect, peer_credentials, wait
from ..limits import ClientLimits
from ..wire.control import WHOAMI
from ..wire.packets import (
    encode_control,
    encode_message,
    encode_subscribe,
    encode_unsubscribe,
)
from .daemons import path_of
from .process import cpu_seconds
from .results import Run

__all__ = ["main"]

_PATIENCE = 30.0
_BLOCK = 64
_QUESTION = encode_control(WHOAMI)
"""The command. Its answer begins with the same bytes."""
_ON_ITS_WAY = 0.5
"""Seconds in which messages cross a relay."""
_PAUSE = 0.0005


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="fallback", add_help=False)
    parser.add_argument("job", choices=["packets", "trip"])
    for letter in "abmP":
        parser.add_argument(f"-{letter}")
    for letter, default in {"n": 100_000, "w": 0, "s": 100, "p": 1, "r": 1, "k": 1, "x": 0, "c": 0}.items():
        parser.add_argument(f"-{letter}", type=int, default=default)
    parser.add_argument("-d", action="store_true")
    return parser


class _Client:
    """A connection whose calls wait until the socket is ready."""

    _packet_writer = PacketWriter()

    def __init__(self, address: str) -> None:
        self.socket: socket.SocketType = connect(path_of(address), ClientLimits().send_buffer)
        self._area: PlainArea | None = None

    def send(self, packets: list[bytes]) -> None:
        while packets:
            packets = packets[self._packet_writer.send(self.socket, packets) :]
            if packets and not wait(self.socket, select.POLLOUT, _PATIENCE):
                raise TimeoutError("the daemon takes no more")

    def receive(self) -> list[bytes]:
        if self._area is None:
            self._area = make_area(_BLOCK)
        while not (lengths := self._area.receive(self.socket)):
            if not wait(self.socket, select.POLLIN, _PATIENCE):
                raise TimeoutError("nothing came in time")
        if not lengths[-1]:
            raise ConnectionResetError("the daemon closed a connection")
        return self._area.packets(range(len(lengths)), lengths)

    def barrier(self) -> None:
        self.send([_QUESTION])
        while not any(packet.startswith(_QUESTION) for packet in self.receive()):
            pass


class _Load:
    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._receivers: list[_Client] = []
        self._publishers: list[_Client] = []
        self._stopped: list[_Client] = []
        self._nonce = time.monotonic_ns() & 0xFFFFFFF

    def connect(self) -> None:
        options = self._options
        for number in range(options.r + options.x):
            client = _Client(options.b or options.a)
            mode = options.m or "block"
            if number < options.r and mode != "default":
                client.send([encode_control(b"blocking/soft/" + mode.encode())])
            client.send([encode_subscribe(self._key(0, number) if options.d else b"bench/")])
            client.barrier()
            (self._receivers if number < options.r else self._stopped).append(client)
        for _ in range(options.p):
            self._publishers.append(_Client(options.a))
            self._publishers[-1].barrier()

    @staticmethod
    def _key(first: int, second: int) -> bytes:
        return b"bench/%07x/%08x" % (first, second & 0xFFFFFFFF)

    def _packets(self, publisher: int, each: int) -> Iterator[bytes]:
        options = self._options
        payload = b"x" * options.s
        for number in range(each):
            if options.d:
                key = self._key(0, number % options.r)
            elif options.k:
                key = self._key(0, number % options.k)
            else:
                self._nonce += 1
                key = self._key(publisher, self._nonce)
            yield encode_message(key, payload)

    def _publish(self, publisher: int, each: int) -> None:
        client, packets = self._publishers[publisher], []
        for packet in self._packets(publisher, each):
            packets.append(packet)
            if len(packets) == _BLOCK:
                client.send(packets)
                packets = []
        client.send(packets)
        client.barrier()

    def _receive(self) -> tuple[int, int, float]:
        """Receive until all have their answer. Returns counts of messages and of wrong lengths, and the last time."""
        length = len(encode_message(self._key(0, 0), b"x" * self._options.s))
        received = wrong = 0
        last = time.monotonic()
        by_fd = {client.socket.fileno(): client for client in self._receivers}
        poll = select.poll()
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        while by_fd:
            ready = poll.poll(_PATIENCE * 1_000)
            if not ready:
                raise TimeoutError("nothing came in time")
            for fd, _ in ready:
                packets = by_fd[fd].receive()
                messages = [packet for packet in packets if not packet.startswith(b"CMSG ")]
                received += len(messages)
                wrong += sum(len(packet) != length for packet in messages)
                if messages:
                    last = time.monotonic()
                if len(messages) != len(packets):
                    poll.unregister(fd)
                    del by_fd[fd]
        return received, wrong, last

    def packets(self, messages: int, pids: list[int]) -> Run:
        """Publish and receive in processes of their own. Receivers ask for an answer when all publishers are done."""
        options = self._options
        each = messages // options.p
        here, there = os.pipe()
        used, began = cpu_seconds(pids), time.monotonic()
        reader = _child(lambda: _tell(there, self._receive()))
        os.close(there)
        changer = _child(self._change) if options.c else None
        writers = [_child(partial(self._publish, publisher, each)) for publisher in range(options.p)]
        for pid in writers:
            _await(pid)
        if options.b:
            time.sleep(_ON_ITS_WAY)
        for client in self._receivers:
            client.send([_QUESTION])
        with os.fdopen(here, "rb") as pipe:
            told = pipe.read()
        _await(reader)
        if changer is not None:
            os.kill(changer, signal.SIGKILL)
            os.waitpid(changer, 0)
        used = cpu_seconds(pids) - used
        received, wrong, last = msgspec.json.decode(told, type=tuple[int, int, float])
        self._nonce += each  # the publishers' processes counted on in their copies
        sent = each * options.p
        due = sent * (1 if options.d else options.r)
        return Run(
            messages=sent,
            deliveries=due,
            received=received,
            lost=due - received,
            disorder=wrong,
            seconds=last - began,
            cpu=used,
            churned=int(options.c * (last - began)),
        )

    def _change(self) -> None:
        client, number, began = _Client(self._options.a), 0, time.monotonic()
        while True:
            while number < (time.monotonic() - began) * self._options.c:
                old, new = b"churn/%d/*" % (number - 1), b"churn/%d/*" % number
                client.send([encode_unsubscribe(old), encode_subscribe(new)])
                number += 1
            time.sleep(_PAUSE)


def _tell(pipe: int, told: object) -> None:
    os.write(pipe, msgspec.json.encode(told))


def _child(function: Callable[[], object]) -> int:
    """Run a function in a process of its own."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            function()
            status = 0
        except BaseException as error:
            print(f"{error or type(error).__name__}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    return pid


def _await(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(1)  # it has printed why


def trips(options: Namespace, pids: list[int]) -> Run:
    """Measure round trips: one message there and one back, again and again."""
    here, there = _Client(options.a), _Client(options.a)
    here.send([encode_subscribe(b"trip/back")])
    there.send([encode_subscribe(b"trip/there")])
    here.barrier()
    there.barrier()
    payload = b"x" * options.s
    forth, back = [encode_message(b"trip/there", payload)], [encode_message(b"trip/back", payload)]
    times: list[float] = []
    used = began = 0.0
    for number in range(-options.w, options.n):
        if not number:
            used, began = cpu_seconds(pids), time.monotonic()
        start = time.perf_counter()
        here.send(forth)
        there.receive()
        there.send(back)
        here.receive()
        times.append(time.perf_counter() - start)
    times = sorted(times[options.w :])
    messages = 2 * options.n
    return Run(
        messages=messages,
        deliveries=messages,
        received=messages,
        seconds=time.monotonic() - began,
        cpu=cpu_seconds(pids) - used,
        median=times[len(times) // 2],
        p99=times[len(times) * 99 // 100],
    )


def main() -> None:
    """Run one load, and print its result."""
    options = _parser().parse_args()
    if options.P:
        pids = [int(pid) for pid in options.P.split(",")]
    else:
        pids = [peer_credentials(_Client(options.a).socket).pid]
    if options.job == "trip":
        run = trips(options, pids)
    else:
        load = _Load(options)
        load.connect()
        if options.w:
            load.packets(options.w, pids)
        run = load.packets(options.n, pids)
    print(msgspec.json.encode(run).decode())


if __name__ == "__main__":
    main()
