"""The door: who is handed what, for how long, and what visitors cannot do to others."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections import deque
from contextlib import ExitStack, closing, suppress

import pytest
from accounting import acting_as
from descriptors import can_refuse, ends, lingering, send_with
from doors.conftest import MakeDoor, sleep, wait_readable
from doors.visits import STRANGER, ask, fetch, memory, offer_of, read, visit, visit_as_stranger
from support import PATIENCE, eventually, open_descriptors, python

from sbuslib.doors import door as doors
from sbuslib.doors import under_way, visitors
from sbuslib.doors.asking import Asker
from sbuslib.doors.door import Door
from sbuslib.doors.memory import check_memory
from sbuslib.doors.pace import hearing
from sbuslib.doors.transfers import Transfer
from sbuslib.doors.visitors import Visitor
from sbuslib.errors import DoorError, PayloadError, StateError
from sbuslib.limits import ClientLimits
from sbuslib.wire.offers import ASK, BUSY, GIVEN, GONE, MOST_TOKENS, TOKEN_BYTES


def test_who_has_the_token_is_handed_the_descriptor_as_often_as_it_asks(door: Door, asker: Asker) -> None:
    offer = memory(door, b"a")
    first, guessed, last = fetch(asker, offer, offer_of(door, os.urandom(TOKEN_BYTES)), offer)
    assert (read(first), guessed, read(last)) == (b"a", None, b"a")


@pytest.mark.parametrize("limit", [{"offered": 2}, {"offered_bytes": 5}])
def test_so_much_of_what_is_offered_is_kept(make_door: MakeDoor, asker: Asker, limit: dict[str, int]) -> None:
    door = make_door(**limit)
    offers = [memory(door, data) for data in (b"00", b"11", b"22")]
    first, *others = fetch(asker, *offers)
    assert (first, [read(other) for other in others]) == (None, [b"11", b"22"])
    if "offered_bytes" in limit:
        with pytest.raises(PayloadError, match=r"6 bytes are more than ClientLimits\.offered_bytes, 5"):
            memory(door, b"123456")


def test_what_is_offered_is_kept_for_a_time(make_door: MakeDoor, asker: Asker) -> None:
    door = make_door(offered_seconds=0.001)
    here, there = socket.socketpair()
    with here, there:
        door.offer_descriptor(here.fileno())
        here.close()
        there.settimeout(20)
        assert there.recv(1) == b"", "the door closed the last descriptor of it"


def test_memory_is_used_again_while_nobody_has_it(make_door: MakeDoor, asker: Asker) -> None:
    door = make_door(offered=1)
    (held,) = fetch(asker, memory(door, b"0"))
    assert held is not None
    inodes = [os.fstat(held).st_ino]
    for number in range(1, 5):
        (found,) = fetch(asker, memory(door, b"%d" % number))
        assert found is not None
        inodes.append(os.fstat(found).st_ino)
        assert read(found) == b"%d" % number
    assert len(set(inodes[:3])) == 3
    assert inodes[3:] == inodes[1:3]
    assert read(held) == b"0"


def test_what_a_stranger_had_is_not_used_again(make_door: MakeDoor, asker: Asker) -> None:
    door = make_door(offered=1)
    memory(door, b"a"), memory(door, b"b")
    offer = memory(door, b"c")
    (own,) = fetch(asker, offer)
    with visit_as_stranger(door.name) as sock:
        _, (found,) = ask(sock, offer.token)
        check_memory(found, 1, is_ours=False)
        for number in range(4):
            memory(door, b"%d" % number)
        assert (read(own), read(found)) == (b"c", b"c")


def test_who_offers_nothing_more_keeps_no_memory(make_door: MakeDoor) -> None:
    door = make_door(offered=1)
    for _ in range(3):
        offer = memory(door)
    assert door._spare
    door.take_back(offer.token)
    door._visitors.wake()
    eventually(lambda: not door._spare)


def test_a_door_that_was_closed_hands_out_its_last_offers_for_a_while(
    door: Door, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "LINGER", 60.0)
    offer = memory(door, b"a")
    door.close()
    assert read(fetch(asker, offer)[0]) == b"a"
    with pytest.raises(StateError):
        memory(door)
    with pytest.raises(StateError):
        door.lend(Transfer(1, 1.0, 0.0))
    monkeypatch.setattr(doors, "LINGER", 0.0)
    door.close()
    with pytest.raises(DoorError, match="no door"):
        fetch(asker, offer)


def test_what_is_taken_back_is_handed_out_no_more(door: Door, asker: Asker) -> None:
    offer = memory(door)
    door.take_back(offer.token)
    door.take_back(offer.token)
    assert fetch(asker, offer) == [None]


def test_a_door_in_a_folder(make_door: MakeDoor, folder: str) -> None:
    door = make_door(folder)
    with closing(Asker(wait_readable, sleep, folder)) as inside, closing(Asker(wait_readable, sleep, None)) as outside:
        assert [read(found) for found in fetch(inside, memory(door, b"a"))] == [b"a"]
        with pytest.raises(DoorError, match="a folder that this client was not given"):
            fetch(outside, memory(door))
    door.close()
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    "said",
    [
        b"x",
        ASK,
        ASK + b"short",
        ASK + bytes(TOKEN_BYTES * (MOST_TOKENS + 1)),
        b"SUB a" + bytes(16),
        bytes(100_000),
    ],
)
def test_who_says_something_else_is_let_go(door: Door, said: bytes) -> None:
    with visit(door.name) as sock:
        sock.send(said)
        assert sock.recv(1) == b""


def test_who_asks_and_does_not_read_is_cut_off(door: Door, asker: Asker) -> None:
    offer = memory(door, b"a")
    with visit(door.name) as sock:
        with suppress(BrokenPipeError):
            while sock.send(ASK + offer.token):
                pass
        words, descriptors, _, _ = socket.recv_fds(sock, 100, 100)
        assert (words, [read(found) for found in descriptors]) == (bytes([GIVEN]), [b"a"])
        assert sock.recv(1) == b""
    assert read(fetch(asker, offer)[0]) == b"a"


def test_all_doors_of_a_process_have_few_descriptors_under_way_to_strangers(make_door: MakeDoor, asker: Asker) -> None:
    """They count against the door's user, whose other programs could send none any more."""
    made = [make_door() for _ in range(9)]
    offers = [memory(door, b"a") for door in made]
    with ExitStack() as stack:
        held: list[tuple[socket.socket, int]] = []
        for user in range(STRANGER, STRANGER + 4):
            for offer in offers:
                for ends_first in (False, True, False):
                    assert offer.door is not None
                    with acting_as(user):
                        sock = stack.enter_context(visit(offer.door))
                    sock.send(ASK + offer.token * MOST_TOKENS)
                    held.append((sock, sock.recv(100, socket.MSG_PEEK).count(GIVEN)))
                    if ends_first:  # which leaves what it did not read where it is
                        sock.shutdown(socket.SHUT_WR)
        assert held[0][1] == MOST_TOKENS, "who is alone has all at once"
        assert sum(given for _, given in held) < under_way.STRANGERS_MOST, "something is left"

        with acting_as(STRANGER + 5):
            late = stack.enter_context(visit(made[0].name))
        for _ in range(2):
            words, (found,) = ask(late, offers[0].token)
            assert (words, read(found)) == (bytes([GIVEN]), b"a"), "another stranger, as it reads"
        assert [read(fetch(asker, offer)[0]) for offer in offers] == [b"a"] * 9, "our own user"

        _, descriptors, _, _ = socket.recv_fds(held[0][0], 100, 100)
        assert [read(found) for found in descriptors] == [b"a"] * MOST_TOKENS
        with acting_as(STRANGER):
            again = stack.enter_context(visit(made[0].name))
        words, (found,) = ask(again, offers[0].token)
        assert (words, read(found)) == (bytes([GIVEN]), b"a"), "the first has read"


def test_what_is_under_way_counts_when_its_door_is_closed(make_door: MakeDoor) -> None:
    """So programs that hand out for a moment, again and again, leave no more than others."""
    closed, door = make_door(), make_door()
    before, offer = memory(closed, b"a"), memory(door, b"a")
    with visit_as_stranger(closed.name) as first, visit_as_stranger(door.name) as late:
        first.send(ASK + before.token * MOST_TOKENS)
        assert first.recv(100, socket.MSG_PEEK) == bytes([GIVEN]) * MOST_TOKENS
        closed.close()
        assert ask(late, offer.token)[0] == bytes([BUSY])
        _, descriptors, _, _ = socket.recv_fds(first, 100, 100)
        assert [read(found) for found in descriptors] == [b"a"] * MOST_TOKENS
        words, (found,) = ask(late, offer.token)
        assert (words, read(found)) == (bytes([GIVEN]), b"a")


def test_what_is_asked_for_and_cannot_be_had_at_once_is_asked_for_again(door: Door, asker: Asker) -> None:
    offer = memory(door, b"a")
    with ExitStack() as stack:
        for _ in range(under_way.TRUSTED_MOST // MOST_TOKENS - 1):
            sock = stack.enter_context(visit(door.name))
            sock.send(ASK + offer.token * MOST_TOKENS)
            assert sock.recv(100, socket.MSG_PEEK) == bytes([GIVEN]) * MOST_TOKENS
        last = stack.enter_context(visit(door.name))
        last.send(ASK + offer.token * 3)
        assert last.recv(100, socket.MSG_PEEK) == bytes([GIVEN]) * 3
        assert [read(found) for found in fetch(asker, offer, offer, offer)] == [b"a"], "of the first"


def test_who_asks_for_what_there_is_not_rests(door: Door) -> None:
    offer = memory(door, b"a")
    with acting_as(STRANGER + 6):  # who does not rest since another test
        sock = visit(door.name)
    with sock:
        words, (found,) = ask(sock, offer.token)
        assert (words, read(found)) == (bytes([GIVEN]), b"a")
        assert not hearing.until(STRANGER + 6)
        assert ask(sock, os.urandom(TOKEN_BYTES))[0] == bytes([GONE])
        words, (found,) = ask(sock, offer.token)
        assert (words, read(found)) == (bytes([GIVEN]), b"a"), "it is heard later"
        assert hearing.until(STRANGER + 6) > 0.0


def test_who_fetches_one_thing_again_and_again_rests(door: Door) -> None:
    offer = memory(door, b"a")
    with acting_as(STRANGER + 7):
        sock = visit(door.name)
    with sock:
        for _ in range(visitors.USER_VISITORS):
            read(ask(sock, offer.token)[1][0])
        assert not hearing.until(STRANGER + 7)
        for _ in range(2):
            read(ask(sock, offer.token)[1][0])
        assert hearing.until(STRANGER + 7) > 0.0


def test_who_asks_when_the_kernel_lets_no_more_be_under_way_is_asked_to_come_again(
    door: Door, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = memory(door, b"a")
    assert read(fetch(asker, offer)[0]) == b"a"
    (visitor,) = door._visitors.by_number.values()
    real = visitor.sock

    class Refusing:
        """Has the kernel's answer once, as it cannot be brought about here: it is not for root."""

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def sendmsg(self, *_: object) -> int:
            visitor.sock = real
            raise OSError(errno.ETOOMANYREFS, "too many references")

    monkeypatch.setattr(visitor, "sock", Refusing())
    assert read(fetch(asker, offer)[0]) == b"a"
    assert visitor.sock is real


def test_ten_thousand_askers_of_one_user_take_each_others_place(make_door: MakeDoor, asker: Asker) -> None:
    door = make_door(offered_seconds=10 * PATIENCE)
    offer, before = memory(door, b"a"), open_descriptors()
    with ExitStack() as stack, visit(door.name) as own:
        others = deque[socket.socket]()
        for _ in range(20):
            with acting_as(STRANGER):
                for _ in range(500):
                    others.append(stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)))
                    others[-1].connect(own.getpeername())  # waits while the backlog is full
                    with suppress(ConnectionError):  # a later one has its place
                        others[-1].send(ASK + offer.token)
                    if len(others) > visitors.USER_VISITORS:
                        others.popleft().close()
            words, (found,) = ask(own, offer.token)
            assert (words, read(found)) == (bytes([GIVEN]), b"a")
            assert len(open_descriptors() - before) < 4 * visitors.USER_VISITORS
        assert read(fetch(asker, offer)[0]) == b"a"


def test_askers_beyond_a_users_share_take_each_others_place(door: Door) -> None:
    offer = memory(door, b"a")
    with ExitStack() as stack:
        others = [stack.enter_context(visit_as_stranger(door.name)) for _ in range(3 * visitors.USER_VISITORS)]
        for other in others[-visitors.USER_VISITORS :]:
            words, (found,) = ask(other, offer.token)
            assert (words, read(found)) == (bytes([GIVEN]), b"a")
        assert others[0].recv(1) == b"", "it was silent for longest"


def test_the_user_with_most_makes_place_where_all_are_taken(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "MOST_VISITORS", 3)
    monkeypatch.setattr(visitors, "FEWEST_VISITORS", 1)
    token = os.urandom(TOKEN_BYTES)
    with ExitStack() as stack:

        def come(user: int) -> socket.socket:
            with acting_as(user):
                sock = stack.enter_context(visit(door.name))
            assert ask(sock, token)[0] == bytes([GONE])
            return sock

        strangers = [come(STRANGER) for _ in range(3)]
        come(os.geteuid())
        assert ask(strangers[0], token)[0] == bytes([GONE]), "our own user has places of its own"
        come(STRANGER + 1)
        assert strangers[1].recv(1) == b"", "it was silent for longest"
        assert ask(strangers[2], token)[0] == bytes([GONE])


def test_the_doors_of_a_process_share_the_places_of_strangers(
    make_door: MakeDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitors, "MOST_VISITORS", 4)
    monkeypatch.setattr(visitors, "FEWEST_VISITORS", 1)
    door, _ = make_door(), make_door()
    with ExitStack() as stack:
        strangers = [stack.enter_context(visit_as_stranger(door.name)) for _ in range(3)]
        assert strangers[0].recv(1) == b"", "each door has half of them"
        assert ask(strangers[1], os.urandom(TOKEN_BYTES))[0] == bytes([GONE])


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_a_socket_that_closes_slowly_delays_nobody_at_the_door(
    kernel: str, request: pytest.FixtureRequest, make_door: MakeDoor, asker: Asker
) -> None:
    refused = kernel == "new" and can_refuse()
    if kernel == "old":
        request.getfixturevalue("old_kernel")
    door = make_door()
    with lingering() as (sock, other), visit(door.name) as visitor:
        with suppress(PermissionError):
            send_with(visitor, b"x", [sock.fileno()])
        sock.close()
        assert read(fetch(asker, memory(door, b"a"))[0]) == b"a"
        if not refused:
            assert visitor.recv(1) == b"", "it is let go"
        assert ends(other)


def test_the_child_of_a_fork_has_no_door(door: Door, asker: Asker) -> None:
    offer = memory(door, b"a")
    child = os.fork()
    if not child:
        try:
            fetch(asker, offer)
        except DoorError:
            os._exit(2)
        try:
            memory(door)
        except StateError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read(fetch(asker, offer)[0]) == b"a"


def test_a_door_that_was_closed_is_nothing_to_the_child_of_a_fork(door: Door) -> None:
    """Its descriptors may be others' by then."""
    door.close()
    with open(os.devnull) as first, open(os.devnull) as second:
        child = os.fork()
        if not child:
            os.fstat(first.fileno())
            os.fstat(second.fileno())
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_where_gevent_has_patched_everything_the_door_has_a_real_thread() -> None:
    code = """
from gevent import monkey; monkey.patch_all()
import os, time
from sbuslib.doors.door import Door
from sbuslib.doors.memory import check_memory
from sbuslib.limits import ClientLimits
from doors.visits import memory, visit, ask, read
door = Door(None, ClientLimits())
offer = memory(door, b"a")
with monkey.get_original("socket", "socket")(1, 5) as sock:
    sock.connect(b"\\0sbus-door/" + door.name.hex().encode())
    sock.send(b"\\0ask" + offer.token)
    assert sock.recv(100) == b"\\0"  # and gevent's event loop did not run meanwhile
door.close()
"""
    assert python("-c", code, PYTHONPATH=os.path.dirname(os.path.dirname(__file__))) == ""


def test_no_descriptor_is_left_for_visitors(door: Door, asker: Asker) -> None:
    """The door waits, and serves those that it has."""
    offer = memory(door, b"a")
    with visit(door.name) as known:
        _, (found,) = ask(known, offer.token)
        os.close(found)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with visit(door.name) as late:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
            try:
                known.send(ASK + offer.token)
                assert known.recv(1, socket.MSG_PEEK) == bytes([GIVEN])
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            _, descriptors, _, _ = socket.recv_fds(known, 100, 100)
            assert read(descriptors[0]) == b"a"
            assert ask(late, os.urandom(TOKEN_BYTES))[0] == bytes([GONE])


def test_a_door_for_which_no_descriptor_is_left_opens_later(asker: Asker) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, "no descriptor is left")

    with closing(Door(None, ClientLimits())) as door:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "eventfd", fail)
            with pytest.raises(OSError, match="no descriptor is left"):
                memory(door)
        assert read(fetch(asker, memory(door, b"a"))[0]) == b"a"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can ask as root")
def test_root_is_trusted_at_the_doors_of_others() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert Visitor(here, STRANGER).is_trusted
        assert not Visitor(here, STRANGER).is_ours
