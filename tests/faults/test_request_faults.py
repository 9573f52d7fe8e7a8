"""Request and reply under faults: parties that are killed, hostile bytes, other users, relays, other hubs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from struct import pack

import gevent
import pytest
from clients.makers import MakeClient
from gevent.event import Event
from support import PATIENCE, Connect, HubThread, PlainDaemon, eventually, own_key
from worlds import STRANGER, World

from sbuslib import Client, Hub
from sbuslib.clients.recipes.request import MOST_ANSWERS, Reply, Request
from sbuslib.errors import DisconnectedError, NoServerError, ReplyError, StateError

SERVER = """
import sys, time
from sbuslib.blocking import Client
def answer(question):
    print("took", flush=True)
    time.sleep(60)
with Client(sys.argv[1]) as client, client.serve(b"svc", answer):
    print("ready", flush=True)
    time.sleep(60)
"""


def upper(question: Request) -> bytes:
    return question.payload.upper()


@contextmanager
def server_process(address: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server that takes questions and never answers."""
    with subprocess.Popen([sys.executable, "-c", SERVER, address], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_server_is_killed_between_taking_and_answering(server: HubThread, address: str) -> None:
    with server_process(address) as process, Client(address) as client:
        asking = gevent.spawn(client.request, b"svc", b"x", timeout=PATIENCE)
        assert gevent.get_hub().threadpool.apply(process.stdout.readline) == b"took\n"  # type: ignore[union-attr]
        process.kill()
        with pytest.raises(NoServerError, match="nobody serves svc"):
            asking.get()
        process.wait()
        with client.serve(b"svc", upper):
            assert client.request(b"svc", b"x") == b"X"


def test_the_hub_goes_away_while_questions_are_in_flight(address: str, client: MakeClient) -> None:
    with Hub(address):
        one, other = client(), client(reconnect=False)
        never = gevent.event.Event()
        begun = gevent.event.Event()

        def answer(question: Request) -> bytes:
            begun.set()
            never.wait()
            return b""

        service = other.serve(b"svc", answer)
        asking = [gevent.spawn(one.request, b"svc", timeout=PATIENCE) for _ in range(5)]
        assert begun.wait(PATIENCE)
    for each in asking:
        with pytest.raises(DisconnectedError):
            each.get(timeout=PATIENCE)
    never.set()
    service.stop()
    with pytest.raises(DisconnectedError):
        service.wait()
    (questions,) = one._core._requesters.values()
    assert not questions._pending


def test_clients_that_reconnect_ask_and_serve_on(address: str, client: MakeClient) -> None:
    with Hub(address):
        one, other = client(reconnect=True), client(reconnect=True)
        service = other.serve(b"svc", upper)
        assert one.request(b"svc", b"x") == b"X"
    with Hub(address):
        eventually(lambda: one.request_many(b"svc", b"y", wait=0.05) == [Reply(b"Y", own_key())])
        assert one.request(b"svc", b"z") == b"Z"
        service.stop()


def test_over_two_relays(world: World) -> None:
    world.chain("root", "middle", "leaf")
    above, below, beside = world.client("root"), world.client("leaf"), world.client("middle")
    with above.serve(b"up", upper), below.serve(b"down", upper):
        for each in (above, below, beside):
            assert each.sync("tree") == "tree"
        for asker, key in ((below, b"up"), (above, b"down"), (beside, b"up"), (beside, b"down"), (below, b"down")):
            assert asker.request(key, b"x", timeout=PATIENCE) == b"X"
            (answer,) = asker.request_many(key, b"x", wait=PATIENCE, most=1)
            assert answer.sender is not None


# -- others on the bus --------------------------------------------------------------------------------------


def question(packet: bytes) -> tuple[bytes, bytes]:
    """The number of a question, and the key for its answer."""
    _, _, payload = packet.partition(b"\0")
    assert payload[:4] == b"REQ1"
    length = int.from_bytes(payload[16:18], "little")
    return payload[4:12], payload[18 : 18 + length]


def test_byte_for_byte_as_the_page_says(hub: Hub, client: MakeClient, connect: Connect) -> None:
    """A program in any language can take part."""
    one, peer = client(), connect()
    peer.subscribe(b"svc")
    asking = gevent.spawn(one.request, b"svc", b"ping", timeout=5)
    packet = peer.receive()
    number, reply_to = question(packet)
    left = int.from_bytes(packet[len(b"MSG svc\0REQ1") + 8 :][:4], "little")
    assert packet == b"MSG svc\0REQ1" + number + pack("<IH", left, len(reply_to)) + reply_to + b"ping"
    assert 0 < left <= 5_000
    assert reply_to.startswith(own_key() + b"/reply/")
    peer.publish(reply_to, b"REP1\2" + number + b"pong")
    assert asking.get() == b"pong"

    giving_up = gevent.spawn(one.request, b"svc", b"ping", timeout=5)
    number, _ = question(peer.receive())
    giving_up.kill()
    cancellation = peer.receive()
    assert cancellation.startswith(b"MSG svc\0CAN1")
    assert sha256(cancellation[len(b"MSG svc\0CAN1") :]).digest()[:8] == number

    with one.serve(b"echo", upper):
        mine = own_key() + b"/reply/" + b"0123456789abcdef" * 2
        peer.subscribe(mine)
        peer.publish(b"echo", b"REQ1" + pack("<QIH", 7, 0, len(mine)) + mine + b"x")
        assert peer.receive() == b"MSG " + mine + b"\0REP1\2" + pack("<Q", 7) + b"X"


@pytest.mark.parametrize(
    "reply_to",
    [
        b"plain/reply/" + b"a" * 32,
        b"!/cred/1/2/3/reply/" + b"A" * 32,
        b"!/cred/1/2/3/other",
        b"!/x/reply/" + b"a" * 32,
        b"!/cred/x/2/3/reply/" + b"a" * 32,
        b"!/cred/1/2/3/a\0/reply/" + b"a" * 32,
        b"!/cred/1/2/3/" + b"x" * 5_000 + b"/reply/" + b"a" * 32,
        b"",
    ],
)
def test_a_server_answers_under_no_other_keys(reply_to: bytes, hub: Hub, client: MakeClient, connect: Connect) -> None:
    one, peer = client(), connect()
    tap = hub.tap(secrets=True)
    with one.serve(b"svc", upper):
        peer.publish(b"svc", b"REQ1" + pack("<QIH", 7, 0, len(reply_to)) + reply_to)
        peer.publish(b"svc", b"REQ1")
        peer.publish(b"svc", b"REQ1" + pack("<QIH", 7, 0, 60_000))
        peer.publish(b"svc", b"")
        peer.barrier()
        assert one.request(b"svc", b"x") == b"X"
    hub.publish(b"end")
    with tap:
        while (message := tap.receive(timeout=PATIENCE)).key != b"end":
            assert message.key == b"svc" or message.key.startswith(own_key() + b"/reply/")


def test_nobody_else_can_read_an_answer(world: World) -> None:
    world.hub("bus", users=[STRANGER])
    asker, server = world.client("bus"), world.client("bus")
    spies = [world.peer_of("bus", STRANGER), world.peer("bus")]  # of another user, and of the same
    for spy in spies:
        spy.subscribe(b"", b"*/", b"*/cred/")
    with server.serve(b"svc", lambda question: b"secret"):
        assert asker.request(b"svc") == b"secret"
    for spy in spies:
        packets = spy.pending()
        assert [packet for packet in packets if b"REQ1" in packet]
        assert not [packet for packet in packets if b"secret" in packet]
        (_, reply_to) = question(packets[0])
        spy.send(b"SUB " + reply_to)
        assert spy.is_disconnected()


def test_who_sees_a_question_cannot_cancel_it(hub: Hub, client: MakeClient, connect: Connect) -> None:
    one, other, spy = client(), client(), connect()
    began, go = Event(), Event()

    def answer(question: Request) -> bytes:
        began.set()
        go.wait()
        return question.payload

    spy.subscribe(b"svc")
    with other.serve(b"svc", answer) as service:
        asking = [gevent.spawn(one.request, b"svc", payload, timeout=PATIENCE) for payload in (b"1", b"2")]
        for _ in asking:
            packet = spy.receive()
            number, _ = question(packet)
            for secret in (
                number,
                number * 2,
                number + bytes(8),
                bytes(8) + number,
                bytes(16),
                sha256(number).digest(),
            ):
                spy.publish(b"svc", b"CAN1" + secret)
            spy.send(packet)  # and asking the same does not help
        began.wait(PATIENCE)
        spy.barrier()
        other.sync()
        go.set()
        assert [each.get(timeout=PATIENCE) for each in asking] == [b"1", b"2"]
    assert not service._core._works.__self__._waiting


def test_a_question_is_given_up_over_relays(world: World) -> None:
    world.chain("top", "low")
    asker, server = world.client("low"), world.client("top")
    began, go, seen = Event(), Event(), list[bytes]()

    def answer(question: Request) -> bytes:
        seen.append(question.payload)
        began.set()
        go.wait()
        return b""

    with server.serve(b"svc", answer):
        asker.sync("tree")
        asking = [gevent.spawn(asker.request, b"svc", payload, timeout=PATIENCE) for payload in (b"1", b"2", b"3")]
        began.wait(PATIENCE)
        asking[1].kill()
        asker.sync("tree")
        server.sync()
        go.set()
        asking[0].get(timeout=PATIENCE)
        asking[2].get(timeout=PATIENCE)
    assert seen == [b"1", b"3"]


def test_hostile_answers_are_bounded(hub: Hub, client: MakeClient, connect: Connect) -> None:
    one, peer = client(), connect()
    peer.subscribe(b"svc")
    asking = gevent.spawn(one.request_many, b"svc", wait=PATIENCE)
    number, reply_to = question(peer.receive())
    for payload in (b"", b"REP1", b"REP2\2" + number, b"REP1\1" + number, b"REP1\2" + pack("<Q", 999), b"REP1\1" * 9):
        peer.publish(reply_to, payload)
    peer.publish(reply_to, b"REP1\3" + number + b"\xff" * 100_000)
    for _ in range(MOST_ANSWERS + 10):
        peer.publish(reply_to, b"REP1\2" + number)
    answers = asking.get()
    assert len(answers) == MOST_ANSWERS
    assert answers[0].error == "\ufffd" * 4_096
    one.sync()
    (questions,) = one._core._requesters.values()
    assert not questions._pending
    assert not questions.messages


# -- daemons of other kinds ---------------------------------------------------------------------------------


def test_a_daemon_without_secret_keys(address: str, client: MakeClient) -> None:
    with PlainDaemon(address):
        one, other = client(), client()
        with other.serve(b"svc", upper):
            with pytest.raises(StateError, match="secret=False"):
                one.request(b"svc", b"x")
            assert one.request(b"svc", b"x", secret=False) == b"X"
            assert [answer.payload for answer in one.request_many(b"svc", b"y", most=1, secret=False)] == [b"Y"]
            with other.serve(b"bad", lambda question: b"%d" % (1 // 0)), pytest.raises(ReplyError):
                one.request(b"bad", secret=False)


def test_a_hub_knows_what_its_tree_wants(world: World) -> None:
    world.chain("root", "middle", "leaf")
    asking, serving = world.client("leaf"), world.client("root")
    eventually(lambda: world.hubs["leaf"].tree.has_settled)
    assert asking.hub.is_wanted(b"svc") is False
    with pytest.raises(NoServerError, match="no client of this bus receives it"):
        asking.request(b"svc")
    with serving.serve(b"svc", upper):
        serving.sync("tree")
        assert asking.hub.is_wanted(b"svc") is True
        assert asking.request(b"svc", b"x") == b"X"
    serving.sync("tree")
    assert asking.hub.is_wanted(b"svc") is False
