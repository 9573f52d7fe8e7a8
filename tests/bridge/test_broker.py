"""What brokers share: URLs, files for TLS with a server of each kind, files that cannot be used, and what waits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from sbuslib.bridge import AioBridge, BrokerOptions, broker
from sbuslib.bridge.broker import Broker, make_broker
from sbuslib.errors import UsageError

from .conftest import Buses, joined, until
from .servers import nats_server, secure_server

pytest_plugins = ["certificate_fixtures"]

Authority = dict[str, str]
SECURE = {"nats": "tls", "mqtt": "mqtts", "redis": "rediss"}


def files_of(authority: Authority) -> dict[str, Any]:
    return {"ca": authority["ca"], "certificate": authority["cert"], "private_key": authority["key"]}


@pytest.fixture
def ours(certificates: Callable[[str], Authority]) -> Authority:
    """The authority that the server trusts."""
    return certificates("ours")


@pytest.fixture
def theirs(certificates: Callable[[str], Authority]) -> Authority:
    return certificates("theirs")


@pytest.fixture(params=SECURE)
def urls(request: pytest.FixtureRequest, folder: str, ours: Authority) -> tuple[str, str]:
    """A server that demands certificates: its URL with TLS, and the one that leaves that to the options."""
    kind = request.param
    server = secure_server(kind, folder, ours).start()
    return f"{SECURE[kind]}://127.0.0.1:{server.port}", f"{kind}://127.0.0.1:{server.port}"


async def test_a_message_crosses_with_certificates_at_both_ends(
    urls: tuple[str, str], ours: Authority, buses: Buses, caplog: pytest.LogCaptureFixture
) -> None:
    payload = bytes(range(256)) * 200  # more than TLS enciphers at once
    for url in urls:
        async with joined(buses, url, options=BrokerOptions(**files_of(ours))) as (_, _, here, there):
            await here.publish(b"a", payload)
            assert (await there.receive()).payload == payload
    assert not [one for one in caplog.records if one.name == "sbuslib"]


async def test_a_bridge_tells_why_one_end_does_not_trust_the_other(
    urls: tuple[str, str],
    ours: Authority,
    theirs: Authority,
    buses: Buses,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", ours["ca"])  # the system's authorities: trusted unless others are named
    misled = [files_of(ours) | {"ca": theirs["ca"]}, {}, {"ca": ours["ca"]}, files_of(theirs) | {"ca": ours["ca"]}]
    causes = r"certificate verify failed|alert bad certificate|alert certificate required|alert unknown ca"

    bridges = [AioBridge(buses[0], urls[0], export=[b"a"], options=BrokerOptions(**given)) for given in misled]
    async with AsyncExitStack() as stack:
        await asyncio.gather(*map(stack.enter_async_context, bridges))
        await until(lambda: len(re.findall(causes, caplog.text)) >= len(bridges))
        assert not any(bridge.statistics().connected for bridge in bridges)
    assert len(re.findall("certificate verify failed", caplog.text)) == 1
    assert {(one.levelname, one.exc_info) for one in caplog.records if one.name == "sbuslib"} == {("WARNING", None)}
    with open(theirs["key"]) as file:
        assert file.readlines()[1].strip() not in caplog.text


async def test_long_messages_that_come_too_fast_do_not_fill_the_memory(
    buses: Buses, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "_UNREAD_BYTES", 1_000)
    server = nats_server(folder).start()

    async with AioBridge(buses[0], f"nats://127.0.0.1:{server.port}", import_=[b"a"]) as one:
        await one.ready()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b'CONNECT {"verbose": false}\r\n' + b"PUB sbus.a 400\r\n%b\r\n" % bytes(400) * 100)
        await until(lambda: one.statistics().imported + one.statistics().lost.get("unread", 0) == 100)
        assert one.statistics().lost
        await writer.drain()
        imported = one.statistics().imported
        writer.write(b"PUB sbus.a 0\r\n\r\n")
        await until(lambda: one.statistics().imported == imported + 1)
        writer.close()


async def test_files_that_are_missing_are_told_before_the_bus_is_joined(folder: str) -> None:

    for name in ("ca", "certificate", "private_key", "nkey", "credentials"):
        for path in (f"{folder}/missing", folder):
            given: dict[str, Any] = {name: path}
            bridge = AioBridge(f"{folder}/no hub", "nats://x", export=[b"a"], options=BrokerOptions(**given))
            with pytest.raises(UsageError, match=re.escape(f"{path}: this file cannot be read")):
                await bridge.__aenter__()


@pytest.mark.parametrize("scheme", SECURE.values())
async def test_files_that_cannot_be_used_are_told(
    buses: Buses, ours: Authority, theirs: Authority, lock: Callable[[str], str], scheme: str
) -> None:
    wrong: list[dict[str, Any]] = [
        {"ca": ours["key"]},
        {"certificate": ours["cert"]},
        {"certificate": ours["ca"], "private_key": ours["cert"]},
        {"certificate": ours["cert"], "private_key": theirs["key"]},
        {"certificate": ours["cert"], "private_key": lock(ours["key"])},
        {"private_key": ours["key"]},
    ]

    for given in wrong:
        bridge = AioBridge(buses[0], f"{scheme}://127.0.0.1", export=[b"a"], options=BrokerOptions(**given))
        with pytest.raises(UsageError, match=re.escape(list(given.values())[-1])):
            await bridge.__aenter__()


def make(url: str) -> Broker:
    return make_broker(url, BrokerOptions(), b"/", print)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("nats://a", "Nats"),
        ("nats://a:4222,tls://b:4222", "Nats"),
        ("mqtt://a", "Mqtt"),
        ("mqtts://me:wo,rd@[::1]:8883", "Mqtt"),
        ("redis://a/1", "Redis"),
        ("rediss://me:wo,rd@a:6380/1", "Redis"),
    ],
)
def test_the_scheme_says_which_broker(url: str, name: str) -> None:
    assert type(make(url)).__name__ == name


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a:4222",
        "http://a",
        "nats://",
        "nats://a:4222,b:4222",
        "nats://a,ws://b",
        "nats://a,redis://b",
        "nats://a:65536",
        "tls://[::1",
        "mqtt://a:0",
        "mqtt://me:swordfish/1@a",
        "redis://me:swordfish/1@a",
        "redis://a?password=swordfish",
    ],
)
def test_a_wrong_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(url)
    assert "swordfish" not in str(caught.value)
