"""What a hub logs of itself: losing that begins and ends, links that do not answer."""

from __future__ import annotations

import logging
import os

import pytest
from support import HubThread, Peer

from sbuslib.cli.log import QUIET_SECONDS, HubLog
from sbuslib.kernel.users import name_of_user
from sbuslib.limits import Limits


def test_losing_is_told_when_it_begins_and_with_the_sum_when_it_ends(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    user = name_of_user(os.getuid())
    with caplog.at_level(logging.INFO, "sbuslib"), HubThread(path, limits=Limits(queued_packets=4)) as bus:
        log = bus.call(lambda: HubLog(bus.hub))
        bus.call(log.close)
        with Peer(path) as slow, Peer(path) as publisher:
            slow.send(b"CMSG blocking/hard/discard")
            slow.subscribe(b"k")
            slow.barrier()
            for now in (1.0, 2.0):
                for _ in range(500):
                    publisher.publish(b"k", bytes(10_000))
                publisher.barrier()
                log._not_before = 0.0
                bus.call(lambda now=now: log.look(now))
            lost = sum(bus.call(lambda: bus.hub.statistics()).lost.values())
            log._not_before = 0.0
            bus.call(lambda: log.look(2.0 + QUIET_SECONDS))
    ours = [record.getMessage() for record in caplog.records if record.getMessage().startswith(f"user {user} ")]
    assert ours == [f"user {user} loses messages: overflow", f"user {user} lost {lost:,} messages in 1 s: overflow"]


def test_a_link_is_told_when_it_joins_does_not_answer_and_ends(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sbuslib"), HubThread(path, limits=Limits(sync_wait=0.01)) as bus:
        log = bus.call(lambda: HubLog(bus.hub))
        bus.call(log.close)

        def look() -> str:
            log._not_before = 0.0
            bus.call(log.look)
            return caplog.messages[-1] if caplog.messages else ""

        with Peer(path) as silent:
            silent.send(b"CMSG interest/on")
            silent.barrier()
            assert look().endswith(": joined")
            while not look().endswith(": it does not answer"):  # it is asked now and then
                silent.barrier()
        with Peer(path) as other:
            other.barrier()
        while not look().endswith(": ended"):
            pass
