"""What only NATS has: clusters, streams, ways to say who we are."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import PATIENCE

from sbuslib.aio import Client
from sbuslib.bridge import AioBridge, BrokerOptions, bridge, broker, nats
from sbuslib.errors import UsageError
from sbuslib.federation.membership import ASK, decode_heartbeat
from sbuslib.keys.own_keys import CONTROL, LOST
from sbuslib.wire.packets import Message

from .accounts import Operator, make_pair
from .conftest import Buses, joined, ready, receive, until
from .servers import Server, free_port, nats_server


async def know_each_other(servers: list[str], last: str) -> None:
    """Return once what is published at any of some servers of a cluster is heard at the last."""
    from nats import connect

    listener = await connect(last)
    for number, server in enumerate(servers):
        heard, speaker = await listener.subscribe(f"found.{number}"), await connect(server)
        while not heard.delivered:
            await speaker.publish(f"found.{number}")
            await speaker.flush()
            await asyncio.sleep(0.001)
        await speaker.close()
    await listener.close()


async def test_a_cluster_of_three_goes_on_when_one_is_killed(buses: Buses, folder: str) -> None:
    routes = [free_port() for _ in range(3)]
    servers = [
        nats_server(
            folder,
            *("--cluster_name", "three", "--cluster", f"nats://127.0.0.1:{route}"),
            *("--routes", ",".join(f"nats://127.0.0.1:{other}" for other in routes if other != route)),
            streams=False,
        )
        for route in routes
    ]
    # What is published while nobody listens is lost in NATS. So the bridge that listens is at the server that stays.
    *others, stays = (f"nats://127.0.0.1:{server.port}" for server in servers)

    for server in servers:
        server.start(wait=False)
    for server in servers:
        server.wait()
    async with (
        AioBridge(buses[0], ",".join(others), export=[b"a/"]) as one,
        AioBridge(buses[1], stays, import_=[b"a/"]) as two,
        Client(buses[0]) as here,
        Client(buses[1]) as there,
    ):
        await ready(one, two)
        await there.subscribe(b"a/")
        published = 0

        async def carry(most: float) -> None:
            """Publish until so many have come."""
            nonlocal published
            while two.statistics().imported < most:
                await here.publish_many([(b"a/%d" % key, b"%d" % published) for key in range(10)])
                published += 10
                await asyncio.sleep(0.001)

        await know_each_other(others, stays)
        await carry(100)
        port = one._broker._client.connected_url.port  # type: ignore[attr-defined]
        next(server for server in servers if server.port == port).kill()
        await until(lambda: one.statistics().connected)
        await carry(two.statistics().imported + 100)

        await here.publish(b"a/last")  # comes after all others
        got = await receive(there, 1)
        while got[-1].key != b"a/last":
            got += await receive(there, 1)
        del got[-1]
        assert len({(message.key, message.payload) for message in got}) == len(got)
        lost = [*one.statistics().lost.values(), *two.statistics().lost.values()]
        assert len(got) + sum(lost) == published


async def test_a_bridge_goes_on_where_it_stopped_in_a_stream(buses: Buses, folder: str) -> None:
    server = nats_server(folder).start()
    options = BrokerOptions(stream="S", name="b.c d")
    url = f"nats://127.0.0.1:{server.port}"

    async with AioBridge(buses[0], url, export=[b"a"], options=options) as one, Client(buses[0]) as here:
        await one.ready()
        for part in range(3):
            async with (
                Client(buses[1]) as there,
                AioBridge(buses[1], url, import_=[b"a"], options=options) as two,
            ):
                await there.subscribe(b"a")
                await two.ready()
                await here.publish(b"a", b"%d here" % part)
                wanted = [b"%d here" % part] if not part else [b"%d away" % (part - 1), b"%d here" % part]
                assert [message.payload for message in await receive(there, len(wanted))] == wanted
            await here.publish(b"a", b"%d away" % part)
            await until(lambda: not one.statistics().kept)


@pytest.mark.parametrize("stream", [None, "S"])
async def test_what_others_publish_in_another_form_does_not_end_the_reading(
    buses: Buses, folder: str, caplog: pytest.LogCaptureFixture, stream: str | None
) -> None:
    server = nats_server(folder).start()
    headers = [b"", b"X", b"NATS/1.0", b"NATS/1.0 \xff\xff\xff\r\n\r\n", b"NATS/1.0\r\nSbus-Origin: \xff\r\n\r\n"]

    url, options = f"nats://127.0.0.1:{server.port}", BrokerOptions(stream=stream)
    async with joined(buses, url, options=options) as (_, _, _, there):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b'CONNECT {"verbose": false, "headers": true}\r\n')
        for header in headers:
            writer.write(b"HPUB sbus.a %d %d\r\n%b\r\n" % (len(header), len(header), header))
        writer.write(b"PUB sbus.\xff 0\r\n\r\nPUB sbus.a 4\r\nlast\r\n")
        while (await there.receive()).payload != b"last":
            pass
        writer.close()
    assert not caplog.records


@pytest.mark.parametrize("stream", [None, "S"])
async def test_a_server_that_stood_still_gets_what_it_did_not_confirm(
    buses: Buses, folder: str, monkeypatch: pytest.MonkeyPatch, stream: str | None
) -> None:
    monkeypatch.setattr(nats, "_CONFIRM_SECONDS", 0.1)
    server = nats_server(folder).start()
    url, options = f"nats://127.0.0.1:{server.port}", BrokerOptions(stream=stream)

    async with joined(buses, url, options=options) as (one, _, here, there):
        server.pause()
        await here.publish(b"a", b"waits")
        await until(lambda: not one.statistics().connected)
        assert one.statistics().exported == 0
        server.resume()
        assert (await there.receive()).payload == b"waits"
        monkeypatch.setattr(nats, "_CONFIRM_SECONDS", PATIENCE)
        await until(lambda: one.statistics().exported == 1)
        await here.publish(b"a", b"later")
        assert (await there.receive()).payload == b"later"
        await until(lambda: one.statistics().exported == 2)


@pytest.mark.parametrize("stream", [None, "S"])
async def test_what_is_longer_than_the_server_takes_does_not_hold_up_the_rest(
    buses: Buses, folder: str, stream: str | None
) -> None:
    """How much that is, a bridge hears when it is connected."""
    Path(folder, "configuration").write_text("max_payload: 65536")
    server = nats_server(folder, "-c", f"{folder}/configuration")
    url, options = f"nats://127.0.0.1:{server.port}", BrokerOptions(stream=stream)

    async with AioBridge(buses[0], url, export=[b"a"], options=options) as one, Client(buses[0]) as here:
        await here.publish_many([(b"a", bytes(100_000)), (b"a", b"short")])
        await until(lambda: one.statistics().kept == 2)
        server.start()
        await until(lambda: not one.statistics().kept)
        assert (one.statistics().exported, one.statistics().refused) == (1, {"payload too long": 1})
        assert one.statistics().lost == {"too_long": 1}


async def test_long_messages_of_a_stream_come_in_order_to_a_bus_that_is_slow(
    buses: Buses, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once they would find no room."""
    monkeypatch.setattr(nats, "_ASK_BYTES", 100_000)
    monkeypatch.setattr(broker, "_UNREAD_BYTES", 500_000)
    Path(folder, "configuration").write_text("max_payload: 65536")
    server = nats_server(folder, "-c", f"{folder}/configuration").start()
    url, options = f"nats://127.0.0.1:{server.port}", BrokerOptions(stream="S")

    importing = partial(AioBridge, buses[1], url, import_=[b"a"], options=options)
    sent = [b"%d " % number + bytes(30_000) for number in range(100)]
    async with (
        AioBridge(buses[0], url, export=[b"a"], options=options) as one,
        Client(buses[0]) as here,
        Client(buses[1]) as there,
    ):
        await there.subscribe(b"a")
        async with importing() as two:
            await ready(one, two)
        await here.publish_many([(b"a", payload) for payload in sent])
        await until(lambda: one.statistics().exported == len(sent))
        async with importing() as two:
            async with two._taking:  # the bus does
                unread: Any = two._broker._unread  # type: ignore[attr-defined]
                await until(lambda: unread.full() or any(not one.reply for one in unread._queue))
            assert [message.payload for message in await receive(there, len(sent))] == sent


async def test_a_key_that_no_subject_can_hold_is_lost_and_told(
    buses: Buses, folder: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "_LOSSES_SECONDS", 0.0)
    server = nats_server(folder).start()

    async with joined(buses, f"nats://127.0.0.1:{server.port}", [b"a/"]) as (_, _, here, there):
        await here.subscribe(LOST, CONTROL)
        await here.publish_many([(b"a/" + b"k" * 3_100, b"too long"), (b"a/" + b"k" * 2_900, b"fits")])
        assert (await there.receive()).payload == b"fits"
        told = Message(b"", b"")
        while told.key != LOST:
            told = await here.receive()
        assert re.fullmatch(rb"too_long 1 [0-9.]+", told.payload)
        await here.publish(CONTROL, ASK)
        while (said := decode_heartbeat(told.payload)) is None:
            told = await here.receive()
        assert said.text.endswith("1 lost")
    assert "lost 1 (too_long)" in caplog.text


class SlowStream:
    """Stands between a bridge and a server. What a stream sends may be late; what the server says itself never is."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._back: asyncio.StreamWriter | None = None  # to the bridge
        self._is_late = False
        self.late: list[bytes] = []  # what the stream sent since
        self.questions = 0  # that the bridge asked since

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._back = writer
        answers, there = await asyncio.open_connection("127.0.0.1", self._server.port)
        back = asyncio.create_task(self._carry_back(answers, writer))
        while line := await reader.readline():
            self.questions += self._is_late and b".MSG.NEXT." in line
            there.write(line)
        there.close()
        await back

    async def _carry_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line.startswith((b"MSG ", b"HMSG ")):
                line += await reader.readexactly(int(line.split()[-1]) + 2)
                if self._is_late:
                    self.late.append(line)
                    continue
            writer.write(line)
        writer.close()

    def begin(self) -> None:
        self._is_late = True

    def end(self) -> None:
        assert self._back is not None
        self._back.write(b"".join(self.late))
        self._is_late = False


async def test_a_bridge_that_ends_takes_first_what_a_slow_stream_still_sends(
    buses: Buses, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the server answers a ping does not say that the stream has answered what it was asked before."""
    monkeypatch.setattr(nats, "_ASK_SECONDS", 0.05)
    server = nats_server(folder).start()
    options, stream = BrokerOptions(stream="S"), SlowStream(server)

    async with (
        AioBridge(buses[0], f"nats://127.0.0.1:{server.port}", export=[b"a"], options=options) as one,
        await asyncio.start_server(stream.serve, "127.0.0.1") as between,
        Client(buses[0]) as here,
        Client(buses[1]) as there,
    ):
        await there.subscribe(b"a")
        url = f"nats://127.0.0.1:{between.sockets[0].getsockname()[1]}"
        async with AioBridge(buses[1], url, import_=[b"a"], options=options) as two:
            await ready(one, two)
            stream.begin()
            await here.publish_many([(b"a", b"%d" % number) for number in range(10)])
            await until(lambda: sum(b" $JS.ACK." in one for one in stream.late) == 10)
            asked = stream.questions
            ending = asyncio.create_task(two.close(PATIENCE))
            await until(lambda: stream.questions > asked or ending.done())
            stream.end()
            await ending
            assert two.statistics().imported == 10
        assert [message.payload for message in await receive(there, 10)] == [b"%d" % number for number in range(10)]


async def test_a_server_without_streams_is_told_and_waited_for(
    buses: Buses, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = nats_server(folder, streams=False).start()

    url, options = f"nats://127.0.0.1:{server.port}", BrokerOptions(stream="S")
    async with AioBridge(buses[0], url, export=[b"a"], options=options) as one, Client(buses[0]) as here:
        await until(lambda: "ServiceUnavailable" in caplog.text)
        await here.publish(b"a")
        await until(lambda: one.statistics().kept)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--user", "me", "--pass", "word"], {"user": "me", "password": "word"}),
        (["--auth", "secret"], {"token": "secret"}),
    ],
)
async def test_a_server_that_asks_who_we_are_is_told(
    buses: Buses, folder: str, caplog: pytest.LogCaptureFixture, arguments: list[str], options: dict[str, Any]
) -> None:
    server = nats_server(folder, *arguments).start()

    url = f"nats://127.0.0.1:{server.port}"
    async with AioBridge(buses[0], url, export=[b"a"], options=BrokerOptions(**options)) as one:
        await one.ready()
    wrong = {name: "wrong-" + value for name, value in options.items()}
    async with AioBridge(buses[0], url, export=[b"a"], options=BrokerOptions(**wrong)) as one:
        await until(lambda: "Authorization" in caplog.text)
        assert not one.statistics().connected
    assert "wrong-" not in caplog.text


def with_nkeys() -> tuple[str, str, str]:
    public, seed = make_pair()
    return f"authorization {{ users = [{{ nkey: {public} }}] }}", f"{seed}\n", f"{make_pair()[1]}\n"


def with_credentials() -> tuple[str, str, str]:
    operator = Operator()
    return operator.configuration, operator.credentials(), operator.credentials(make_pair()[1])


@pytest.mark.parametrize(("option", "make"), [("nkey", with_nkeys), ("credentials", with_credentials)])
async def test_a_user_is_known_by_a_seed(
    buses: Buses, folder: str, caplog: pytest.LogCaptureFixture, option: str, make: Callable[[], tuple[str, str, str]]
) -> None:
    configuration, *texts = make()
    files = [Path(folder, name) for name in ("configuration", "right", "wrong")]
    for file, text in zip(files, (configuration, *texts), strict=True):
        file.write_text(text)
    server = nats_server(folder, "-c", str(files[0]), streams=False).start()
    url = f"nats://127.0.0.1:{server.port}"
    given: list[dict[str, Any]] = [{option: str(file)} for file in files[1:]]
    right, wrong = (BrokerOptions(**one) for one in given)

    async with (
        joined(buses, url, options=right) as (_, _, here, there),
        AioBridge(buses[0], url, export=[b"b"], options=wrong) as stranger,
    ):
        await here.publish(b"a", b"signed for")
        assert (await there.receive()).payload == b"signed for"
        await until(lambda: "Authorization Violation" in caplog.text)
        assert not stranger.statistics().connected
    assert {(one.levelname, one.exc_info) for one in caplog.records if one.name == "sbuslib"} == {("WARNING", None)}
    assert not [line for text in texts for line in text.split() if len(line) > 20 and line in caplog.text]


async def test_a_user_that_is_taken_away_comes_back(
    buses: Buses, folder: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the connection as it does when credentials expire."""
    (public, seed), (other, _) = make_pair(), make_pair()
    configuration, file = Path(folder, "configuration"), Path(folder, "seed")
    file.write_text(seed)
    server = nats_server(folder, "-c", str(configuration), streams=False)

    def allow(user: str) -> None:
        configuration.write_text(f"authorization {{ users = [{{ nkey: {user} }}] }}")

    allow(public)
    server.start()
    options = BrokerOptions(nkey=str(file))
    async with AioBridge(buses[0], f"nats://127.0.0.1:{server.port}", export=[b"a"], options=options) as one:
        await ready(one)
        allow(other)
        server.reload()
        await until(lambda: not one.statistics().connected)
        await until(lambda: "authorization violation" in caplog.text.lower())
        file.write_text("half a seed")  # as while another is written
        await until(lambda: "this file has no seed" in caplog.text)
        file.write_text(seed)
        allow(public)
        server.reload()
        await until(lambda: one.statistics().connected)
        monkeypatch.setitem(sys.modules, "nkeys", None)
        with pytest.raises(UsageError, match=r"nkeys.*pip install 'sbuslib\[nats\]'"):
            await AioBridge(buses[0], "nats://127.0.0.1:1", export=[b"a"], options=options).__aenter__()


@pytest.mark.parametrize(
    "text", ["", "junk", "-----BEGIN NATS USER JWT-----\nabc\n", "S" * 58], ids=["empty", "junk", "half", "seed"]
)
async def test_a_file_without_a_seed_is_refused(buses: Buses, folder: str, text: str) -> None:
    file = Path(folder, "file")
    file.write_text(text)

    for options in (BrokerOptions(nkey=str(file)), BrokerOptions(credentials=str(file))):
        with pytest.raises(UsageError, match="this file has no") as caught:
            await AioBridge(buses[0], "nats://127.0.0.1:1", export=[b"a"], options=options).__aenter__()
        assert len(text) < 20 or text not in str(caught.value)


async def test_a_server_without_tls_is_told_nothing_where_tls_is_wanted(
    buses: Buses, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be somebody in between. What it says cannot steer the terminal on which the log is read."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "x", "max_payload": 1000, "nonce": "abc"}\r\n')
        if len(heard) > 0:
            writer.write(b"-ERR 'no \x1b[2J'\r\n")
        heard.append(await reader.read(1_000))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        options = BrokerOptions(user="me", password="word")
        async with AioBridge(buses[0], f"tls://127.0.0.1:{port}", export=[b"a"], options=options):
            await until(lambda: heard)
        assert heard == [b""]
        assert "does not ask for TLS" in caplog.text
        async with AioBridge(buses[0], f"nats://127.0.0.1:{port}", export=[b"a"]):
            await until(lambda: "[2J" in caplog.text)
    assert "\x1b" not in caplog.text
