"""Who may use a client: the process that made it, and there the threads, greenlets or tasks that its kind allows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support import PATIENCE, HubThread, in_thread, python

from sbuslib import Client, aio, blocking
from sbuslib.errors import StateError
from sbuslib.kernel.receive_buffer import SLOT_BYTES
from sbuslib.limits import PACKET_BYTES

# -- forks ----------------------------------------------------------------------------------------------

FORKED = """
import os, sys
from sbuslib import Client, blocking
from sbuslib.errors import StateError
client = {"gevent": Client, "blocking": blocking.Client}[sys.argv[2]](sys.argv[1], reconnect=sys.argv[3] == "1")
subscription, used = client.subscribe(b"k"), client.subscribe(b"used").__enter__()
for number in range(5):
    client.publish(b"k", b"%d" % number)
client.publish(b"used", b"x")
client.sync()  # they are in this process now
client.publish(b"k", b"5")  # this one is in the kernel
iterating = iter(client)
verbs = {
    "publish": lambda: client.publish(b"k"),
    "publish of a new key": lambda: client.publish(b"new"),
    "publish_many": lambda: client.publish_many([(b"k", b"")]),
    "subscribe": lambda: client.subscribe(b"j"),
    "unsubscribe": subscription.unsubscribe,
    "sync": client.sync,
    "whoami": client.hub.whoami,
    "statistics": client.hub.statistics,
    "receive": client.receive,
    "receive with flags": lambda: client.receive(flags=64),
    "receive_many": client.receive_many,
    "iteration": lambda: next(iterating),
    "subscription": lambda: subscription.receive(),
    "a queue with messages": lambda: used.receive(),
    "iteration over it": lambda: next(iter(used)),
    "request": lambda: client.request(b"k"),
    "drain": client.drain,
}
child = os.fork()
if not child:
    for name, verb in verbs.items():
        try:
            print(name, "gave", verb(), flush=True)
        except StateError as error:
            if "fork" not in str(error):
                print(name, "says", error, flush=True)
    client.close()
    client.close()
    del client
    sys.exit()  # with all that an interpreter does at its end
assert os.waitpid(child, 0)[1] == 0
print([client.receive(timeout=10).payload for _ in range(6)], used.receive().payload, client.sync())
client.close()
"""


@pytest.mark.parametrize(("kind", "reconnect"), [("gevent", "0"), ("blocking", "1")])
def test_a_fork_cannot_use_its_parents_client(server: HubThread, address: str, kind: str, reconnect: str) -> None:
    printed = python("-c", FORKED, address, kind, reconnect)
    assert printed == "[b'0', b'1', b'2', b'3', b'4', b'5'] b'x' local\n"


FORKED_TASKS = """
import asyncio, os, sys
from sbuslib import aio
from sbuslib.errors import StateError
async def main():
    client = await aio.Client(sys.argv[1])
    await client.subscribe(b"k")
    for number in range(5):
        await client.publish(b"k", b"%d" % number)
    await client.sync()
    await client.publish(b"k", b"5")
    verbs = [
        lambda: client.publish(b"k"), lambda: client.publish_many([(b"k", b"")]), lambda: client.subscribe(b"j"),
        client.sync, client.hub.whoami,
        client.drain, lambda: client.request(b"k"), client.hub.statistics,
        client.receive, client.receive_many, lambda: anext(aiter(client)), lambda: client.__aenter__(),
    ]
    child = os.fork()
    if not child:
        for number, verb in enumerate(verbs):
            try:
                print(number, "gave", await verb(), flush=True)
            except StateError as error:
                if "fork" not in str(error):
                    print(number, "says", error, flush=True)
        client.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print([(await client.receive(timeout=10)).payload for _ in range(6)], await client.sync())
    client.close()
asyncio.run(main())
"""


def test_a_fork_cannot_use_its_parents_asyncio_client(server: HubThread, address: str) -> None:
    assert python("-c", FORKED_TASKS, address) == "[b'0', b'1', b'2', b'3', b'4', b'5'] local\n"


FORKED_WHILE_RECEIVING = """
import os, sys
import gevent, gevent.os
from sbuslib import Client
from sbuslib.errors import StateError
client = Client(sys.argv[1])
client.subscribe(b"k")
def receive():
    try:
        return client.receive().payload
    except StateError:
        return "told"
receiving = gevent.spawn(receive)
gevent.sleep(0)
child = gevent.os.fork()
if not child:
    os._exit(receiving.get(timeout=10) != "told")
assert os.waitpid(child, 0)[1] == 0
client.publish(b"k", b"x")
print(receiving.get(timeout=10))
client.close()
"""


def test_a_greenlet_that_receives_gets_an_error_in_the_child(server: HubThread, address: str) -> None:
    assert python("-c", FORKED_WHILE_RECEIVING, address) == "b'x'\n"


FORKED_BESIDE_A_THREAD = """
import os, sys, threading
from sbuslib import blocking
from sbuslib.errors import StateError
client = blocking.Client(sys.argv[1])
client.subscribe(b"k")
got = []
thread = threading.Thread(target=lambda: got.append(client.receive(timeout=20).payload))
thread.start()
while not client._connection.leadership.taken:
    pass
child = os.fork()
if not child:
    try:
        client.receive()
    except StateError:
        client.close()
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
client.publish(b"k", b"x")
thread.join()
print(got)
client.close()
"""


def test_a_fork_while_another_thread_receives(server: HubThread, address: str) -> None:
    assert python("-c", FORKED_BESIDE_A_THREAD, address) == "[b'x']\n"


# -- threads and event loops ----------------------------------------------------------------------------


VERBS: list[Callable[[Any], Any]] = [
    lambda client: client.publish(b"k", b"x"),
    lambda client: client.publish_many([(b"k", b"x")]),
    lambda client: client.subscribe(b"j"),
    lambda client: client.sync(),
    lambda client: client.receive(),
    lambda client: client.receive_many(),
    lambda client: client.close(),
]


def test_a_gevent_client_belongs_to_its_thread(server: HubThread, address: str) -> None:
    with Client(address) as client:
        client.subscribe(b"k")
        client.publish(b"k", b"0")  # a key that is known
        client.sync()
        for verb in (*VERBS, lambda client: next(iter(client))):
            error = in_thread(partial(verb, client))
            assert isinstance(error, StateError), error
            assert "thread" in str(error)
        client.publish(b"k", b"1")
        assert [client.receive(timeout=PATIENCE).payload for _ in range(2)] == [b"0", b"1"]


def test_an_asyncio_client_belongs_to_its_event_loop(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as client:
            await client.subscribe(b"k")
            await client.publish(b"k", b"0")
            await client.sync()

            async def elsewhere(verb: Callable[[aio.Client], Any]) -> object:
                return await verb(client)

            for verb in (*VERBS, lambda client: anext(aiter(client))):
                with pytest.raises(StateError, match="event loop"):
                    await asyncio.to_thread(asyncio.run, elsewhere(verb))
            with pytest.raises(StateError, match="event loop"):
                await asyncio.to_thread(client.close)
            await client.publish(b"k", b"1")
            assert [(await client.receive(timeout=PATIENCE)).payload for _ in range(2)] == [b"0", b"1"]

    asyncio.run(test())


def test_memory_of_a_client_is_bounded_by_its_buffer(server: HubThread, address: str) -> None:
    """A client that receives small messages must not use memory for the longest packet in each slot."""
    with blocking.Client(address) as client:
        client.subscribe(b"a")
        client.publish(b"a", b"x")
        client.receive(timeout=PATIENCE)
        buffer = client._connection._buffer
        client.publish(b"a", b"x" * (PACKET_BYTES - 6))
        assert len(client.receive(timeout=PATIENCE).payload) == PACKET_BYTES - 6
        assert client._connection._buffer is buffer
        assert buffer is not None
        assert len(buffer.data) < (SLOT_BYTES + 8_192) * client._connection.limits.batch
