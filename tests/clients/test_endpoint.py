"""A client that blocks its thread, and signals: handlers that raise, at any instruction, and handlers that use it."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import pytest
from support import PATIENCE, HubThread

from sbuslib import blocking
from sbuslib.errors import StateError


class InterruptedVerbError(Exception):
    """What the handler raises."""


@contextmanager
def storm() -> Iterator[list[None]]:
    """A signal at random times, whose handler raises wherever it interrupts the library; each of them.

    By a timer of the kernel: another thread would send it only where this one waits.
    """
    raised: list[None] = []

    def handle(signum: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.0003))
        if frame is not None and "/sbuslib/" in frame.f_code.co_filename:
            raised.append(None)
            raise InterruptedVerbError

    before = signal.signal(signal.SIGALRM, handle)
    left = signal.setitimer(signal.ITIMER_REAL, 0.0001)  # of the timer that ends tests that hang
    try:
        yield raised
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # it was interrupted before
def test_after_any_number_of_signals_the_client_is_usable(server: HubThread, address: str) -> None:
    with blocking.Client(address, timeout=PATIENCE) as client, blocking.Client(address) as other:
        client.subscribe(b"a")
        served = client.serve(b"b", lambda question: question.payload)
        operations: list[Callable[[], object]] = [
            client.sync,
            lambda: client.receive(timeout=0.0002),
            lambda: client.request(b"b", b"x", timeout=0.01),
            lambda: client.publish_many([(b"a", b"x")] * 3),
            lambda: client.subscribe(b"c", b"d").unsubscribe(),
        ]
        with storm() as raised:
            while len(raised) < 2_000:
                with suppress(InterruptedVerbError, TimeoutError):
                    random.choice(operations)()

        # Threads that wait, too, get what they wait for.
        assert other.request(b"b", b"y", timeout=PATIENCE) == b"y"
        assert client.request(b"b", b"z", timeout=PATIENCE) == b"z"
        with suppress(TimeoutError):
            while True:
                client.receive(timeout=0)
        other.publish(b"a", b"last")
        assert client.receive(timeout=PATIENCE).payload == b"last"
        served.stop()
        assert client.sync() == "local"
        assert not client._connection.leadership.taken


def test_a_handler_that_waits_for_the_client_which_it_interrupted_gets_an_error(
    server: HubThread, address: str
) -> None:
    errors: list[StateError] = []
    with blocking.Client(address) as client:
        client.subscribe(b"a")

        def handle(signum: int, frame: object) -> None:
            with pytest.raises(StateError, match="its own thread waits") as caught:
                client.sync()
            errors.append(caught.value)
            client.publish(b"a", b"from the handler")

        before = signal.signal(signal.SIGUSR1, handle)
        wait, here = client._connection.runtime.wait, threading.get_ident()

        async def interrupted(fd: int, events: int, timeout: float | None) -> bool:
            signal.pthread_kill(here, signal.SIGUSR1)
            return await wait(fd, events, timeout)

        client._connection.runtime.wait = interrupted  # type: ignore[method-assign]
        try:
            assert client.receive(timeout=PATIENCE).payload == b"from the handler"
        finally:
            del client._connection.runtime.wait
            signal.signal(signal.SIGUSR1, before)
        assert client.sync() == "local"
    assert errors
