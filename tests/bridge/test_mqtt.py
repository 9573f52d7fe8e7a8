"""What only MQTT has: retained messages, the last will, versions, passwords."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sbuslib.aio import Client
from sbuslib.bridge import AioBridge, BrokerOptions
from sbuslib.errors import UsageError

from .conftest import Buses, receive, until
from .servers import mosquitto

pytest_plugins = ["certificate_fixtures"]


@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1])
async def test_the_newest_message_of_a_key_is_kept_and_comes_to_a_bridge_that_connects(
    buses: Buses, folder: str, version: str, qos: int
) -> None:
    server = mosquitto(folder).start()
    options = BrokerOptions(version=version, qos=qos, retain=(b"state/",))
    url = f"mqtt://127.0.0.1:{server.port}"

    async with (
        AioBridge(buses[0], url, export=[b""], options=options) as one,
        Client(buses[0]) as here,
        Client(buses[1]) as there,
    ):
        await one.ready()
        await here.publish_many([(b"state/a", b"old"), (b"state/a", b"new"), (b"event/a", b"gone")])
        await until(lambda: one.statistics().exported == 3)
        await there.subscribe(b"")
        async with AioBridge(buses[1], url, import_=[b"state/", b"event/"], options=options) as two:
            await two.ready()
            got = await receive(there, 2)  # the first is what bridges say to each other
            assert [(message.key, message.payload) for message in got[1:]] == [(b"state/a", b"new")]
            assert two.statistics().imported == 1


async def test_topics_without_a_prefix_and_the_last_will(buses: Buses, folder: str) -> None:
    """A device that knows nothing of bridges; then a bridge that goes without a word."""
    server = mosquitto(folder).start()
    url = f"mqtt://127.0.0.1:{server.port}"
    options = BrokerOptions(prefix="", name="one", version="3.1.1")

    async with (
        AioBridge(buses[1], url, import_=[b"device/*/t", b"sbus-bridge/"], options=BrokerOptions(prefix="")) as two,
        Client(buses[1]) as there,
    ):
        await there.subscribe(b"device/", b"sbus-bridge/one")
        await two.ready()
        device = BrokerOptions(prefix="", name="device")
        async with AioBridge(buses[0], url, export=[b"device/"], options=device) as one, Client(buses[0]) as here:
            await one.ready()
            await here.publish_many([(b"device/1/t", b"21"), (b"device/1/h", b"40")])
            assert (await there.receive()).key == b"device/1/t"
        one = await AioBridge(buses[0], url, export=[b"x"], options=options).__aenter__()
        await one.ready()
        assert (await there.receive()).payload == b"here"
        one._broker._client.socket().shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
        assert (await there.receive()).payload == b"away"
        await one.close()


async def test_a_password_is_asked_for(buses: Buses, folder: str, caplog: pytest.LogCaptureFixture) -> None:
    file = f"{folder}/passwords"
    server = mosquitto(folder, f"password_file {file}", "allow_anonymous false")
    subprocess.run(["mosquitto_passwd", "-b", "-c", file, "me", "word"], check=True)
    server.start()

    url = f"mqtt://me:word@127.0.0.1:{server.port}"
    async with AioBridge(buses[0], url, export=[b"a"]) as one:
        await one.ready()
    async with AioBridge(buses[0], url, export=[b"a"], options=BrokerOptions(user="me", password="wrong")) as one:
        await until(lambda: "orized" in caplog.text)
        assert not one.statistics().connected
    assert "word" not in caplog.text


async def test_what_the_server_does_not_permit_is_told(
    buses: Buses, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = Path(folder, "acl")
    file.write_text("topic read #\n")
    file.chmod(0o700)
    server = mosquitto(folder, f"acl_file {file}").start()

    url = f"mqtt://127.0.0.1:{server.port}"
    async with AioBridge(buses[0], url, export=[b"a"]) as one:
        await one.ready()
        await until(lambda: "refuses what is exported: Not authorized" in caplog.text)


async def test_other_versions_and_qualities_are_refused(buses: Buses) -> None:

    for options in (BrokerOptions(version="4"), BrokerOptions(qos=2)):
        with pytest.raises(UsageError):
            async with AioBridge(buses[0], "mqtt://127.0.0.1:1", export=[b"a"], options=options):
                pass


async def test_messages_that_share_a_record_of_tls_come_at_once(
    buses: Buses, certificates: Callable[[], dict[str, str]]
) -> None:
    """Mosquitto writes each packet by itself. Here is a server that writes several at once."""
    files = certificates()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word = 0
        while word != 0x82:  # to subscribe
            word, length = await reader.readexactly(2)
            packet = await reader.readexactly(length)
            if word == 0x10:  # to connect
                writer.write(b"\x20\x02\0\0")
        writer.write(b"\x90\x03%b\0" % packet[:2] + b"".join(b"\x30\x09\0\x06sbus/a%d" % each for each in range(9)))
        await reader.read()
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files["cert"], files["key"])
    async with await asyncio.start_server(serve, "127.0.0.1", ssl=context) as server, Client(buses[0]) as here:
        await here.subscribe(b"a")
        url = f"mqtts://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        options = BrokerOptions(ca=files["ca"], version="3.1.1", qos=0)
        async with AioBridge(buses[0], url, import_=[b"a"], options=options):
            assert [message.payload for message in await receive(here, 9)] == [b"%d" % each for each in range(9)]
