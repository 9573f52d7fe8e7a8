"""``Bridge``, in the process of a hub that uses gevent."""

from __future__ import annotations

import gevent
import pytest
from support import PATIENCE, eventually

from sbuslib import Client, Hub
from sbuslib.bridge import Bridge
from sbuslib.errors import DisconnectedError, NoHubError, StateError, UsageError

from .servers import nats_server


def test_hubs_of_one_process_are_joined_and_go_on_meanwhile(folder: str) -> None:
    server = nats_server(folder)
    with Hub(f"{folder}/a") as one, Hub(f"{folder}/b") as other, Client(other.address) as client:
        turns = 0

        def tick() -> None:
            nonlocal turns
            while True:
                gevent.sleep(0.001)
                turns += 1

        ticking = gevent.spawn(tick)
        with (
            Bridge(one, f"nats://127.0.0.1:{server.port}", export=[b""]) as out,
            Bridge(client, f"nats://127.0.0.1:{server.port}", import_=[b"room/"]) as into,
        ):
            assert out.started
            one.publish(b"room/1", b"kept")
            eventually(lambda: out.statistics().kept == 1)
            server.start(wait=False)
            client.subscribe(b"room/")
            before = turns
            into.wait_ready()
            assert turns > before  # waiting lets other greenlets run
            one.publish(b"room/1", b"later")
            while client.receive(PATIENCE).payload != b"later":
                pass
            assert into.statistics().imported
        ticking.kill()
        assert not out.started
        with pytest.raises(StateError):
            out.start()
    server.kill()


def test_what_cannot_be_right_is_raised_when_it_starts(folder: str) -> None:
    with Hub(f"{folder}/a") as hub:
        for url, lists in (("http://x", {"export": [b"a"]}), ("nats://x", {}), ("nats://x", {"import_": [b"a/!/"]})):
            with pytest.raises(UsageError), Bridge(hub, url, **lists):
                pass
    with pytest.raises(NoHubError), Bridge(f"{folder}/a", "nats://x", export=[b"a"]):
        pass


def test_a_bridge_ends_with_its_hub(folder: str) -> None:
    with Hub(f"{folder}/a") as hub, Bridge(hub, "nats://127.0.0.1:1", export=[b"a"]) as bridge:
        hub.stop()
        eventually(lambda: not bridge.started)
        with pytest.raises(DisconnectedError):
            bridge.check()
