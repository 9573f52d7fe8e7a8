"""The service of a queue, with workers of all three kinds, on real hubs."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import ExitStack
from queue import SimpleQueue

import pytest
from gevent import Timeout, get_hub
from gevent.event import Event
from programs import wait_until
from services.conftest import Serve, stop
from support import PATIENCE, HubThread, Peer, eventually
from worlds import OTHER, STRANGER, World

from sbuslib import Client, aio, blocking
from sbuslib.errors import AnswerError, NoServerError, PayloadError, StateError
from sbuslib.recipes.queue import JOB_BYTES, Delivery, Job, decode, encode
from sbuslib.services.queue_service import QueueService


def publish(service: QueueService, *payloads: bytes, key: bytes = b"mail/x") -> None:
    """Publish jobs as a plain client, and wait until they are in."""
    wanted = service.accepted + service.refused + len(payloads)
    peer = Peer(service.client.address)
    peer.socket.setblocking(True)
    with peer:
        for payload in payloads:
            peer.publish(key, payload)
        wait_until(lambda: service.accepted + service.refused == wanted)


class Collected:
    """A function for a worker that keeps what it was called with."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __call__(self, job: Job) -> None:
        self.jobs.append(job)

    @property
    def payloads(self) -> list[bytes]:
        return [job.payload for job in self.jobs]


def test_a_job_of_a_plain_client_goes_to_one_worker(server: HubThread, serve: Serve) -> None:
    service = serve()
    one, other = Collected(), Collected()
    with blocking.Client(server.address) as client, client.queue("mail").work(one), client.queue("mail").work(other):
        payloads = [b"%d" % number for number in range(100)]
        publish(service, *payloads)
        wait_until(lambda: not service.jobs.jobs)
        assert sorted(one.payloads + other.payloads) == sorted(payloads)
        assert not any(job.again for job in one.jobs + other.jobs)
        assert client.credentials in {key[: len(client.credentials)] for key in service.jobs.workers}
    wait_until(lambda: not service.jobs.workers)  # they said that they leave


def test_a_worker_of_asyncio(server: HubThread, serve: Serve) -> None:
    service = serve()
    publish(service, b"1", b"2", b"3")
    collected: list[bytes] = []

    async def work(job: Job) -> None:
        await asyncio.sleep(0)
        collected.append(job.payload)

    async def main() -> None:
        async with aio.Client(server.address) as client, client.queue("mail").work(work, at_once=2):
            while service.jobs.jobs:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert sorted(collected) == [b"1", b"2", b"3"]


def test_a_job_that_fails_is_given_again_and_then_published_as_dead(server: HubThread, serve: Serve) -> None:
    service = serve(attempts=3)
    seen: list[int] = []

    def fail(job: Job) -> None:
        seen.append(job.attempt)
        raise ValueError("it fails")

    with blocking.Client(server.address) as client, blocking.Client(server.address) as other:
        other.subscribe(b"queue/mail/dead/")
        with client.queue("mail").work(fail):
            publish(service, b"poison", key=b"mail/x/y")
            message = other.receive(timeout=PATIENCE)
            assert (message.key, message.payload) == (b"queue/mail/dead/mail/x/y", b"poison")
    assert seen == [1, 2, 3]
    wait_until(lambda: not service.jobs.jobs)


def test_a_silent_worker_is_taken_for_gone(server: HubThread, serve: Serve) -> None:
    service, collected = serve(), Collected()
    silent = Silent(server.address)
    with silent.peer:
        publish(service, b"1")
        assert silent.receive().jobs[0].attempt == 1
        with blocking.Client(server.address) as client, client.queue("mail").work(collected):
            wait_until(lambda: not service.jobs.jobs)
    assert [(job.payload, job.attempt) for job in collected.jobs] == [(b"1", 2)]


class Silent:
    """A raw worker, which says what it is told to say only."""

    def __init__(self, address: str, key: bytes | None = None, room: int = 8, peer: Peer | None = None) -> None:
        self.peer = peer or Peer(address)
        self.peer.send(b"CMSG !/cred/whoami")
        self.key = key or self.peer.receive().partition(b"\0")[2] + b"/queue/mail/me"
        if key is None:
            self.peer.subscribe(self.key)
        self.announce(room)

    def announce(self, room: int = 8, held: tuple[int, ...] = ()) -> None:
        self.peer.publish(b"queue/mail/work", encode((self.key, room, held)))

    def receive(self, *, empty: bool = False) -> Delivery:
        """The next words of the service that have jobs, or the next that have none."""
        while True:
            _, _, payload = self.peer.receive().partition(b"\0")
            word = decode(Delivery, payload)
            assert word is not None
            if bool(word.jobs) is not empty:
                return word


def test_order_is_kept_for_each_key(server: HubThread, serve: Serve) -> None:
    service = serve(ordered=True)
    done: dict[bytes, list[bytes]] = {b"mail/a": [], b"mail/b": []}

    def work(job: Job) -> None:
        if len(done[job.key]) % 3 == 2 and not job.again:
            raise ValueError("once")
        done[job.key].append(job.payload)

    payloads = [b"%d" % number for number in range(20)]
    with ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(blocking.Client(server.address))
            stack.enter_context(client.queue("mail").work(work))
        for payload in payloads:
            for key in done:
                publish(service, payload, key=key)
        wait_until(lambda: not service.jobs.jobs)
    assert done == {b"mail/a": payloads, b"mail/b": payloads}


def test_jobs_outlive_the_service_and_those_that_were_given_are_marked(server: HubThread, serve: Serve) -> None:
    service = serve(file="q")
    with blocking.Client(server.address) as client:
        begun, go = SimpleQueue[Job](), threading.Event()

        def work(job: Job) -> None:
            begun.put(job)
            assert job.payload == b"1" or go.wait(PATIENCE)

        with client.queue("mail").work(work, room=2):
            publish(service, b"1", b"2", b"3", b"4")
            done, held = begun.get(timeout=PATIENCE), begun.get(timeout=PATIENCE)
            wait_until(lambda: done.number not in service.jobs.jobs)
            stop(service)
            go.set()
        service._store.__exit__()  # type: ignore[union-attr]
        collected = Collected()
        service = serve(file="q")
        with client.queue("mail").work(collected):
            wait_until(lambda: not service.jobs.jobs)
    assert held.payload in {job.payload for job in collected.jobs if job.again}
    assert {job.payload for job in collected.jobs} == {b"1", b"2", b"3", b"4"} - {done.payload}
    assert b"4" in {job.payload for job in collected.jobs if not job.again}, "it was never given"


def test_a_full_queue_refuses_and_loses_nothing(server: HubThread, serve: Serve) -> None:
    service, collected = serve(jobs=5), Collected()
    publish(service, *(b"%d" % number for number in range(9)))
    assert (service.accepted, service.refused) == (5, 4)
    publish(service, bytes(JOB_BYTES))
    assert service.refused == 5
    with blocking.Client(server.address) as client, client.queue("mail").work(collected):
        wait_until(lambda: not service.jobs.jobs)
    assert collected.payloads == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.promise("patterns.md", "Submitting tells")
def test_a_job_is_stored_when_its_caller_is_told(server: HubThread, serve: Serve) -> None:
    service = serve(file="q", jobs=20_000)
    with blocking.Client(server.address) as client:
        client.queue("mail").submit(b"mail/x", b"1")
        assert [job.payload for job in service.jobs.jobs.values()] == [b"1"]
        assert service._store is not None
        assert [row[1:3] for row in service._store.load()] == [(b"mail/x", b"1")]
        client.queue("mail").submit_many((b"mail/y", b"%d" % number) for number in range(10_000))
        assert len(service._store.load()) == 10_001 == service.accepted


def test_jobs_are_submitted_with_all_clients(server: HubThread, serve: Serve) -> None:
    service = serve(jobs=4)

    async def main() -> None:
        async with aio.Client(server.address) as client:
            await client.queue("mail").submit(b"mail/x", b"1")
            await client.queue("mail").submit_many([(b"mail/x", b"2")])

    asyncio.run(main())
    with Client(server.address) as client:
        client.queue("mail").submit(b"mail/x", b"3")
        with pytest.raises(AnswerError, match="full"):
            client.queue("mail").submit_many([(b"mail/x", b"4"), (b"mail/x", b"5")])
        client.queue("mail").submit(b"mail/x", b"4")
        for key in (b"other", b"!/cred////mail/"):
            with pytest.raises(AnswerError, match="such keys"):
                client.queue("mail").submit(key)
        with pytest.raises(PayloadError, match="at most"):
            client.queue("mail").submit(b"mail/x", bytes(JOB_BYTES))
        with pytest.raises(NoServerError):
            client.queue("another").submit(b"mail/x")
    assert [job.payload for job in service.jobs.jobs.values()] == [b"1", b"2", b"3", b"4"]


def test_submissions_that_no_client_makes_are_refused(server: HubThread, serve: Serve) -> None:
    service = serve(jobs=10_000)
    with blocking.Client(server.address) as client:
        for payload in (b"", b"\xc1", encode(([(b"mail/x", 1)],)), encode(([(b"mail/x", b"")] * 4_097,))):
            with pytest.raises(AnswerError, match="such keys"):
                client.request(b"queue/mail/submit", payload)
        client.publish(b"queue/mail/submit", b"no question")
        client.queue("mail").submit(b"mail/x")
    assert service.accepted == 1


def test_service_and_workers_go_on_after_a_restart_of_the_hub(folder: str, serve: Serve) -> None:
    collected = Collected()
    with ExitStack() as stack:
        hub = HubThread(f"{folder}/bus").__enter__()
        service = serve()
        client = stack.enter_context(blocking.Client(hub.hub.address, reconnect=True))
        stack.enter_context(client.queue("mail").work(collected))
        publish(service, b"1")
        wait_until(lambda: not service.jobs.jobs)
        epoch = service.client.epoch
        hub.stop()
        with HubThread(f"{folder}/bus"):
            wait_until(lambda: service.client.epoch > epoch and service.client.connected)
            service.client.sync()
            publish(service, b"2", b"3")
            wait_until(lambda: not service.jobs.jobs)
            stack.close()
            stop(service)
    assert {b"1", b"2", b"3"} == set(collected.payloads)
    assert max(Counter(job.payload for job in collected.jobs if not job.again).values()) == 1


# -- several users, and trees -------------------------------------------------------------------------


def test_a_queue_over_two_relays(world: World, serve: Serve) -> None:
    world.chain("top", "middle", "low")
    world.hub("right")
    world.relay("right", "top")
    service = get_hub().threadpool.apply(serve, (world.address("middle"),))
    collected = Collected()
    with world.client("low").queue("mail").work(collected), world.client("right").queue("mail").work(collected):
        eventually(lambda: len(service.jobs.workers) == 2)
        for name in ("low", "right", "top"):
            world.client(name).publish(b"mail/x", name.encode())
        eventually(lambda: service.done == 3)
    assert sorted(collected.payloads) == [b"low", b"right", b"top"]


def test_words_of_strangers_do_nothing(world: World, serve: Serve) -> None:
    world.hub("bus")
    service = get_hub().threadpool.apply(serve, (world.address("bus"),))
    client = world.client("bus")
    taken, go = list[Job](), Event()

    def work(job: Job) -> None:
        taken.append(job)
        assert go.wait(PATIENCE)

    with client.queue("mail").work(work, room=1):
        client.publish(b"mail/x", b"1")
        eventually(lambda: taken)
        (job,) = taken
        (key,) = service.jobs.workers
        token, address = service.jobs.workers[key].token, service._address
        stranger = world.peer_of("bus", STRANGER)
        Silent("", peer=stranger, room=4_096)
        for number in range(2_000):  # workers of its own, and in the name of ours
            stranger.publish(b"queue/mail/work", encode((b"%b/%d" % (key, number), 2**60, [])))
        stranger.publish(b"queue/mail/work", encode((key, 0, [])))
        for word in (b"", b"\xc1", encode((key, token, [job.number])), encode((key, token, [], [job.number], True))):
            stranger.publish(address, word)
        forged = encode((b"!/cred////queue/mail/x", b"forged", [(99, 1, b"mail/x", b"forged")]))
        stranger.publish(key, forged)
        stranger.publish(b"mail/x", b"2")
        eventually(lambda: service.accepted == 2)
        assert [*service.jobs.workers] == [key]
        assert [*service.jobs.jobs] == [1, 2]
        go.set()
        eventually(lambda: service.done == 2)
    assert [job.payload for job in taken] == [b"1", b"2"]


def test_a_worker_of_another_user_works_if_it_is_trusted(world: World, serve: Serve) -> None:
    world.hub("bus")
    service = get_hub().threadpool.apply(serve, (world.address("bus"),), {"trusted": [STRANGER]})
    other = Silent("", peer=world.peer_of("bus", STRANGER))
    world.client("bus").publish(b"mail/x", b"1")
    word = other.receive()
    assert [job.payload for job in word.jobs] == [b"1"]
    other.peer.publish(word.key, encode((other.key, b"guessed", [1])))
    other.peer.publish(word.key, encode((other.key, word.token, [1])))
    eventually(lambda: service.done == 1)


def test_a_worker_that_is_not_trusted_has_an_error_and_the_log_says_so_once(
    world: World, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    world.hub("bus")
    service = get_hub().threadpool.apply(serve, (world.address("bus"),))
    world.uids["bus"] = STRANGER
    for _ in range(2):
        worker = world.client("bus").queue("mail").work(Collected())
        with Timeout(PATIENCE), pytest.raises(StateError, match=f"does not trust user {STRANGER}: start it with"):
            worker.wait()
    said = [record.getMessage() for record in caplog.records if "get no jobs" in record.getMessage()]
    assert said == [
        f"queue mail: workers of user {STRANGER} get no jobs: start it with --trusted {STRANGER} if they may work"
    ]
    assert service.jobs.workers == {}


def test_a_worker_that_does_not_trust_the_service_says_so_and_takes_no_jobs(
    world: World, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    world.hub("bus")
    world.uids["bus"] = OTHER
    service = get_hub().threadpool.apply(serve, (world.address("bus"),), {"trusted": [STRANGER]})
    world.uids["bus"] = STRANGER
    with world.client("bus").queue("mail").work(Collected()):
        eventually(lambda: [worker.room for worker in service.jobs.workers.values()] == [0])
    (said,) = [record.getMessage() for record in caplog.records if "trusted" in record.getMessage()]
    assert said.endswith(f"is of user {OTHER}, who is not trusted here: see trusted=[{OTHER}] of work()")


def test_strangers_get_no_more_than_half_of_the_queue(world: World, serve: Serve) -> None:
    world.hub("bus")
    service = get_hub().threadpool.apply(serve, (world.address("bus"),), {"jobs": 10})
    stranger = world.peer_of("bus", STRANGER)
    for _ in range(20):
        stranger.publish(b"mail/x", b"theirs")
    eventually(lambda: service.accepted + service.refused == 20)
    assert service.accepted == 5
    for _ in range(6):
        world.client("bus").publish(b"mail/x", b"ours")
    eventually(lambda: service.accepted + service.refused == 26)
    assert service.accepted == 10
