"""Large messages: the rules on a network that loses messages, then with real hubs, faults and hostile input."""

from __future__ import annotations

from collections.abc import Coroutine
from hashlib import sha256
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recipes.networks import Network, Party

from sbuslib.errors import PeerError, UsageError
from sbuslib.recipes import large
from sbuslib.recipes.large import Offer, Received, Receiving, Sending, Sent, Word
from sbuslib.recipes.mailbox import Mailbox
from sbuslib.wire.packets import Message

ID = "0" * 32
WORDS = b"!/cred/1/2/3/large/" + ID.encode()


class Memory:
    """A sink that keeps what comes."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.data = b""
        self.discarded = False
        self._room = room

    def write(self, data: memoryview) -> None:
        if len(self.data) + len(data) > self._room:
            raise OSError(28, "No space left on device")
        self.data += data

    def finish(self) -> bytes:
        return self.data

    def discard(self) -> None:
        self.discarded = True


def send(network: Network, data: bytes, part: int = 7, receivers: int = 1, timeout: float = 30.0) -> Party:
    offer = Offer(ID, len(data), part, "a file")

    def run(party: Party) -> Coroutine[Any, Any, Sent]:
        sending = Sending(party, b"f/a", b"/", offer, Mailbox(WORDS), lambda at, size: data[at : at + size])
        return sending.run(receivers, timeout, network.clock)

    return network.start(run)


def receiving(party: Party, network: Network, who: str = "r", sink: Any = None, most: int = 1_000_000) -> Receiving:
    make = Memory if sink is None else (lambda: sink)
    return Receiving(party, (b"f/*",), b"/", who, lambda offer: make(), most, 30.0, network.clock)


def receive(network: Network, who: str = "r", **options: Any) -> Party:
    """Receives one file, and stays for a while, in which it tells again that it has it."""

    async def run(party: Party) -> Received:
        one = receiving(party, network, who, **options)
        await one.open()
        try:
            received = await one.next(600)
            with pytest.raises(TimeoutError):
                await one.next(10)
            return received
        finally:
            await one.close()

    return network.start(run)


def under_way(network: Network) -> int:
    """The most parts that any moment was ahead of what the slowest receiver had said."""
    most = sent = 0
    have: dict[str, int] = {}
    for message in network.published:
        if message.key == b"f/a/" + ID.encode():
            sent = int.from_bytes(message.payload[:8], "little") + 1
            most = max(most, sent - min(have.values()))
        elif message.key == WORDS:
            word = msgspec.json.decode(message.payload, type=Word)
            have[word.who] = max(word.have, have.get(word.who, 0))
    return most


@given(
    data=st.binary(max_size=300),
    part=st.integers(1, 40),
    count=st.integers(1, 4),
    rate=st.sampled_from([0.0, 0.1, 0.4]),
    seed=st.integers(),
    kill_at=st.integers(0, 200) | st.none(),
)
def test_each_receiver_gets_the_file_whatever_is_lost(
    data: bytes, part: int, count: int, rate: float, seed: int, kill_at: int | None
) -> None:
    random = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "WINDOW_BYTES", 60)
        network = Network(lambda message: random.random() < rate)
        parties = [receive(network, str(number)) for number in range(count)]
        sender = send(network, data, part, count)
        network.run(random.choice, {kill_at: parties[0]} if kill_at is not None and count > 1 else {})
    living = [party for party in parties if not party.killed]
    if sender.error is not None:
        assert len(living) < count, "some came, and were enough"
        return
    for party in living:
        assert party.error is None
        assert (party.result.key, party.result.name, party.result.file) == (b"f/a", "a file", data)
    assert sender.result.receivers >= len(living)
    assert under_way(network) <= max(1, 60 // part) + 1


# -- the rules, hostile input included ------------------------------------------------------------------------


def test_nobody_who_takes_a_file_is_an_error_after_a_time() -> None:
    network = Network()
    sender = send(network, b"x", timeout=5)
    network.run()
    assert isinstance(sender.error, TimeoutError)
    assert 5 <= network.now < 6


def test_a_sender_that_stops_is_given_up() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "WINDOW_BYTES", 20)
        network = Network()
        receiver = receive(network)
        sender = send(network, bytes(100))
        network.run(kill={6: sender})
    assert sender.killed
    assert isinstance(receiver.error, PeerError), receiver.result


def test_a_receiver_that_stops_is_given_up_and_the_others_have_the_file() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "WINDOW_BYTES", 60)
        network = Network()
        receivers = [receive(network, "a"), receive(network, "b")]
        sender = send(network, bytes(1_000), receivers=2)
        network.run(kill={30: receivers[0]})
    assert receivers[0].killed
    assert receivers[1].result.file == bytes(1_000)
    assert sender.result == Sent(1, ("a receiver made no progress for 30 s",))


def test_nothing_is_left_when_a_receiver_leaves() -> None:
    sink = Memory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "WINDOW_BYTES", 20)
        network = Network(lambda message: message.payload[:1] == b"\5")

        async def run(party: Party) -> None:
            one = receiving(party, network, sink=sink)
            await one.open()
            with pytest.raises(TimeoutError):
                await one.next(5)
            await one.close()

        network.start(run)
        sender = send(network, bytes(100))
        network.run()
    assert sink.data
    assert sink.discarded
    assert str(sender.error).endswith("the receiver left")


def test_a_file_that_is_too_large_is_refused_before_anything_is_made() -> None:
    network = Network()
    made: list[Any] = []
    receiver = receive(network, sink=made, most=99)  # to make a sink would fail
    sender = send(network, bytes(100))
    network.run()
    assert isinstance(receiver.error, TimeoutError)
    assert str(sender.error) == "nobody has f/a: 100 bytes are more than 99"


def test_a_full_disk_is_told_to_both() -> None:
    network = Network()
    sink = Memory(room=50)
    receiver = receive(network, sink=sink)
    sender = send(network, bytes(100))
    network.run()
    assert isinstance(receiver.error, OSError)
    assert sink.discarded
    assert str(sender.error).endswith("No space left on device")


def test_a_file_that_changes_while_it_is_sent_is_found_out() -> None:
    network = Network(lambda message: False)
    sink = Memory()
    receiver = receive(network, sink=sink)
    data = bytearray(100)
    lost = iter([True])
    network.loses = lambda message: len(message.payload) == 15 and message.payload[0] == 3 and next(lost, False)

    def read(at: int, size: int) -> bytes:
        data[at] += 1
        return bytes(data[at : at + size])

    sender = network.start(
        lambda party: Sending(party, b"f/a", b"/", Offer(ID, 100, 7), Mailbox(WORDS), read).run(1, 30, network.clock)
    )
    network.run()
    assert isinstance(receiver.error, PeerError)
    assert sink.discarded
    assert "not what was sent" in str(sender.error)


def test_a_file_that_becomes_shorter_is_an_error_of_the_sender() -> None:
    network = Network()
    receive(network)
    words, offer = Mailbox(WORDS), Offer(ID, 100, 7)
    sender = network.start(
        lambda party: Sending(party, b"f/a", b"/", offer, words, lambda at, size: b"").run(1, 30, network.clock)
    )
    network.run()
    assert isinstance(sender.error, UsageError)


OFFER = b'{"large":"%b","size":3,"part":2,"to":"%b"}'


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[" * 100_000,
        OFFER % (ID.encode() + b"\\n", WORDS),
        OFFER % (b"../../etc/passwd", WORDS),
        (OFFER % (ID.encode(), WORDS)).replace(b"3", b"-1"),
        (OFFER % (ID.encode(), WORDS)).replace(b"3", b"1e999"),
        (OFFER % (ID.encode(), WORDS)).replace(b"3", b"9" * 400),
        (OFFER % (ID.encode(), WORDS)).replace(b"2,", b"0,"),
        (OFFER % (ID.encode(), WORDS)).replace(b"2,", b"409601,"),
        OFFER % (ID.encode(), b"door/open"),
        OFFER % (ID.encode(), b"!/cred/1/2/3/other/" + ID.encode()),
        OFFER % (ID.encode(), b"door/large/" + ID.encode()),
        OFFER % (ID.encode(), b"door/!/cred/1/2/3/large/" + ID.encode()),
    ],
)
def test_what_is_no_offer_means_nothing_and_is_not_answered(payload: bytes) -> None:
    network = Network()
    receiver = receive(network)
    network.publish(network.parties[0], Message(b"other", b""))
    for mailbox in receiver.mailboxes:
        mailbox.put(Message(b"f/a", payload))
    network.run()
    assert isinstance(receiver.error, TimeoutError)
    assert [message.key for message in network.published] == [b"other"]


@given(
    st.lists(
        st.binary(max_size=40)
        | st.builds(lambda n, d: n.to_bytes(8, "little") + d, st.integers(0, 5), st.binary(max_size=4))
    )
)
def test_parts_that_nobody_sent_make_no_file(forged: list[bytes]) -> None:
    network = Network()
    sink = Memory()
    receiver = receive(network, sink=sink)
    receiver.mailboxes[0].put(Message(b"f/a", OFFER % (ID.encode(), WORDS)))
    receiver.go()
    for part in forged:
        if len(receiver.mailboxes) > 1:
            receiver.mailboxes[1].put(Message(b"f/a/" + ID.encode(), part))
    network.run()
    assert isinstance(receiver.error, PeerError)
    assert sink.discarded
    assert len(sink.data) <= 3


def test_where_senders_are_told_parts_of_another_user_are_not_taken() -> None:
    network = Network()
    receiver = receive(network)
    receiver.mailboxes[0].put(Message(b"f/a", OFFER % (ID.encode(), WORDS), b"!/cred/1/2/3"))
    receiver.go()
    receiver.mailboxes[1].put(Message(b"f/a/" + ID.encode(), bytes(8) + b"zz", b"!/cred/1/3/3"))
    for number, data in enumerate([b"ab", b"c", sha256(b"abc").digest()]):
        receiver.mailboxes[1].put(Message(b"f/a/" + ID.encode(), number.to_bytes(8, "little") + data, b"!/cred/1/2/4"))
    network.run()
    assert (receiver.result.file, receiver.result.sender) == (b"abc", b"!/cred/1/2/3")


def test_words_that_are_none_and_too_many_receivers_do_not_stop_a_sender() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "MOST_RECEIVERS", 3)
        network = Network()
        receiver = receive(network)
        sender = send(network, bytes(100))
        for payload in (b"", b"{}", b'{"who":"x","have":-1}', b'{"who":"' + b"x" * 33 + b'","have":0}'):
            sender.mailboxes[0].put(Message(WORDS, payload))
        for number in range(10):
            sender.mailboxes[0].put(Message(WORDS, b'{"who":"%d","have":0,"again":true}' % number))
        network.run()
    assert isinstance(receiver.error, TimeoutError) or receiver.result.file == bytes(100)
    assert sender.ended
    assert network.now < 1_000


def test_more_files_than_are_taken_at_once_all_come() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "MOST_AT_ONCE", 2)
        network = Network()
        came: list[bytes] = []

        def send_number(party: Party, number: int) -> Coroutine[Any, Any, Sent]:
            offer = Offer(f"{number:032}", 50, 7)
            words = Mailbox(b"!/cred/1/2/3/large/" + offer.large.encode())
            data = bytes([number]) * 50
            sending = Sending(party, b"f/%d" % number, b"/", offer, words, lambda at, size: data[at : at + size])
            return sending.run(1, 30, network.clock)

        async def run(party: Party) -> None:
            one = receiving(party, network)
            await one.open()
            while len(came) < 5:
                came.append((await one.next(100)).file)
            with pytest.raises(TimeoutError):
                await one.next(5)
            await one.close()

        network.start(run)
        for number in range(5):
            network.start(lambda party, number=number: send_number(party, number))  # type: ignore[misc]
        network.run()
    assert sorted(came) == [bytes([number]) * 50 for number in range(5)]
    assert [party.error for party in network.parties] == [None] * 6
