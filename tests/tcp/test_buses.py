"""The bus of a gateway: a hub of this process, or a client's connection."""

from __future__ import annotations

import os
from contextlib import closing

import pytest

from sbuslib import Client, Hub
from sbuslib.tcp.buses import Bus, separator_of


@pytest.mark.parametrize("separator", [b"/", b"."])
def test_a_hub_and_its_client_are_the_same_bus(folder: str, separator: bytes) -> None:
    with Hub(os.path.join(folder, "bus"), separator=separator) as hub, Client(hub.address, timeout=10) as client:
        one, two = Bus(hub, [b"a"]), Bus(client, [b"a"])
        assert one.identity == two.identity
        assert separator_of(hub) == separator_of(client) == (separator, True)
        for bus in (one, two):
            bus.publish([(b"a", b"1"), (b"b", b"2")])
        client.sync()
        for bus in (one, two):
            with closing(bus):
                got = bus.receive()
                while len(got) < 2:
                    got += bus.receive()
                assert [(message.key, message.payload) for message in got] == [(b"a", b"1")] * 2


def test_the_separator_of_a_client_that_reconnects_is_not_certain(hub: Hub) -> None:
    with Client(hub.address, timeout=10, reconnect=True) as client:
        assert separator_of(client) == (b"/", False)
