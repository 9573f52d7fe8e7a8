"""Trees of processes in which a hub is killed, stopped or started again: what each kind of fault has to leave whole."""

from __future__ import annotations

import contextlib
import signal

from programs import Programs, Publisher, Subscriber, wait_until

from sbuslib.blocking import Client


def publish_last(publisher: Publisher, subscriber: Subscriber) -> None:
    """Publish a message, and wait until it has come: all earlier ones have come then or never will."""
    wait_until(lambda: publisher.publish(1, b"k"), "the hub takes another message")
    last = publisher.published - 1
    wait_until(lambda: subscriber.has(publisher, last), "the last message has come")
    publisher.wait_until_passed()


def test_a_slave_that_is_killed_and_started_again_is_not_sent_its_own_old_messages(programs: Programs) -> None:
    programs.start("top")
    programs.start("low", "top")
    programs.wait_until_joined("low")
    publisher = Publisher(programs.address("low"), "p")
    with (
        contextlib.closing(Subscriber(programs.address("top"), b"k")) as above,
        contextlib.closing(Subscriber(programs.address("low"), b"k")) as below,
        contextlib.closing(publisher),
        contextlib.ExitStack() as others,
    ):
        assert below.client.sync("tree") == "tree"
        publish_last(publisher, above)  # so the slave sends what comes now, and does not keep it
        before = publisher.published
        for _ in range(100):  # to hand a message to them takes so long that the slave is back before all is read
            others.enter_context(Client(programs.address("top"))).subscribe(b"k")
        programs.send("top", signal.SIGSTOP)  # so the messages wait in the old connection
        for _ in range(500):  # one by one: many at once would be one packet
            publisher.publish(1, b"k", 50)
            wait_until(lambda: below.has(publisher, publisher.published - 1), "the slave has handed it on")
        programs.kill("low")
        programs.start("low", "top")
        wait_until(lambda: below.known_by == programs.pids["low"], "the client on the slave is back")
        programs.send("top", signal.SIGCONT)
        programs.wait_until_joined("low")
        publisher.read()
        publish_last(publisher, above)
        publish_last(publisher, below)  # the one whose messages are counted comes last
        for subscriber in (above, below):
            subscriber.check_order(publisher)
        assert len(below.numbers["p"]) == publisher.published
        assert len(above.numbers["p"]) > before + 2, "what the slave had sent is read"
