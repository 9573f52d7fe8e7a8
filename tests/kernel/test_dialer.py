"""Which addresses are tried, and whether the hub there is the one that is meant."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import gevent
import pytest
from programs import Programs

from sbuslib import Client, Hub, aio, blocking
from sbuslib.errors import HubIdentityError, NoHubError
from sbuslib.kernel.dialer import Dialer
from sbuslib.limits import ClientLimits


def dial(address: str | None, hub_user: int | str | None = None) -> str:
    """The address that answers."""
    dialer = Dialer(address, hub_user, ClientLimits())
    dialer.dial().close()
    return dialer.address


def test_the_error_names_all_addresses_that_were_tried(
    address: str, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    with pytest.raises(NoHubError, match=address):
        dial(address)
    monkeypatch.delenv("SBUS_ADDRESS", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setattr("sbuslib.kernel.defaults.SYSTEM_ADDRESS", folder + "/system")
    with pytest.raises(NoHubError, match=f"{folder}/sbus/bus.*{folder}/system"):
        dial(None)
    monkeypatch.setenv("SBUS_ADDRESS", folder + "/elsewhere")
    with pytest.raises(NoHubError, match="elsewhere") as caught:
        dial(None)
    assert "system" not in str(caught.value)


def test_the_default_address(hub: Hub, address: str, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setenv("SBUS_ADDRESS", address)
    assert dial(None) == address
    monkeypatch.delenv("SBUS_ADDRESS")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setattr("sbuslib.kernel.defaults.SYSTEM_ADDRESS", address)
    assert dial(None) == address  # the second of two


def test_a_hub_of_another_user_is_refused(hub: Hub, address: str) -> None:
    assert dial(address, os.getuid()) == address
    with pytest.raises(HubIdentityError, match=str(os.getuid())):
        dial(address, os.getuid() + 1)


@contextlib.contextmanager
def stalled_hub(address: str) -> Iterator[None]:
    """A hub in a thread that does something else than run its event loop, until the end of the block."""
    started, done = threading.Event(), threading.Event()

    def serve() -> None:
        with Hub(address):
            started.set()
            done.wait()
            with Client(address):
                gevent.sleep(0)
        gevent.get_hub().destroy(destroy_loop=True)

    thread = threading.Thread(target=serve)
    thread.start()
    started.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


CONNECT: dict[str, Callable[[str], object]] = {
    "gevent": lambda address: Client(address, timeout=0.05),
    "blocking": lambda address: blocking.Client(address, timeout=0.05),
    "aio": lambda address: asyncio.run(_connect(address)),
}


async def _connect(address: str) -> object:
    return await aio.Client(address, timeout=0.05)


@pytest.mark.parametrize("kind", CONNECT)
def test_a_hub_whose_event_loop_does_not_run_is_named_as_the_reason(address: str, kind: str) -> None:
    with (
        stalled_hub(address),
        pytest.raises(TimeoutError, match=r"its event loop does not run: .*serve_forever"),
    ):
        CONNECT[kind](address)


def test_a_hub_of_another_process_that_does_not_answer(programs: Programs) -> None:
    programs.start("bus")
    programs.send("bus", signal.SIGSTOP)
    for connect in CONNECT.values():
        with pytest.raises(TimeoutError, match=programs.address("bus")) as caught:
            connect(programs.address("bus"))
        assert "event loop" not in str(caught.value)


def test_a_relative_address_is_the_same_after_a_change_of_the_working_directory(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with Hub("bus") as hub, Client("bus") as early:
        late = Dialer("bus", None, ClientLimits())
        monkeypatch.chdir("/")
        late.dial().close()
        assert dial(hub.address) == hub.address == f"{os.path.realpath(folder)}/bus"
        early.sync()
    assert not os.path.exists(f"{folder}/bus")


def test_a_relative_address_stays_relative_where_the_absolute_one_is_too_long(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = f"{folder}/{'d' * 120}"
    os.mkdir(deep)
    monkeypatch.chdir(deep)
    with Hub("bus"), Client("bus") as client:
        client.sync()
