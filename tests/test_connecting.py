"""Addresses as URLs, the client that fits the process, and clients that are made late."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import weakref
from typing import Any

import gevent
import pytest
from support import PATIENCE, HubThread, in_thread, python

from sbuslib import Client, aio, blocking, connect
from sbuslib.connecting import BusUrl, Connector, parse_url
from sbuslib.errors import StateError, UsageError
from sbuslib.secrets import UNKNOWN, Credentials, credentials_of


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("", BusUrl()),
        ("/tmp/bus", BusUrl("/tmp/bus")),
        ("sbus://", BusUrl()),
        ("sbus:///tmp/a%20bus", BusUrl("/tmp/a bus")),
        ("sbus:///tmp/bus?timeout=2.5&hub_user=root", BusUrl("/tmp/bus", "root", 2.5)),
        ("sbus://?users=www-data,7&users=8", BusUrl(users=("www-data", "7", "8"))),
    ],
)
def test_the_parts_of_a_url(url: str, parsed: BusUrl) -> None:
    assert parse_url(url) == parsed


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("redis://localhost", "not at redis://"),
        ("sbus://tmp/bus", "sbus:///tmp/bus"),
        ("sbus:///bus?user=root", "takes hub_user, timeout and users, not 'user'"),
        ("sbus:///bus?timeout=soon", "timeout is a number of seconds, not 'soon'"),
        ("sbus:///bus?timeout=-1", "timeout is seconds from 0 on"),
    ],
)
def test_a_url_that_cannot_be_right_is_an_error(url: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        parse_url(url)


def test_the_client_fits_the_thread_that_asks() -> None:
    with HubThread() as hub:
        url = f"sbus://{hub.address}"
        with connect(url) as client:
            assert type(client) is Client, "the event loop of gevent runs here"
        with connect(url, threads=True) as client:
            assert type(client) is blocking.Client
        made: Any = in_thread(lambda: connect(url))
        assert type(made) is blocking.Client
        made.close()


def test_a_process_that_gevent_has_patched_gets_its_client_and_another_loads_none() -> None:
    code = "import sbuslib, sys; sbuslib.connect(sys.argv[1]).close(); print('gevent' in sys.modules)"
    with HubThread() as hub:
        assert python("-c", code, hub.address) == "False\n"
        assert python("-c", f"from gevent import monkey; monkey.patch_all()\n{code}", hub.address) == "True\n"


def test_the_child_of_a_fork_gets_a_client_of_its_own() -> None:
    with HubThread() as hub:
        connector = Connector(f"sbus://{hub.address}")
        client = connector.client(threads=True)
        assert connector.client(threads=True) is client
        child = os.fork()
        if not child:
            os._exit(connector.client(threads=True).credentials.endswith(b"/%d" % os.getpid()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        client.sync()  # the parent's is as it was
        connector.close()


def test_a_connector_that_nobody_has_any_more_is_gone() -> None:
    connector = Connector("sbus:///nowhere")
    gone = weakref.ref(connector)
    del connector
    assert gone() is None, "the hook for forks keeps none"


def test_greenlets_that_wait_for_a_hub_get_one_client(folder: str) -> None:
    connector = Connector(f"{folder}/bus")
    waiting = [gevent.spawn(connector.client) for _ in range(3)]
    gevent.sleep(0)
    with HubThread(f"{folder}/bus"):
        assert len({id(greenlet.get(timeout=PATIENCE)) for greenlet in waiting}) == 1
        connector.close()


OWN = b"!/cred/7/7/9"


@pytest.mark.parametrize(
    ("sender", "own", "credentials"),
    [
        (None, OWN, None),
        (b"", OWN, UNKNOWN),
        (b"!/cred/1/2/3", OWN, Credentials(1, 2, 3)),
        (b"!/cred/0/0/3/!/cred/1/2/4", OWN, Credentials(1, 2, 4)),  # behind a hub of root
        (b"!/cred/7/7/3/!/cred/1/2/4", OWN, Credentials(1, 2, 4)),  # behind a hub of our own user
        (b"!/cred/1/2/3/!/cred/0/0/4", OWN, Credentials(1, 2, 3)),  # a hub of user 2 could name anybody
        (b"!/cred/7/7/3/!/cred/1/2/3/!/cred/7/7/4", OWN, Credentials(1, 2, 3)),
        (b"!/cred/5/5/1/!/cred/1/2/3", b"!/cred/5/5/1/" + OWN, Credentials(1, 2, 3)),  # at a child that of user 5
        (b"!/cred/5/5/1/!/cred/1/2/3", OWN, Credentials(5, 5, 1)),
        (b"!/cred/0/0/3/!/cred/65534/65534/0", OWN, UNKNOWN),
        (b"!/cred/0/0", OWN, UNKNOWN),
    ],
)
def test_who_answers_for_a_message(sender: bytes | None, own: bytes, credentials: Credentials | None) -> None:
    assert credentials_of(sender, own, b"/") == credentials
    if sender is not None:
        other = sender.replace(b"/", b"."), own.replace(b"/", b".")
        assert credentials_of(*other, b".") == credentials


def test_a_client_says_who_answers_for_a_message() -> None:
    with HubThread() as hub, blocking.Client(hub.address, senders=True) as client, client.subscribe("k") as keys:
        client.publish("k")
        me = client.hub.credentials_of(keys.receive(timeout=PATIENCE).sender)
    assert me == Credentials(os.getgid(), os.getuid(), os.getpid())


# -- other processes


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_connector_goes_to_a_process_that_makes_a_client_of_its_own(method: str) -> None:
    with HubThread() as hub, blocking.Client(hub.address) as client:
        came = client.subscribe("k")
        connector = Connector(f"sbus://{hub.address}", timeout=PATIENCE)
        connector.client(threads=True).publish("k", b"here")
        with multiprocessing.get_context(method).Pool(1) as pool:
            pool.apply(_publish, (connector,))
        assert [came.receive(timeout=PATIENCE).payload for _ in range(2)] == [b"here", b"there"]
        connector.close()


def _publish(connector: Connector) -> None:
    connector.client(threads=True).publish("k", b"there")


def test_a_client_that_goes_to_another_process_says_what_to_give_instead() -> None:
    with HubThread() as hub:
        for kind in (Client, blocking.Client, aio.Client):
            made: Any = kind(hub.address)
            with pytest.raises(StateError, match=r"give another one.*the address, or a sbuslib.Connector"):
                pickle.dumps(made)
            made.close()
