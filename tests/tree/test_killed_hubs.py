"""Trees of processes in which a hub is killed, stopped or started again: what each kind of fault has to leave whole."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from time import monotonic

import pytest
from programs import Programs, Publisher, Subscriber, wait_until

from sbuslib.core import context


@pytest.fixture
def programs(folder: str) -> Iterator[Programs]:
    made = Programs(folder)
    yield made
    made.close()


def publish_for(seconds: float, publisher: Publisher) -> None:
    """Publish some thousand messages a second."""
    pause = threading.Event()
    end = monotonic() + seconds
    while monotonic() < end:
        publisher.publish(20, b"k", 50)
        publisher.read()
        pause.wait(0.002)


def publish_last(publisher: Publisher, subscriber: Subscriber) -> None:
    """Publish a message, and wait until it has come: all earlier ones have come then or never will."""
    wait_until(lambda: publisher.publish(1, b"k"), "the hub takes another message")
    last = publisher.published - 1
    wait_until(lambda: subscriber.has(publisher, last), "the last message has come")
    publisher.wait_until_passed()


def test_what_only_the_memory_of_a_hub_in_the_middle_holds_is_not_acknowledged(programs: Programs) -> None:
    programs.start("top")
    programs.start("middle", "top")
    programs.start("low", "middle")
    programs.wait_until_joined("low")
    publisher = Publisher(programs.address("low"), "p")
    with contextlib.closing(Subscriber(programs.address("top"), b"k")) as subscriber, contextlib.closing(publisher):
        assert subscriber.client.sync("tree") == "tree"
        programs.send("top", signal.SIGSTOP)
        publish_for(2 * context.PASSED_WAIT, publisher)
        programs.kill("middle")
        programs.send("top", signal.SIGCONT)
        programs.start("middle", "top")
        programs.wait_until_joined("low")
        publish_last(publisher, subscriber)
        subscriber.check_order(publisher)
        missing = publisher.published - len(subscriber.numbers["p"])
        assert missing, "the hub that was killed kept messages"
        assert missing <= publisher.told
