"""Callers that share a client: one reads for all."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from time import monotonic

import pytest
from support import PATIENCE, HubThread, own_key

from sbuslib import blocking
from sbuslib.blocking import _Waiter
from sbuslib.clients.lead import BlockingLead, Lead, time_left
from sbuslib.errors import DisconnectedError


def nothing() -> None: ...


def test_one_caller_takes_the_lead_and_the_next_waits_until_it_is_given_back() -> None:
    lead = BlockingLead(threading.RLock(), _Waiter)
    assert lead.take(lambda: False, nothing, None)
    with pytest.raises(TimeoutError):
        lead.take(lambda: False, nothing, monotonic())
    taken: queue.SimpleQueue[bool] = queue.SimpleQueue()
    next_caller = threading.Thread(target=lambda: taken.put(lead.take(lambda: False, nothing, None)))
    next_caller.start()
    with lead.lock:
        lead.give_back()
    assert taken.get(timeout=PATIENCE)
    next_caller.join()


def test_a_caller_that_has_what_it_waits_for_needs_no_lead() -> None:
    lead = BlockingLead(threading.RLock(), _Waiter)
    assert not lead.take(lambda: True, nothing, None)
    assert not lead.taken


def test_a_caller_is_told_when_there_is_nothing_to_wait_for() -> None:
    def ended() -> None:
        raise DisconnectedError("ended")

    lead = BlockingLead(threading.RLock(), _Waiter)
    with pytest.raises(DisconnectedError):
        lead.take(lambda: False, ended, None)
    assert not lead.taken


class Woken:
    """A waiter that only tells whether it was woken."""

    was_woken = False

    def wake(self) -> None:
        self.was_woken = True


def follow(lead: Lead[Woken], ready: Callable[[], bool]) -> Woken:
    waiter = lead.look(None, ready, nothing)
    assert isinstance(waiter, Woken)
    return waiter


def test_when_the_chosen_caller_gives_up_the_next_one_is_chosen() -> None:
    lead = Lead(Woken)
    assert lead.look(None, lambda: False, nothing) is True
    first, second = follow(lead, lambda: False), follow(lead, lambda: False)
    lead.give_back()
    assert (first.was_woken, second.was_woken) == (True, False)
    lead.leave(first)
    assert second.was_woken
    assert lead.look(second, lambda: False, nothing) is True


def test_a_chosen_caller_that_needs_no_lead_passes_it_on() -> None:
    lead = Lead(Woken)
    assert lead.look(None, lambda: False, nothing) is True
    has_come: list[bool] = []
    first, second = follow(lead, lambda: bool(has_come)), follow(lead, lambda: False)
    lead.give_back()
    has_come.append(True)
    assert lead.look(first, lambda: bool(has_come), nothing) is False
    assert second.was_woken


def test_time_left_is_never_negative() -> None:
    assert time_left(None) is None
    assert time_left(monotonic() - 1) == 0


def test_one_of_several_waiting_threads_gets_the_message(
    server: HubThread, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the threads that wait for one message gets it. The others continue to wait.

    What lies between seeing that there is a message and taking it is a few instructions; made longer here.
    """
    original = blocking.Client._until

    def slowly(self: blocking.Client, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        time.sleep(0.005)

    with blocking.Client(address) as client:
        client.subscribe(b"a")
        monkeypatch.setattr(blocking.Client, "_until", slowly)
        results: queue.SimpleQueue[object] = queue.SimpleQueue()

        def take() -> None:
            try:
                results.put(client.receive(PATIENCE).payload)
            except Exception as error:
                results.put(error)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(4):
            server.call(server.hub.publish, b"a", b"%d" % number)
            assert results.get(timeout=PATIENCE) == b"%d" % number
        for thread in threads:
            thread.join()


def test_several_threads_that_switch_all_the_time(server: HubThread, address: str) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with blocking.Client(address) as client:
            client.subscribe(b"a")
            results: queue.SimpleQueue[object] = queue.SimpleQueue()

            def work() -> None:
                try:
                    for number in range(50):
                        client.publish(b"a", b"%d" % number)
                        client.publish_many([(b"a", b"x")] * 3)
                        for _ in range(4):
                            client.receive(PATIENCE)
                        assert client.whoami() == own_key()
                        client.sync()
                    results.put(None)
                except Exception as error:
                    results.put(error)

            threads = [threading.Thread(target=work) for _ in range(6)]
            for thread in threads:
                thread.start()
            assert [results.get(timeout=PATIENCE * 2) for _ in threads] == [None] * 6
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
