"""Presences and watches stay while nobody waits for their client, for example over a restart of the hub."""

from __future__ import annotations

import pytest
from clients.drivers import Bus, script
from support import PATIENCE, HubThread

from sbuslib import blocking
from sbuslib.limits import ClientLimits

SWIFT = ClientLimits(reconnect_pause=0.001, reconnect_pause_most=0.002)


@script
async def test_presences_and_watches_outlive_their_hub_while_nobody_waits_for_the_client(bus: Bus) -> None:
    with HubThread(bus.address):
        present, watching = await bus.client(limits=SWIFT), await bus.client(limits=SWIFT)
        other = await bus.client(reconnect=True, limits=SWIFT)
        await present.presence("worker/1", info=b"one")
        await present.presence("worker/2", info=b"two")
        wanted, members = await watching.hub.watch_interest("k"), await watching.present("worker/*")
        assert len(members.members) == 2
        assert (present._connection._reconnect, watching._connection._reconnect) == (True, True)
    for _ in range(2):
        with HubThread(bus.address):
            seen = await other.present("worker/*")
            while sorted(member.info for member in seen.members) != [b"one", b"two"]:
                await other.sync()
            await seen.close()
            subscription = await other.subscribe("k")
            while not (wanted.wanted and len(members.members) == 2):
                await other.sync()
            await subscription.unsubscribe()
            while wanted.wanted is not False:  # unknown, while the hub waits for others
                await other.sync()


@script
async def test_a_drained_client_leaves_of_its_own_accord(bus: Bus, server: HubThread) -> None:
    with blocking.Client(server.address) as other, other.present("k") as present:
        client = await bus.client()
        await client.presence("k")
        await client.hub.watch_interest("k")
        assert present.receive(timeout=PATIENCE).came
        await client.drain()
        assert present.receive(timeout=PATIENCE).cause == "closed"
        assert not client._connection.begun


@script
async def test_a_client_reads_no_more_than_it_holds_for_a_program_that_only_is_present(
    bus: Bus, server: HubThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbuslib.clients.mailboxes.MOST_UNREAD", 10)
    client, other = await bus.client(), await bus.client()
    presence = await client.presence("p")
    await client.subscribe("k")
    await other.publish_many([("k", b"")] * 30)
    while client.lost != {"unread": 20}:
        await other.sync()
    assert len(await client.receive_many(timeout=PATIENCE)) == 10
    await presence.leave()
    await other.publish("k")
    while not client._connection.session.inbox:
        await client.sync()
    assert not client._core.reader._is_running
