"""The service of a queue, with workers of all three kinds, on real hubs."""

from __future__ import annotations

import asyncio
import select
import shutil
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

import pytest
from gevent import Timeout, get_hub, spawn
from gevent.event import Event
from programs import wait_until
from services.conftest import Serve, stop
from support import PATIENCE, HubThread, Peer, eventually
from worlds import OTHER, STRANGER, World

from sbuslib import Client, aio, blocking
from sbuslib.clients.recipes.queue import JOB_BYTES, Delivery, Job, Listing, QueueState, decode, encode
from sbuslib.errors import DisconnectedError, NoServerError, PayloadError, ReplyError, StateError, UsageError
from sbuslib.services import queue_rules, queue_service
from sbuslib.services.queue_rules import Jobs
from sbuslib.services.queue_service import QueueService
from sbuslib.services.queue_store import Store


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


def test_a_job_that_fails_is_given_again_and_then_is_of_the_dead_queue(server: HubThread, serve: Serve) -> None:
    service = serve(attempts=3)
    seen: list[int] = []

    def fail(job: Job) -> None:
        seen.append(job.attempt)
        raise ValueError("it fails")

    with ExitStack() as stack:
        client = stack.enter_context(blocking.Client(server.address))
        stack.enter_context(client.queue("mail").work(fail))
        undertaker = stack.enter_context(client.queue("mail-dead").take())
        publish(service, b"poison", key=b"mail/x/y")
        job = undertaker.receive(timeout=PATIENCE)
        assert (job.key, job.payload, job.attempt) == (b"mail/x/y", b"poison", 1)
        assert job.done()
        wait_until(lambda: not service.jobs.jobs)
    assert seen == [1, 2, 3]


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

    def __init__(self, address: str, key: bytes | None = None, prefetch: int = 8, peer: Peer | None = None) -> None:
        self.peer = peer or Peer(address)
        self.peer.send(b"CMSG !/cred/whoami")
        self.key = key or self.peer.receive().partition(b"\0")[2] + b"/queue/mail/me"
        if key is None:
            self.peer.subscribe(self.key)
        self.announce(prefetch)

    def announce(self, prefetch: int = 8, held: tuple[int, ...] = ()) -> None:
        self.peer.publish(b"queue/mail/work", encode((self.key, prefetch, held)))

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

        with client.queue("mail").work(work, prefetch=2):
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


def test_what_is_submitted_again_with_its_id_is_in_the_queue_once(server: HubThread, serve: Serve) -> None:
    service, collected = serve(file="q", name=b"mail*", patterns=()), Collected()
    with blocking.Client(server.address) as client:
        mail = client.queue("mail")
        mail.submit(b"mail/x", b"1", id=b"a")
        mail.submit(b"mail/x", b"1", id=b"a")
        mail.submit(b"mail/x", b"2", id=b"b")
        client.queue("mail-other").submit(b"mail/x", b"3", id=b"a")
        assert service.accepted == 3

        stop(service)
        service._store.__exit__()  # type: ignore[union-attr]
        service = serve(file="q", name=b"mail*", patterns=())
        with mail.work(collected):
            wait_until(lambda: len(service.jobs.jobs) == 1)
            mail.submit(b"mail/x", b"1", id=b"a")
            mail.submit(b"mail/x", b"4")
            wait_until(lambda: len(service.jobs.jobs) == 1)
        with pytest.raises(UsageError, match="64"):
            mail.submit(b"mail/x", id=bytes(65))
    assert collected.payloads == [b"1", b"2", b"4"]


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
        assert [row[2:4] for row in service._store.load()] == [(b"mail/x", b"1")]
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
        with pytest.raises(ReplyError, match="full"):
            client.queue("mail").submit_many([(b"mail/x", b"4"), (b"mail/x", b"5")])
        client.queue("mail").submit(b"mail/x", b"4")
        with pytest.raises(ReplyError, match="such keys"):
            client.queue("mail").submit(b"!/cred////mail/")
        for wrong in ({"delay": -1}, {"expires": 1e12}, {"priority": 10}):
            with pytest.raises(UsageError):
                client.queue("mail").submit(b"mail/x", **wrong)
        with pytest.raises(PayloadError, match="at most"):
            client.queue("mail").submit(b"mail/x", bytes(JOB_BYTES))
        with pytest.raises(NoServerError):
            client.queue("another").submit(b"mail/x")
    assert [job.payload for job in service.jobs.jobs.values()] == [b"1", b"2", b"3", b"4"]


def test_submissions_that_no_client_makes_are_refused(server: HubThread, serve: Serve) -> None:
    service = serve(jobs=10_000)
    with blocking.Client(server.address) as client:
        pair = (b"mail/x", b"")
        wrong = [([(b"mail/x", 1)],), ([pair] * 4_097,), ([pair], -1.0), ([pair], float("nan")), ([pair], 0, None, 10)]
        for payload in (b"", b"\xc1", *map(encode, wrong)):
            with pytest.raises(ReplyError, match="such keys"):
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
    service = get_hub().threadpool.apply(serve, (world.address("bus"),), {"users": None})
    client = world.client("bus")
    taken, go = list[Job](), Event()

    def work(job: Job) -> None:
        taken.append(job)
        assert go.wait(PATIENCE)

    with client.queue("mail").work(work, prefetch=1):
        client.publish(b"mail/x", b"1")
        eventually(lambda: taken)
        (job,) = taken
        (key,) = service.jobs.workers
        token, address = service.jobs.workers[key].token, service._address(b"mail")
        stranger = world.peer_of("bus", STRANGER)
        Silent("", peer=stranger, prefetch=4_096)
        for number in range(2_000):  # workers of its own, and in the name of ours
            stranger.publish(b"queue/mail/work", encode((b"%b/%d" % (key, number), 2**60, [])))
        stranger.publish(b"queue/mail/work", encode((key, 0, [])))
        for word in (
            b"",
            b"\xc1",
            encode((key, token, [job.number])),
            encode((key, token, [], [job.number], [], [], True)),
        ):
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
        eventually(lambda: [worker.prefetch for worker in service.jobs.workers.values()] == [0])
    (said,) = [record.getMessage() for record in caplog.records if "trusted" in record.getMessage()]
    assert said.endswith(f"is of user {OTHER}, who is not trusted here: see trusted=[{OTHER}] of work()")


def test_strangers_get_no_more_than_half_of_the_queue(world: World, serve: Serve) -> None:
    world.hub("bus")
    service = get_hub().threadpool.apply(serve, (world.address("bus"),), {"jobs": 10, "users": [STRANGER]})
    stranger = world.peer_of("bus", STRANGER)
    for _ in range(20):
        stranger.publish(b"mail/x", b"theirs")
    eventually(lambda: service.accepted + service.refused == 20)
    assert service.accepted == 5
    for _ in range(6):
        world.client("bus").publish(b"mail/x", b"ours")
    eventually(lambda: service.accepted + service.refused == 26)
    assert service.accepted == 10


# -- who puts jobs in, and takes them one by one --------------------------------------------------------


def test_jobs_of_other_users_are_refused_unless_they_are_named(
    world: World, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    world.hub("bus")
    service = get_hub().threadpool.apply(serve, (world.address("bus"),), {"users": [OTHER]})
    client = world.client("bus")
    with client.queue("mail").take() as worker:
        for user in (STRANGER, STRANGER, OTHER):
            world.peer_of("bus", user).publish(b"mail/x", b"of %d" % user)
        job = worker.receive(timeout=PATIENCE)
        who = client.hub.credentials_of(job.sender)
        assert (job.payload, who and who.uid) == (b"of %d" % OTHER, OTHER)
        eventually(lambda: service.refused == 2)
        world.uids["bus"] = STRANGER
        with pytest.raises(ReplyError, match=f"no jobs of user {STRANGER}: start it with --producer {STRANGER}"):
            world.client("bus").queue("mail").submit(b"mail/x")
        with pytest.raises(ReplyError, match="not trusted"):
            world.client("bus").queue("mail").purge()
        with pytest.raises(ReplyError, match="not trusted"):
            world.client("bus").queue("mail").peek()
        with pytest.raises(ReplyError, match="not trusted"):
            world.client("bus").request(b"queue/services")
        assert world.client("bus").queue("mail").status().waiting == 0
    assert [text for text in caplog.messages if "are refused" in text] == [
        f"queue mail: jobs of user {STRANGER} are refused: start it with --producer {STRANGER} if they may put jobs in"
    ]


def test_a_worker_that_takes_less_gives_back_what_it_has_not_received_beyond_that(
    server: HubThread, serve: Serve
) -> None:
    service = serve()
    with blocking.Client(server.address) as client, client.queue("mail").take(prefetch=4) as worker:
        client.queue("mail").submit_many((b"mail/x", b"%d" % number) for number in range(4))
        first = worker.receive(timeout=PATIENCE)
        wait_until(lambda: mail_states(service) == {b"mail": (0, 4)})
        worker.set_prefetch(2)
        wait_until(lambda: mail_states(service) == {b"mail": (2, 2)})
        second = worker.receive(timeout=PATIENCE)
        with pytest.raises(TimeoutError):
            worker.receive(timeout=0)
        assert ([job.payload for job in (first, second)], second.attempt) == ([b"0", b"1"], 1)
        worker._core.work.prefetch = 1  # of which the service hears later: it gives one more for this one
        assert first.done()
        wait_until(lambda: mail_states(service) == {b"mail": (2, 1)})


def test_the_state_of_a_queue_has_delayed_jobs_and_a_version_of_all_of_them(server: HubThread, serve: Serve) -> None:
    serve()
    with blocking.Client(server.address) as client:
        mail = client.queue("mail")
        for delay in (3_600, 0.1, None):
            mail.submit(b"mail/x", delay=delay)
        wait_until(lambda: mail.status().delayed == 1)
        first = mail.status()
        assert (first.waiting, first.delayed) == (3, 1)
        with mail.take(prefetch=1) as worker:
            worker.receive(timeout=PATIENCE)
            assert mail.status().version == first.version, "the jobs are the same, one of them held"
        mail.purge(number=2)
        second = mail.status().version
        mail.purge()
        assert mail.status() == QueueState()
        mail.submit(b"mail/x", delay=3_600)
        third = mail.status()
        assert third.delayed == 1
        assert len({first.version, second, third.version}) == 3


def test_a_job_that_was_on_its_way_to_a_worker_that_pauses_is_given_back_unbegun(
    server: HubThread, serve: Serve
) -> None:
    serve()
    client, other = blocking.Client(server.address), blocking.Client(server.address)
    with client, other, client.queue("mail").take(prefetch=1) as paused:
        eventually(lambda: client.queue("mail").status().workers == 1)
        paused._core.work.prefetch = 0  # of which the service hears later
        client.queue("mail").submit(b"mail/x")
        with other.queue("mail").take(prefetch=1) as worker:
            job = worker.receive(timeout=PATIENCE)
            assert not job.again
            job.done()


def test_jobs_are_ended_in_any_order_from_any_thread(server: HubThread, serve: Serve) -> None:
    service = serve(file="q")
    with blocking.Client(server.address) as client, client.queue("mail").take(prefetch=8) as worker:
        mail = client.queue("mail")
        mail.submit_many((b"mail/x", b"%d" % number) for number in range(6))
        jobs: list[Any] = []
        while len(jobs) < 6:
            jobs += worker.receive_many(timeout=PATIENCE)
        assert {job.sender for job in jobs} == {client.credentials}
        assert (client.queue("mail").status().held, mail.status().waiting) == (6, 0)
        results: list[bool] = []
        operations = (jobs[5].done, jobs[0].done, jobs[3].reject)
        threads = [threading.Thread(target=lambda verb=verb: results.append(verb())) for verb in operations]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert results == [True, True, True]
        assert not jobs[5].done(), "that was said before"
        wait_until(lambda: [*service.jobs.jobs] == [2, 3, 4, 5])
        assert jobs[1].give_back()
        again = worker.receive(timeout=PATIENCE)
        assert (again.payload, again.attempt, again.again) == (b"1", 2, True)
        assert not jobs[1].done(), "it was given again"
        assert again.done()
        wait_until(lambda: [*service.jobs.jobs] == [3, 4, 5])
        assert service.jobs.jobs[4].queue.name == b"mail-dead"
    wait_until(lambda: mail_states(service) == {b"mail": (2, 0), b"mail-dead": (1, 0)})


def test_a_descriptor_to_poll_tells_of_jobs(server: HubThread, serve: Serve) -> None:
    def is_quiet() -> bool:
        """What the service answers to the worker makes it readable, too, if there is no job in it."""
        with pytest.raises(TimeoutError):
            worker.receive(timeout=0)
        return not select.select([client], [], [], 0)[0]

    serve()
    with blocking.Client(server.address) as client, client.queue("mail").take() as worker:
        wait_until(is_quiet)
        for number in (b"1", b"2"):
            client.queue("mail").submit("mail/x", number)
            wait_until(lambda: worker._core.work.mailbox.opened)  # it has announced itself meanwhile
            assert select.select([client], [], [], PATIENCE)[0]
            assert worker.receive(timeout=0).payload == number
            wait_until(is_quiet)


def mail_states(service: QueueService) -> dict[bytes, tuple[int, int]]:
    """Jobs that wait and that are held, of each queue."""
    states = {name: queue.state(0.0) for name, queue in [*service.jobs.queues.items()]}
    return {name: (state.waiting, state.held) for name, state in states.items()}


def test_a_worker_that_pauses_gives_back_what_it_has_not_received_and_that_is_no_attempt(
    server: HubThread, serve: Serve
) -> None:
    service = serve()
    with blocking.Client(server.address) as client, client.queue("mail").take(prefetch=3) as worker:
        client.queue("mail").submit_many((b"mail/x", b"%d" % number) for number in range(3))
        first = worker.receive(timeout=PATIENCE)
        wait_until(lambda: mail_states(service) == {b"mail": (0, 3)})
        worker.pause()
        wait_until(lambda: mail_states(service) == {b"mail": (2, 1)})
        with pytest.raises(TimeoutError):
            worker.receive(timeout=0)
        assert first.done()
        for wrong in (0, 4_097):
            with pytest.raises(UsageError, match=f"prefetch is 1 to 4,096, not {wrong}"):
                worker.set_prefetch(wrong)
        worker.set_prefetch(1)
        for payload in (b"1", b"2"):
            job = worker.receive(timeout=PATIENCE)
            assert (job.payload, job.attempt, worker.prefetch) == (payload, 1, 1)
            assert job.done()
        worker.stop()
        with pytest.raises(DisconnectedError, match="stopped"):
            worker.receive()
        assert [*worker] == []
    wait_until(lambda: not service.jobs.workers)


def test_workers_of_asyncio_and_gevent_take_jobs(server: HubThread, serve: Serve) -> None:
    service = serve()

    async def main() -> None:
        async with aio.Client(server.address) as client, client.queue("mail").take() as worker:
            for number in range(3):
                await client.queue("mail").submit(b"mail/x", b"%d" % number)
            jobs = [await worker.receive(timeout=PATIENCE) for _ in range(3)]
            assert [*await asyncio.gather(jobs[2].done(), jobs[0].done())] == [True, True]
            assert await jobs[1].give_back()
            async for job in worker:
                assert (job.payload, job.attempt) == (b"1", 2)
                break

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    with Client(server.address) as client, client.queue("mail").take(prefetch=1) as worker:
        job = worker.receive(timeout=PATIENCE)
        assert (job.payload, job.attempt) == (b"1", 3)
        assert spawn(job.done).get(timeout=PATIENCE)
        eventually(lambda: not service.jobs.jobs)


def test_jobs_are_given_when_they_are_due_and_the_urgent_ones_first(server: HubThread, serve: Serve) -> None:
    service = serve(file="q")
    with blocking.Client(server.address) as client:
        mail = client.queue("mail")
        mail.submit(b"mail/x", b"never", expires=0)
        for priority in (0, 9, 3):
            mail.submit(b"mail/x", b"%d" % priority, priority=priority)
        mail.submit(b"mail/x", b"late", delay=0.1)
        wait_until(lambda: service.jobs.expired == 1)
        with mail.take(prefetch=1) as worker:
            for payload in (b"9", b"3", b"0", b"late"):
                job = worker.receive(timeout=PATIENCE)
                assert job.payload == payload
                job.done()
            wait_until(lambda: not service.jobs.jobs)


# -- many queues, and one service of each ---------------------------------------------------------------


def test_one_service_has_all_queues_that_begin_so(server: HubThread, serve: Serve) -> None:
    service = serve(name=b"app*", patterns=(), attempts=1, file="q")
    with blocking.Client(server.address) as client:
        names = [b"app", b"app.mail", b"app-%b" % (b"x" * 200)]
        for name in names:
            client.queue(name).submit(b"any/key", name)
        with pytest.raises(NoServerError):
            client.queue("other").submit(b"x")
        assert client.queue("app.new").status() == QueueState()
        for name in names:
            with client.queue(name).take() as worker:
                job = worker.receive(timeout=PATIENCE)
                assert (job.payload, client.queue(name).status().workers) == (name, 1)
                assert job.give_back()
        wait_until(lambda: [mail_states(service).get(name + b"-dead") for name in names] == [(1, 0)] * 3)
        answer = decode(Listing, client.request(b"queue/services", b"app-dead"))
        assert answer is not None
        assert not answer.more
        assert [(name, state.waiting) for name, state in answer.queues] == [
            (names[2] + b"-dead", 1),
            (b"app.mail-dead", 1),
        ]
        dead = client.queue("app.mail-dead")
        client.queue("app.mail-dead").submit(b"k", bytes(300_000))
        assert [(job.key, job.payload, job.sender) for job in dead.peek()] == [
            (b"any/key", b"app.mail", client.credentials)
        ], "as much as an answer holds"
        assert (dead.purge(number=dead.peek()[0].number), dead.purge(number=1_000), dead.purge()) == (1, 0, 1)
        assert dead.peek() == []
        assert client.queue("app.mail-dead").purge() == 0
        stop(service)
    assert service._store is not None
    service._store.__exit__()
    again = serve(name=b"app*", patterns=(), file="q")
    assert sorted(again.jobs.queues) == sorted([b"app-dead", names[2] + b"-dead"])


def test_services_with_a_name_in_common_do_not_stand_beside_each_other(server: HubThread, serve: Serve) -> None:
    serve(name=b"app*", patterns=())
    serve(name=b"mail")
    for name in (b"app", b"a*", b"*", b"application*", b"mail-dead", b"mail*"):
        younger = QueueService(server.address, name, [], Jobs(1, 1_000, 1.0, 1))
        with pytest.raises(StateError, match="already"):
            younger.run()
    with pytest.raises(UsageError):
        QueueService(server.address, b"x*", [b"pattern"], Jobs(1, 1_000, 1.0, 1))


def test_what_is_synced_later_is_there_when_the_service_was_killed(
    server: HubThread, serve: Serve, folder: str
) -> None:
    service = serve(file="q", sync=0.02)
    with blocking.Client(server.address) as client:
        client.queue("mail").submit(b"mail/x", b"1")
        for ending in ("", "-wal"):  # as the kernel has it at this moment
            shutil.copy(f"{folder}/q{ending}", f"{folder}/copy{ending}")
        assert service._store is not None
        wait_until(lambda: service._store is not None and service._store.next_sync() is None)
    with Store(f"{folder}/copy") as copy:
        assert [row[3] for row in copy.load()] == [b"1"]


def test_jobs_of_a_worker_that_is_killed_are_given_again_at_once_and_what_it_had_done_is_not(
    server: HubThread, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_rules, "GONE", 3_600.0)
    service = serve()
    program = (
        "import os, sys; from sbuslib.blocking import Client; client = Client(sys.argv[1])\n"
        "worker = client.queue('mail').take(prefetch=2)\n"
        "first, second = worker.receive(), worker.receive()\n"
        "first.done(), os.kill(os.getpid(), 9)"
    )
    with blocking.Client(server.address) as client:
        client.queue("mail").submit_many([(b"mail/x", b"1"), (b"mail/x", b"2")])
        assert subprocess.run([sys.executable, "-c", program, server.address], timeout=PATIENCE).returncode == -9
        with client.queue("mail").take() as worker:
            job = worker.receive(timeout=PATIENCE)
            assert (job.payload, job.attempt) == (b"2", 2)
            assert service.done == 1
            assert job.done()
    wait_until(lambda: not service.jobs.jobs)


def test_ends_of_workers_that_hold_jobs_are_looked_for_by_a_clock_of_their_own(
    server: HubThread, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_rules, "GONE", 3_600.0)
    monkeypatch.setattr(queue_service, "_TICK", 3_600.0)
    monkeypatch.setattr(queue_service, "_LOOKS", 1)
    service = serve()
    program = (
        "import sys; from sbuslib.blocking import Client; client = Client(sys.argv[1])\n"
        "job = client.queue('mail').take(prefetch=1).receive()\n"
        "print('it has one', flush=True), sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, server.address]
    with blocking.Client(server.address) as client, ExitStack() as stack:
        client.queue("mail").submit_many([(b"mail/x", b"%d" % number) for number in range(3)])
        pipe = subprocess.PIPE
        programs = [stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe)) for _ in range(3)]
        assert [each.stdout.readline() for each in programs if each.stdout] == [b"it has one\n"] * 3
        for each in programs:
            each.kill()

        with client.queue("mail").take(prefetch=3) as worker:
            jobs = [worker.receive(timeout=PATIENCE) for _ in range(3)]
            assert sorted((job.payload, job.attempt) for job in jobs) == [(b"0", 2), (b"1", 2), (b"2", 2)]
            assert all(job.done() for job in jobs)
        wait_until(lambda: not service.jobs.jobs)

        service.stop()
        client.publish(b"mail/x")  # ends its wait
        wait_until(lambda: not service.client.connected)
    assert service._pause() > queue_service._LOOK, "a service whose workers hold nothing does not look"


def test_an_end_that_a_new_hub_tells_of_a_worker_that_may_still_come_does_not_count(
    server: HubThread, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_rules, "GONE", 3_600.0)
    service = serve()
    with blocking.Client(server.address) as client, client.queue("mail").take() as worker:
        client.queue("mail").submit(b"mail/x", b"1")
        job = worker.receive(timeout=PATIENCE)
        stop(service)
        known = next(iter(service.jobs.workers.values()))

        service._begin_again()  # while the hub was asked
        service._gone.append((known, known.seen))
        service._let_go()
        assert known.held, "its job was given to nobody else"
        assert job.attempt == 1
