"""Errors in callbacks of the event loop: no watcher stops for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import gevent
import pytest
from support import Peer

from sbuslib import Hub
from sbuslib.core.client_role import ClientRole

Connect = Callable[..., Peer]
MakeHub = Callable[..., Hub]


class Raising(logging.Handler):
    """A handler of the application's that fails."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def emit(self, record: logging.LogRecord) -> None:
        raise self.error("the log is full")


@pytest.fixture
def raising(request: pytest.FixtureRequest) -> Iterator[None]:
    handler = Raising(request.param)
    logging.getLogger("sbuslib").addHandler(handler)
    yield
    logging.getLogger("sbuslib").removeHandler(handler)


@pytest.mark.parametrize("raising", [ValueError, gevent.Timeout], indirect=True)
@pytest.mark.usefixtures("raising")
def test_a_logging_handler_that_raises_does_not_stop_the_hub_from_accepting(
    make_hub: MakeHub, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first client is not allowed, which is logged from the callback that accepts clients."""
    hub = make_hub(users=[])
    hub._acceptor._users = set()
    refused = connect()
    assert refused.receive() == b"CMSG notice/kicked\0user not allowed"
    assert refused.is_disconnected()
    hub._acceptor._users = None
    good = connect()
    good.subscribe(b"a")
    good.publish(b"a", b"x")
    assert good.receive() == b"MSG a\0x"
    assert hub.statistics().violations == {"user not allowed": 1}
    assert "the log is full" in capsys.readouterr().err


def test_an_error_in_the_hub_lets_the_client_go(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug of ours must not leave a client that is never read from."""
    hub = make_hub()
    bad, good = connect(), connect()
    good.subscribe(b"a")

    def fails(self: object, publisher: object, packet: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(ClientRole, "act_on", fails)
        bad.send(b"SUB x")
        assert bad.is_disconnected()
    assert hub.statistics().violations == {"error in the hub": 1}
    good.publish(b"a", b"x")
    assert good.receive() == b"MSG a\0x"
    assert "RuntimeError: a bug" in capsys.readouterr().err


def test_a_client_is_kicked_even_if_the_logging_handler_fails(
    hub: Hub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that tries to yield fails, since it runs in the event loop; the offender must go all the same."""

    class Yielding(logging.Handler):
        calls = 0

        def emit(self, record: logging.LogRecord) -> None:
            Yielding.calls += 1
            gevent.sleep(0)

    handler = Yielding()
    logger = logging.getLogger("sbuslib")
    logger.addHandler(handler)
    monkeypatch.setattr(gevent.get_hub(), "handle_error", lambda *_: None)  # which would print the traceback
    try:
        witness, offender = connect(), connect()
        witness.subscribe(b"k")
        offender.send(b"MSG k\0x", b"nonsense", b"MSG k\0y")
        assert offender.is_disconnected()
    finally:
        logger.removeHandler(handler)
    assert Yielding.calls == 1
    assert witness.pending() == [b"MSG k\0x"]
    assert hub.statistics().violations == {"unknown verb": 1}
