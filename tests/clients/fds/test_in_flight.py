"""Descriptors under way from the stores of one process: bounded for strangers."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from accounting import acting_as
from clients.fds.conftest import MakeStore
from clients.fds.visits import STRANGER, ask, fetch, memory, read, visit, visit_as_stranger

from sbuslib.clients.fds import in_flight
from sbuslib.clients.fds.descriptor_client import DescriptorClient
from sbuslib.wire.offers import ASK, BUSY, GIVEN, MOST_TOKENS


def test_all_stores_of_a_process_have_few_descriptors_under_way_to_strangers(
    make_store: MakeStore, client: DescriptorClient
) -> None:
    """They count against the descriptor store's user, whose other programs could send none any more."""
    made = [make_store() for _ in range(9)]
    offers = [memory(store, b"a") for store in made]
    with ExitStack() as stack:
        held: list[tuple[socket.socket, int]] = []
        for user in range(STRANGER, STRANGER + 4):
            for offer in offers:
                for ends_first in (False, True, False):
                    assert offer.store is not None
                    with acting_as(user):
                        sock = stack.enter_context(visit(offer.store))
                    sock.send(ASK + offer.token * MOST_TOKENS)
                    held.append((sock, sock.recv(100, socket.MSG_PEEK).count(GIVEN)))
                    if ends_first:  # which leaves what it did not read where it is
                        sock.shutdown(socket.SHUT_WR)
        assert held[0][1] == MOST_TOKENS, "who is alone has all at once"
        assert sum(given for _, given in held) < in_flight.STRANGERS_MOST, "something is left"

        with acting_as(STRANGER + 5):
            late = stack.enter_context(visit(made[0].name))
        for _ in range(2):
            words, (found,) = ask(late, offers[0].token)
            assert (words, read(found)) == (bytes([GIVEN]), b"a"), "another stranger, as it reads"
        assert [read(fetch(client, offer)[0]) for offer in offers] == [b"a"] * 9, "our own user"

        _, descriptors, _, _ = socket.recv_fds(held[0][0], 100, 100)
        assert [read(found) for found in descriptors] == [b"a"] * MOST_TOKENS
        with acting_as(STRANGER):
            again = stack.enter_context(visit(made[0].name))
        words, (found,) = ask(again, offers[0].token)
        assert (words, read(found)) == (bytes([GIVEN]), b"a"), "the first has read"


def test_what_is_under_way_counts_when_its_store_is_closed(make_store: MakeStore) -> None:
    """So programs that hand out for a moment, again and again, leave no more than others."""
    closed, store = make_store(), make_store()
    before, offer = memory(closed, b"a"), memory(store, b"a")
    with visit_as_stranger(closed.name) as first, visit_as_stranger(store.name) as late:
        first.send(ASK + before.token * MOST_TOKENS)
        assert first.recv(100, socket.MSG_PEEK) == bytes([GIVEN]) * MOST_TOKENS
        closed.close()
        assert ask(late, offer.token)[0] == bytes([BUSY])
        _, descriptors, _, _ = socket.recv_fds(first, 100, 100)
        assert [read(found) for found in descriptors] == [b"a"] * MOST_TOKENS
        words, (found,) = ask(late, offer.token)
        assert (words, read(found)) == (bytes([GIVEN]), b"a")
