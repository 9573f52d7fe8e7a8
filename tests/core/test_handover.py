"""What passes between a hub and the process that takes it over: records of other versions, refusals, hostile ends."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent.socket
import msgspec
import pytest
from accounting import acting_as
from programs import Programs, wait_until
from support import PATIENCE, Peer

from sbuslib import Hub, errors
from sbuslib.blocking import Client
from sbuslib.core import acceptor, handover
from sbuslib.core.handover import HandoverError, hand_over
from sbuslib.core.records import (
    ClientRecord,
    Counts,
    HubRecord,
    OutboxRecord,
    Totals,
    decode_record,
    encode_record,
    known_fields,
    lost_fields,
)
from sbuslib.secrets import Credentials
from sbuslib.testing import HubThread

STRANGER = 12_345
STORED = Path(__file__).with_name("record_1.msgpack")
"""The record of :data:`RECORD`, as the first version wrote it. It has to be read as long as the version is the same."""

RECORD = HubRecord(
    version=1,
    hub_id=b"0123456789abcdef",
    separator=b"/",
    owns_file=True,
    clients=[
        ClientRecord(
            number=3,
            patterns={b"room/": 2, b"hall/*/door": 1},
            notices=True,
            routed=5,
            delivered=2,
            outbox=OutboxRecord(
                soft="queue",
                hard="block",
                order="queue",
                peak=3,
                packets=[b"MSG room/1\0one", b"CMSG hub/sync\0t\0local", b"MSG room/1\0two"],
                runs=[(0, 1), (None, 1), (0, 1)],
                lost={"overflow": 1},
                unreported={"overflow": (1, 1_700_000_000.0)},
            ),
            holds={4: 1e12},
        ),
        ClientRecord(number=4, echo=False, senders=True, published=5, backlog=[b"MSG room/2\0three"]),
    ],
    total=4,
    peak=2,
    published=1,
    ignored=1,
    departed=Totals(2, 2, 2, {"outage": 1}),
    departed_by_user={0: Totals(2, 2, 2, {"outage": 1})},
    violations={"packet too long": 1},
    handed_on={"NOTIFY_SOCKET": "/run/notify"},
)


def newer(stored: bytes) -> bytes:
    """A record as a later version may write it: with more fields, wherever there may be some."""
    record = msgspec.msgpack.decode(stored)
    for part in (record, *record["clients"], record["clients"][0]["outbox"]):
        part["colour"] = {"of": [1, 2, 3]}
    return msgspec.msgpack.encode(record)


def test_a_hub_goes_on_from_all_that_the_one_before_has_counted() -> None:
    counts = Counts()
    violations = counts.violations  # which the parts that count them hold
    counts.restore(RECORD)
    assert all(getattr(counts, name) == getattr(RECORD, name) for name in Counts.__struct_fields__)
    assert counts.violations is violations


class OldHub:
    """A listening socket that hands over what it is told to, to the first who asks; in a thread of its own."""

    def __init__(self, address: str, give: Callable[[socket.SocketType, socket.SocketType], object]) -> None:
        self._socket = socket.SocketType(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(address)
        self._socket.listen()
        self._give = give
        self._thread = threading.Thread(target=self._run)
        self.error: Exception | None = None

    def __enter__(self) -> OldHub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        fd, _ = self._socket._accept()  # type: ignore[attr-defined]
        sock = socket.SocketType(fileno=fd)
        sock.settimeout(PATIENCE)
        try:
            sock.recv(100)
            self._give(sock, self._socket)
        except (OSError, HandoverError) as error:
            self.error = error
        finally:
            sock.close()


def connections(count: int) -> tuple[list[socket.SocketType], list[Peer]]:
    """The hub's ends and the clients' ends of some connections."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
    return [pair[0] for pair in pairs], [Peer(gevent.socket.socket(fileno=pair[1].detach())) for pair in pairs]


# -- records of other versions -----------------------------------------------------------------------------


def test_the_stored_record_means_what_it_meant() -> None:
    assert decode_record(STORED.read_bytes()) == RECORD


@pytest.mark.parametrize("as_written", [bytes, newer])
def test_a_hub_is_replaced_from_a_record_of_another_version(
    address: str, monkeypatch: pytest.MonkeyPatch, as_written: Callable[[bytes], bytes]
) -> None:
    """An older hub is taken over by this one, and a newer one, which knows more, by this one as well."""
    encoded = as_written(STORED.read_bytes())
    monkeypatch.setattr(handover, "encode_record", lambda record: encoded)
    ours, theirs = connections(2)
    with OldHub(address, lambda sock, listener: hand_over(sock, RECORD, listener, ours)) as old:
        hub = Hub(address, take_over=True)
        hub.start()
    assert old.error is None
    for sock in ours:
        sock.close()
    try:
        receiver, publisher = theirs
        assert [receiver.receive() for _ in range(5)] == [
            b"MSG room/1\0one",
            b"CMSG hub/sync\0t\0local",
            b"MSG room/1\0two",
            b"CMSG notice/lost\0overflow 1 1700000000.000000",
            b"MSG room/2\0three",  # its publisher was held until the queue was empty
        ]
        publisher.publish(b"hall/1/door", b"four")
        assert receiver.receive() == b"MSG hall/1/door\0four"
        receiver.send(b"UNSUB room/")
        receiver.barrier()
        publisher.publish(b"room/1", b"five")
        assert receiver.receive() == b"MSG room/1\0five"
        told = hub.statistics()
        assert (hub.hub_id, told.clients, told.patterns, told.lost) == (
            RECORD.hub_id,
            2,
            2,
            {"overflow": 1, "outage": 1},
        )
        assert told.published == 1 + 2 + 5 + 3
        assert hub.replacement.handed_on == RECORD.handed_on
    finally:
        for peer in theirs:
            peer.close()
        hub.stop(0)


# -- who may have it ---------------------------------------------------------------------------------------


def answer(peer: Peer) -> bytes:
    peer.send(b"CMSG hub/take-over\x001")
    return peer.receive()


def test_a_hub_is_not_given_away_unasked(hub: Hub, connect: Callable[..., Peer]) -> None:
    assert answer(connect()) == b"CMSG hub/take-over\0no its program did not say that it may be taken over"


def test_a_hub_is_not_given_to_others(folder: str, make_hub: Callable[..., Hub], address: str) -> None:
    os.chmod(folder, 0o711)
    make_hub(mode=0o777, replaceable=True)
    with acting_as(STRANGER):
        stranger = Peer(address)
    with contextlib.closing(stranger):
        assert answer(stranger) == b"CMSG hub/take-over\0no only its own user and root may take it over"


def test_a_hub_is_not_given_to_a_process_that_nobody_knows(
    make_hub: Callable[..., Hub], connect: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Credentials(gid=os.getgid(), uid=os.getuid(), pid=0)
    monkeypatch.setattr(acceptor, "peer_credentials", lambda sock: own)
    make_hub(replaceable=True)
    assert b"namespace of process ids" in answer(connect())


def test_a_relay_says_that_it_cannot_be_taken_over(programs: Programs) -> None:
    programs.start("bus")
    programs.start("below", "bus")
    programs.wait_until_joined("below")
    with pytest.raises(errors.StateError, match="joined to a parent"):
        Hub(programs.address("below"), take_over=True).start()


def test_a_hub_with_another_separator_goes_on(programs: Programs) -> None:
    programs.start("bus")
    with pytest.raises(errors.StateError, match=r"cuts keys at b'/', and this one would at b'\.'"):
        Hub(programs.address("bus"), take_over=True, separator=".").start()
    with Client(programs.address("bus")) as client:
        assert client.sync() == "local"


def test_nobody_is_there(address: str) -> None:
    with pytest.raises(errors.NoHubError, match="no hub that could be taken over"):
        Hub(address, take_over=True).start()


def test_a_hub_of_this_process_is_not_taken_over(make_hub: Callable[..., Hub], address: str) -> None:
    make_hub(replaceable=True)
    with pytest.raises(errors.StateError, match="this process serves it already"):
        Hub(address, take_over=True).start()


def test_only_an_address_is_taken_over(hub: Hub) -> None:
    with pytest.raises(errors.UsageError, match="needs the address of the hub"):
        Hub("/dev/fd/3", take_over=True)


@pytest.mark.parametrize(
    ("packets", "lost"),
    [
        ([b"CMSG presence/on\0t\0k\0"], "last_presence, presences"),
        ([b"CMSG presence/watch\0k"], "presence_watches"),
        ([b"CMSG interest/watch\0k"], "interest_watches"),
        ([b"CMSG monitor/on", b"SUB k"], "monitor"),
    ],
)
def test_a_hub_is_not_given_to_a_process_that_knows_less(
    make_hub: Callable[..., Hub], connect: Callable[..., Peer], packets: list[bytes], lost: str
) -> None:
    """One that was made before its clients could hold that, and one that says so of a field of today."""
    make_hub(replaceable=True)
    client = connect()
    client.send(*packets)
    client.barrier()
    rest = b",".join(field for field in known_fields().split(b",") if field.split(b".")[1].decode() not in lost)
    for asked in (b"1", b"1 " + rest):
        with contextlib.closing(connect()) as asker:
            asker.send(b"CMSG hub/take-over\0" + asked)
            refused = b"the process that asks, which is older, does not know of: " + lost.encode()
            assert asker.receive() == b"CMSG hub/take-over\0no " + refused
    client.barrier()


def test_fields_that_say_nothing_are_not_lost() -> None:
    record = msgspec.structs.replace(RECORD, last_presence=0)
    assert lost_fields(record, b"1") == lost_fields(record, b"1 " + known_fields()) == []
    assert lost_fields(record, b"1 HubRecord.version")[:2] == ["total", "peak"]
    assert len(known_fields()) < 4_096


# -- the rules of the new hub, and what does not move ------------------------------------------------------


def test_the_new_hub_has_its_own_rules(programs: Programs, folder: str) -> None:
    os.chmod(folder, 0o711)
    programs.start("bus", None, "-o")
    address = programs.address("bus")
    with contextlib.ExitStack() as stack:
        with acting_as(STRANGER):
            stranger = stack.enter_context(contextlib.closing(Peer(address)))
        own = stack.enter_context(contextlib.closing(Peer(address)))
        for peer in (stranger, own):
            peer.send(b"CMSG notices/on\0")
            peer.subscribe(b"a", b"b")
        hub = Hub(address, take_over=True, users=[0], authorize=lambda who, verb, key: key != b"b")
        hub.start()
        stack.callback(hub.stop, 0)
        assert stranger.receive() == b"CMSG notice/kicked\0user not allowed"
        assert stranger.is_disconnected()
        assert own.receive() == b"CMSG notice/withdrawn\0b"


def test_what_the_program_subscribed_to_ends(programs: Programs) -> None:
    with HubThread(programs.address("bus"), replaceable=True) as server:
        inbox = server.call(server.hub.subscribe, b"k")
        with Client(server.address) as client:
            client.publish(b"k", b"1")
            client.sync()
            programs.start("bus", None, "--take-over")
            wait_until(lambda: server.hub.closed, "the hub is stopped")
            assert server.hub.replaced_by == programs.pids["bus"]
            assert client.sync() == "local"
        assert inbox.receive().payload == b"1"
        with pytest.raises(errors.DisconnectedError):
            inbox.receive()


# -- a hostile other end -----------------------------------------------------------------------------------


def give(packet: bytes, *descriptors: int) -> Callable[[socket.SocketType, socket.SocketType], object]:
    return lambda sock, listener: sock.sendmsg(
        [packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(fd.to_bytes(4, "little") for fd in descriptors))]
    )


@pytest.mark.parametrize(
    ("packet", "count", "says"),
    [
        (b"", 0, "the hub ended"),
        (b"MSG room/1\0x", 0, "unknown packet"),
        (b"CMSG hub/take-over\0no \xff", 0, "not handed over"),
        (b"CMSG hub/take-over\0here 10", 1, "unknown packet"),
        (b"CMSG hub/take-over\0here x", 2, "unknown packet"),
        (b"CMSG hub/take-over\0here 99999999999", 2, "too long"),
        (b"CMSG hub/take-over\0here 10", 2, "no sealed memory"),
        (b"CMSG hub/take-over\0more", 2, "unknown packet"),
    ],
)
def test_a_hub_that_says_what_it_should_not(address: str, packet: bytes, count: int, says: str) -> None:
    with OldHub(address, give(packet, *[0] * count)), pytest.raises(errors.StateError, match=says):
        Hub(address, take_over=True).start()


def changed(**fields: Any) -> bytes:
    return encode_record(msgspec.structs.replace(RECORD, **fields))


def with_queue(**fields: Any) -> bytes:
    """The record with something else in the queue of its first client."""
    first, second = RECORD.clients
    assert first.outbox is not None
    outbox = msgspec.structs.replace(first.outbox, **fields)
    return changed(clients=[msgspec.structs.replace(first, outbox=outbox), second])


@pytest.mark.parametrize(
    ("encoded", "family", "says"),
    [
        (b"\xc1", socket.AF_UNIX, "cannot be read"),
        (changed(version=2), socket.AF_UNIX, "record of version 2, and this one reads 1"),
        (changed(total=-1), socket.AF_UNIX, "cannot be read"),
        (changed(clients=RECORD.clients * 2), socket.AF_UNIX, "stopped handing over|ended"),
        (with_queue(runs=[(0, 1)]), socket.AF_UNIX, "contradicts itself"),
        (with_queue(batches=[7]), socket.AF_UNIX, "contradicts itself"),
        (with_queue(batches=[0]), socket.AF_UNIX, "contradicts itself"),
        (encode_record(RECORD), socket.AF_INET, "no connection"),
    ],
)
def test_a_record_that_cannot_be(
    address: str, monkeypatch: pytest.MonkeyPatch, encoded: bytes, family: int, says: str
) -> None:
    monkeypatch.setattr(handover, "encode_record", lambda record: encoded)
    monkeypatch.setattr(handover, "LEAST_WAIT", 0.1)
    kind = socket.SOCK_SEQPACKET if family == socket.AF_UNIX else socket.SOCK_STREAM
    with contextlib.ExitStack() as stack:
        ours = [stack.enter_context(socket.socket(family, kind)) for _ in RECORD.clients]
        with (
            OldHub(address, lambda sock, listener: hand_over(sock, RECORD, listener, ours)) as old,
            pytest.raises(errors.StateError, match=says),
        ):
            Hub(address, take_over=True).start()
        assert isinstance(old.error, HandoverError)


def test_a_hub_that_hears_no_more_and_says_nothing_is_not_waited_for_without_end(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "ANSWER_WAIT", 0.2)
    monkeypatch.setattr(handover, "_await_ready", lambda sock: deaf(sock))
    given_up = threading.Event()

    def deaf(sock: socket.SocketType) -> None:
        sock.shutdown(socket.SHUT_RD)
        shut.set()
        given_up.wait(PATIENCE)

    shut, commit = threading.Event(), handover.HandoverSource.commit
    monkeypatch.setattr(handover.HandoverSource, "commit", lambda source: shut.wait(PATIENCE) and commit(source))
    ours, theirs = connections(len(RECORD.clients))
    with contextlib.ExitStack() as stack:
        for one in ours:
            stack.callback(one.close)
        for peer in theirs:
            stack.enter_context(peer)
        stack.enter_context(OldHub(address, lambda sock, listener: hand_over(sock, RECORD, listener, ours)))
        stack.callback(given_up.set)
        with gevent.Timeout(PATIENCE), pytest.raises(HandoverError, match="went on by itself"):
            Hub(address, take_over=True).start()
