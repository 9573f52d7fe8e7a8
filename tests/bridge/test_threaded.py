"""``Bridge``, in the process of a hub that uses gevent."""

from __future__ import annotations

import os
from itertools import chain

import gevent
import pytest
from support import PATIENCE, eventually

from sbuslib import Client, Hub
from sbuslib.bridge import Bridge, BrokerOptions
from sbuslib.clients.recipes.last import CaughtUp
from sbuslib.errors import DisconnectedError, NoHubError, StateError, UsageError
from sbuslib.federation.membership import HEARTBEAT
from sbuslib.keys.own_keys import CONTROL
from sbuslib.monitor.diagnosis import examine
from sbuslib.services.retain import Retain

from .servers import mosquitto, nats_server

pytest.importorskip("nats")


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
            while client.receive(timeout=PATIENCE).payload != b"later":
                pass
            assert into.statistics().imported
        ticking.kill()
        assert not out.started
        with pytest.raises(StateError):
            out.start()


def test_retained_messages_become_last_values_and_back(folder: str) -> None:
    """The second bridge joins later: the server gives it what it retained, and ``sbus retain`` keeps that."""
    server = mosquitto(folder).start()
    url = f"mqtt://127.0.0.1:{server.port}"
    state, key = b"state.", b"state.a"
    with Hub(f"{folder}/a", separator=b".") as one, Hub(f"{folder}/b", separator=b".") as other:
        kept = Retain(other.address, state)
        running = gevent.spawn(kept.run)
        eventually(kept.is_settled.is_set)
        with (
            Client(other.address) as client,
            Bridge(one, url, export=[state], options=BrokerOptions(retain=(state,))) as out,
        ):
            out.wait_ready()
            one.publish(key, b"21")
            eventually(lambda: out.statistics().exported == 1)
            with Bridge(other, url, import_=[state]) as into:
                into.wait_ready()
                eventually(lambda: client.last(state))
                subscription = client.subscribe(key, last=True)
                assert subscription.receive(timeout=PATIENCE).payload == b"21"
                assert isinstance(subscription.receive(timeout=PATIENCE), CaughtUp)
                one.publish(key, b"")
                assert subscription.receive(timeout=PATIENCE).payload == b""
                assert client.last(state) == []
            one.publish(b"state.b", b"new")
            eventually(lambda: out.statistics().exported == 3)
            with Bridge(other, url, import_=[state]):
                eventually(lambda: [message.payload for message in client.last(state)] == [b"new"])
        kept.stop()
        running.join()


def test_the_metrics_and_the_doctor_tell_what_bridges_carried_keep_and_lost(folder: str) -> None:
    pytest.importorskip("prometheus_client")
    from sbuslib.web.metrics import HubCollector

    with Hub(f"{folder}/a", separator=b".") as hub, Client(hub.address) as forger:
        collector = HubCollector(hub)
        who = {"uid": str(os.getuid()), "pid": str(os.getpid())}

        def told() -> dict[str, float]:
            """The numbers of the bridge that are not 0."""
            samples = chain.from_iterable(family.samples for family in collector.collect())
            return {
                sample.labels.get("cause", sample.name): sample.value
                for sample in samples
                if sample.name.startswith("sbus_bridge_") and who.items() <= sample.labels.items() and sample.value
            }

        assert told() == {}
        with Bridge(hub, "nats://127.0.0.1:1", export=[b"a"], keep_bytes=105_000) as bridge:
            forger.publish_many([(b"a", bytes(10_000))] * 15)
            eventually(lambda: bridge.statistics().lost == {"outage": 5})
            forger.publish(
                CONTROL, HEARTBEAT + b'{"type":"here","gateway":"x","group":"y","told":"z","counts":{"lost":{"x":1}}}'
            )
            eventually(lambda: told() == {"sbus_bridge_kept": 10, "outage": 5})
            found = gevent.get_hub().threadpool.apply(lambda: list(examine(hub.address)))
            (of_bridge,) = [finding for finding in found if finding.about == "bridge"]
            assert (of_bridge.level, "10 kept, 5 lost" in of_bridge.text) == ("warning", True)
        assert told() == {}


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
