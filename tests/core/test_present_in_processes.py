"""Who is there, with hubs and clients that are processes: taken over, stopped and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from subprocess import PIPE, Popen

import pytest
from programs import Programs
from support import PATIENCE, ROOT

from sbuslib.blocking import Client

_WORKER = """
import sys
from sbuslib.blocking import Client
client = Client(sys.argv[1])
presence = client.presence(b"worker", info=b"a process")
print("present", flush=True)
client.receive()
"""


@pytest.fixture
def programs() -> Iterator[Programs]:
    with tempfile.TemporaryDirectory(prefix="sbus-") as folder, contextlib.closing(Programs(folder)) as programs:
        programs.start("bus", None, "-o")
        yield programs


@contextlib.contextmanager
def worker(address: str) -> Iterator[Popen[bytes]]:
    """A process that is present as ``worker``."""
    with Popen(
        [sys.executable, "-c", _WORKER, address], stdout=PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}
    ) as one:
        try:
            assert one.stdout is not None
            assert one.stdout.readline()
            yield one
        finally:
            one.kill()


def test_nobody_goes_where_a_hub_is_taken_over(programs: Programs) -> None:
    programs.start("below", "bus")
    programs.wait_until_joined("below")
    with contextlib.ExitStack() as stack:
        parent, below = (stack.enter_context(Client(programs.address(name))) for name in ("bus", "below"))
        held = [stack.enter_context(client.presence(key)) for client, key in ((parent, b"above"), (below, b"below"))]
        watches = [stack.enter_context(client.present(b"")) for client in (parent, below)]
        while any(len(watch.members) < len(held) for watch in watches):
            for client in (parent, below):
                client.sync("tree")
        for watch in watches:
            with contextlib.suppress(TimeoutError):
                while True:
                    watch.receive(timeout=0)

        for number in range(3):
            programs.take_over("bus")
            programs.wait_until_joined("below")
            key = b"last %d" % number
            for client in (parent, below):
                with client.presence(key):
                    for watch in watches:
                        event = watch.receive(timeout=PATIENCE)
                        assert (event.member.key, event.came) == (key, True)
                for watch in watches:
                    event = watch.receive(timeout=PATIENCE)
                    assert (event.member.key, event.came, event.cause) == (key, False, "closed")
                    assert sorted(member.key for member in watch.members) == [b"above", b"below"]


def test_a_process_that_is_stopped_is_there_until_it_is_killed(programs: Programs) -> None:
    with (
        Client(programs.address("bus")) as client,
        client.present(b"") as watch,
        worker(programs.address("bus")) as one,
    ):
        event = watch.receive(timeout=PATIENCE)
        assert event.member.sender.endswith(b"/%d" % one.pid)
        one.send_signal(signal.SIGSTOP)
        with client.presence(b"another"):
            assert watch.receive(timeout=PATIENCE).member.key == b"another"
            assert len(watch.members) == 2
        assert watch.receive(timeout=PATIENCE).member.key == b"another"
        one.kill()
        gone = watch.receive(timeout=PATIENCE)
        assert (gone.member, gone.came, gone.cause) == (event.member, False, "ended")


def test_who_is_beyond_a_hub_that_is_stopped_is_there_until_that_is_killed_and_given_up(programs: Programs) -> None:
    programs.start("below", "bus")
    programs.wait_until_joined("below")
    with Client(programs.address("bus")) as client, client.present(b"") as watch, worker(programs.address("below")):
        member = watch.receive(timeout=PATIENCE).member
        programs.send("below", signal.SIGSTOP)
        with client.presence(b"another"):
            assert watch.receive(timeout=PATIENCE).member.key == b"another"
            assert len(watch.members) == 2
        assert watch.receive(timeout=PATIENCE).member.key == b"another"
        programs.kill("below")
        is_whole = True
        while is_whole:  # the hub hears in its next turn that the link has ended
            with client.present(b"") as partial:
                is_whole, members = partial.is_whole, partial.members
        assert members == [member]
        gone = watch.receive(timeout=PATIENCE)
        assert (gone.member, gone.came, gone.cause) == (member, False, "unreachable")
