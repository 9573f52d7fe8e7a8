"""An unforeseen error in a greenlet of a service ends the service, and a caller that waits for it gets the error."""

from __future__ import annotations

import logging

import gevent
import pytest
from support import eventually

from sbuslib.core.supervision import Supervisor
from sbuslib.errors import ServiceError


def test_an_unforeseen_error_stops_the_service_once_and_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stopped: list[None] = []
    greenlets = Supervisor("the service", lambda: stopped.append(None))

    def fail(error: BaseException) -> None:
        raise error

    with caplog.at_level(logging.CRITICAL, "sbuslib"):
        greenlets.spawn(fail, ZeroDivisionError("a bug"))
        greenlets.spawn(fail, gevent.Timeout(5))
        assert greenlets.failed.wait(10)
    assert len(stopped) == 1
    with pytest.raises(
        ServiceError, match="the service ended by an unforeseen error: ZeroDivisionError: a bug"
    ) as info:
        greenlets.check()
    assert isinstance(info.value.__cause__, ZeroDivisionError)
    assert ["ZeroDivisionError" in record.message for record in caplog.records] == [True, False]
    assert all(record.exc_info for record in caplog.records)


def test_greenlets_that_return_or_are_killed_end_nothing() -> None:
    greenlets = Supervisor("the service", pytest.fail)
    done = greenlets.spawn(int)
    killed = greenlets.spawn(gevent.sleep, 1_000)
    eventually(lambda: done.dead)
    killed.kill()
    greenlets.check()
    assert not greenlets.failed.is_set()


def test_an_error_while_stopping_leaves_nobody_waiting() -> None:
    def stop() -> None:
        raise OSError("nor can it stop")

    greenlets = Supervisor("the service", stop)
    greenlets.spawn(divmod, 1, 0)
    assert greenlets.failed.wait(10)
    with pytest.raises(ServiceError, match="ZeroDivisionError"):
        greenlets.check()
