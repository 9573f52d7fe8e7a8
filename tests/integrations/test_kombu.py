"""The transport of kombu, with kombu alone and below Celery."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from accounting import acting_as
from support import PATIENCE, HubThread, eventually, python

pytest.importorskip("celery")

import kombu
import kombu.pools
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.exceptions import TaskRevokedError
from celery.signals import setup_logging
from kombu.asynchronous.hub import Hub
from kombu.exceptions import ChannelError

import sbuslib.integrations.kombu  # noqa: F401  # makes sbus:// known
from sbuslib.blocking import Client
from sbuslib.clients.recipes.queue import Job, check_name
from sbuslib.errors import NoServerError, ReplyError
from sbuslib.integrations import kombu_bus
from sbuslib.integrations.kombu_messages import Raw, decode_binding, encode
from sbuslib.integrations.kombu_names import bindings_name, exchange_key, exchange_pattern, queue_name
from sbuslib.matcher import matches
from sbuslib.services import queue_service
from sbuslib.services.queue_entries import Entry
from sbuslib.services.queue_rules import Jobs, dead_name
from sbuslib.services.queue_service import QueueService

STRANGER = 2201
WORK = kombu.Queue("work", routing_key="work")

Serve: TypeAlias = Callable[..., QueueService]
Connect: TypeAlias = Callable[..., Any]


@pytest.fixture
def serve(hub: HubThread) -> Iterator[Serve]:
    """Start the service of all queues of kombu, which is stopped after the test."""
    with ExitStack() as stack:

        def start(**options: Any) -> QueueService:
            service = QueueService(hub.address, b"kombu.*", (), Jobs(10_000, 2**26, 1e6, 100), **options)
            thread = threading.Thread(target=service.run, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(service.stop)
            return service

        yield start


@pytest.fixture
def service(serve: Serve) -> QueueService:
    return serve()


@pytest.fixture
def connect(hub: HubThread) -> Iterator[Connect]:
    """Make a connection, which is closed after the test. Each number is a process of its own, as far as it can tell."""
    with ExitStack() as stack:

        def connect(process: int = 0, **options: Any) -> Any:
            url = f"sbus://{hub.address}?timeout={PATIENCE + process}"
            return stack.enter_context(kombu.Connection(url, transport_options=options))

        yield connect


class Consumer:
    """Consumes, and keeps what comes."""

    def __init__(self, connection: Any, *queues: Any, **options: Any) -> None:
        self.connection, self.got = connection, list[Any]()
        self.consumer = kombu.Consumer(connection.channel(), [*queues], on_message=self.got.append, **options)
        self.consumer.consume()

    def take(self, number: int) -> list[Any]:
        """The next messages."""
        while len(self.got) < number:
            self.connection.drain_events(timeout=PATIENCE)
        taken, self.got[:number] = self.got[:number], []
        return taken

    def bodies(self, number: int) -> list[Any]:
        """What the next messages say. They are acknowledged."""
        return [(message.ack(), message.payload)[1] for message in self.take(number)]


def put(connection: Any, *bodies: Any, queue: Any = WORK, **options: Any) -> None:
    with connection.Producer() as producer:
        for body in bodies:
            producer.publish(body, routing_key=queue.name, declare=[queue], **options)


def waiting(connection: Any, queue: Any = WORK) -> int:
    count: int = connection.default_channel._size(queue.name)
    return count


def test_a_task_is_done_once_it_is_acknowledged_and_else_given_again(service: QueueService, connect: Connect) -> None:
    put(connect(), b"\xff bytes", b"other", b"text", serializer=None)
    first = connect(1)
    messages = Consumer(first, WORK).take(3)
    assert messages[0].body == b"\xff bytes"
    messages[1].ack()
    messages[2].requeue()
    first.close()
    again = Consumer(connect(2), WORK).take(2)
    assert [(message.body, message.delivery_info["redelivered"]) for message in again] == [
        (b"\xff bytes", True),
        (b"text", True),
    ]


def test_a_task_whose_answer_does_not_come_is_submitted_again_and_there_once(
    service: QueueService, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kombu_bus, "_ANSWERED_WITHIN", 0.3)
    answer, lost = service._answer, list[object]()

    def lose_the_first(question: Any, *arguments: Any, **options: Any) -> None:
        if question.key.endswith(b"/submit") and not lost:
            lost.append(question)
        else:
            answer(question, *arguments, **options)

    monkeypatch.setattr(service, "_answer", lose_the_first)
    put(connect(), "task")
    assert (len(lost), service.accepted) == (1, 1)


def test_what_kombu_publishes_again_after_timeouts_is_there_once(
    hub: HubThread, service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kombu_bus, "_REFUSED_WITHIN", 0.2)
    answer, lost = service._answer, list[object]()

    def lose_some(question: Any, *arguments: Any, **options: Any) -> None:
        if question.key.endswith(b"/submit") and len(lost) < 3:
            lost.append(question)
        else:
            answer(question, *arguments, **options)

    monkeypatch.setattr(service, "_answer", lose_some)
    with kombu.Connection(f"sbus://{hub.address}?timeout=0.1") as connection:
        policy = {"interval_start": 0, "max_retries": 100}
        put(connection, "task", retry=True, retry_policy=policy)
        put(connection, "task", retry=True, retry_policy=policy)
    assert (len(lost), service.accepted) == (3, 2), "two tasks, the first of which was submitted four times"


def test_the_first_declaration_of_a_process_waits_for_a_service_that_is_started_again(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[QueueService]()

    def sleep(_: float) -> None:
        started.append(serve())

    monkeypatch.setattr(kombu_bus, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    put(connect(), "task")
    assert [service.accepted for service in started] == [1]


def test_what_is_rejected_goes_to_the_dead_queue(service: QueueService, connect: Connect) -> None:
    put(connect(), 1, 2)
    consumer = Consumer(connect(), WORK)
    consumer.take(1)[0].reject()
    assert consumer.bodies(1) == [2]
    eventually(lambda: waiting(connect(), kombu.Queue("work-dead")) == 1)
    dead = connect().default_channel.basic_get("work-dead")
    assert dead.payload == 1
    dead.ack()


def test_no_more_than_the_prefetch_count_are_held_until_it_grows(service: QueueService, connect: Connect) -> None:
    put(connect(), *range(6))
    consumer = Consumer(connect(1), WORK, prefetch_count=2)
    messages = consumer.take(2)
    assert waiting(connect()) == 4
    with pytest.raises(TimeoutError):
        consumer.connection.drain_events(timeout=0)
    messages[1].ack()
    assert consumer.take(1)[0].payload == 2
    consumer.consumer.qos(prefetch_count=4)
    assert [message.payload for message in consumer.take(2)] == [3, 4]
    assert waiting(connect()) == 1


@pytest.mark.parametrize("is_blocking", [False, True])
def test_a_full_consumer_of_several_queues_leaves_the_rest_to_others(
    service: QueueService, connect: Connect, is_blocking: bool
) -> None:
    queues = [kombu.Queue(name, routing_key=name) for name in ("one", "two", "three")]
    full, idle, got, rest = connect(1), connect(2), list[Any](), list[Any]()

    def begin(message: Any) -> None:
        got.append(message)
        if is_blocking:  # as in the pool "solo", whose tasks run in here
            take_the_rest()

    def take_the_rest() -> None:
        others = Consumer(idle, *queues)
        rest.extend(others.take(2))
        for queue in queues:
            put(connect(), "late", queue=queue)
        if not is_blocking:
            with pytest.raises(TimeoutError):
                full.drain_events(timeout=0)
        rest.extend(others.take(3))

    for queue in queues:
        put(connect(), "early", queue=queue)
    with kombu.Consumer(full.channel(), queues, on_message=begin, prefetch_count=1):
        while not got:
            full.drain_events(timeout=PATIENCE)
        if not is_blocking:
            take_the_rest()
        assert sorted(message.payload for message in rest) == ["early"] * 2 + ["late"] * 3
        assert not any("redelivered" in message.delivery_info for message in rest), "they were never begun"

        for message in [*got, *rest]:
            message.ack()
        idle.release()
        is_blocking = False
        put(connect(), "last", queue=queues[2])
        while len(got) < 2:
            full.drain_events(timeout=PATIENCE)
        assert got[1].payload == "last"


def test_a_consumer_that_is_cancelled_still_acknowledges_and_others_have_the_rest(
    service: QueueService, connect: Connect
) -> None:
    put(connect(), *range(3))
    cancelled = Consumer(connect(1), WORK, prefetch_count=1)
    message = cancelled.take(1)[0]
    cancelled.consumer.cancel()
    assert Consumer(connect(2), WORK).bodies(2) == [1, 2]
    message.ack()
    cancelled.connection.close()
    assert connect().default_channel.basic_get("work") is None


def test_urgent_ones_go_first_and_what_has_expired_or_is_not_due_does_not_come(
    service: QueueService, connect: Connect
) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()
    put(connect(), "delayed", headers={"eta": soon})
    put(connect(), "expired", expiration=0)
    put(connect(), "low", priority=1, other=object())  # no such property travels
    put(connect(), "high", priority=9)
    consumer = Consumer(connect(), WORK, prefetch_count=1)
    began = time.monotonic()
    assert [*chain(*(consumer.bodies(1) for _ in range(3)))] == ["high", "low", "delayed"]
    assert time.monotonic() - began > 0.1


def test_queues_of_a_process_have_what_is_published_to_their_exchanges_and_no_service_is_needed(
    connect: Connect,
) -> None:
    kinds = {kind: kombu.Exchange(f"of {kind}", type=kind, durable=False) for kind in ("direct", "topic", "fanout")}
    bound = [("direct", "a.b"), ("topic", "a.#"), ("topic", "*.b"), ("fanout", "")]
    consumers = []
    for process, (kind, key) in enumerate(bound, 1):
        queue = kombu.Queue(f"{kind} {key}", kinds[kind], routing_key=key, auto_delete=True)
        consumers.append(Consumer(connect(process), queue, no_ack=True))
    with connect().Producer() as producer:
        for kind, exchange in kinds.items():
            for key in ("a.b", "b.b", "a.c", "a.b.c", ""):
                producer.publish(f"{kind} {key}", exchange=exchange, routing_key=key, declare=[exchange])
        for consumer in consumers:
            producer.publish("end", routing_key=consumer.consumer.queues[0].name)
    got = []
    for consumer in consumers:
        while "end" not in [message.payload for message in consumer.got]:
            consumer.connection.drain_events(timeout=PATIENCE)
        got.append([message.payload for message in consumer.got[:-1]])
    assert got == [
        ["direct a.b"],
        ["topic a.b", "topic a.c", "topic a.b.c"],
        ["topic a.b", "topic b.b"],
        ["fanout a.b", "fanout b.b", "fanout a.c", "fanout a.b.c", "fanout "],
    ]


def test_producers_that_declare_nothing_find_what_consumers_have_bound(
    hub: HubThread, service: QueueService, connect: Connect
) -> None:
    media = kombu.Exchange("media", type="topic")
    bound = [kombu.Queue(f"of {key}", media, routing_key=key) for key in ("video.#", "video.#", "*.new", "audio.*")]
    for process, queue in enumerate(bound):
        queue(connect(process).default_channel).declare()
    bound[3](connect(3).default_channel).unbind_from(media, routing_key="audio.*")
    with connect(9).Producer() as producer:
        for key in ("video.new", "audio.new", "audio.old"):
            producer.publish(key, exchange="media", routing_key=key)
    assert [waiting(connect(8), queue) for queue in bound] == [1, 1, 2, 0]
    assert Consumer(connect(9), bound[0]).bodies(1) == ["video.new"]
    bound[2](connect(2).default_channel).delete()
    with Client(hub.address) as client:
        jobs = client.queue(bindings_name("media", b"/")).peek()
    assert [decode_binding(job.payload) for job in jobs] == [("topic", "video.#", "of video.#")]


def patterns_of(hub: HubThread) -> int:
    """How many patterns the clients of the hub have, other than secret ones."""
    with Client(hub.address) as client:
        return sum(len(held.patterns) for held in client.hub.patterns())


def test_a_queue_of_a_process_that_goes_leaves_nothing_behind(hub: HubThread, connect: Connect) -> None:
    connection, fanout = connect(), kombu.Exchange("fanout", type="fanout", durable=False)
    bus, before = connection.default_channel.connection.bus, patterns_of(hub)

    def declare(name: str, **options: Any) -> Any:
        queue = kombu.Queue(name, fanout, bindings=[kombu.binding(fanout, "more")], **options)
        return queue(connection.default_channel)

    for number in range(5):
        deleted = declare(f"deleted {number}", exclusive=True)
        deleted.declare()
        deleted.delete()

        cancelled = declare(f"cancelled {number}", auto_delete=True)
        consumers = [Consumer(connect(), cancelled) for _ in range(2)]
        consumers[0].consumer.cancel()
        assert cancelled.name in bus.kept
        consumers[1].consumer.cancel()

        unbound = declare(f"unbound {number}", auto_delete=True)
        unbound.declare()
        unbound.unbind_from(fanout)
        unbound.unbind_from(fanout, routing_key="more")
        assert patterns_of(hub) == before + 1
        unbound.delete()
    assert (bus.kept, bus.state.exchanges["fanout"]["table"], bus.state.bindings) == ({}, [], {})
    assert patterns_of(hub) == before

    with connect() as other:
        kombu.Queue("exclusive", fanout, exclusive=True)(other.channel()).declare()
    assert patterns_of(hub) == before


def test_a_stored_queue_that_is_deleted_keeps_no_message_and_no_worker(service: QueueService, connect: Connect) -> None:
    put(connect(), 1, 2)
    channel = connect().channel()
    assert channel.basic_get("work").payload == 1
    channel.queue_delete("work")
    assert waiting(connect()) == 0
    assert [*service.jobs.workers] == []


def test_bindings_are_made_again_at_a_service_that_forgot_them(
    hub: HubThread, serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    first, media = serve(), kombu.Exchange("media", type="topic")
    consumer = Consumer(connect(1), kombu.Queue("video", media, routing_key="video.#"))
    with connect(2).Producer() as producer:
        producer.publish(1, exchange="media", routing_key="video.new")
        assert consumer.bodies(1) == [1]
        first.stop()
        with Client(hub.address) as client:
            eventually(lambda: client.hub.is_wanted("queue/services") is False)
        serve()
        producer.publish(2, exchange="media", routing_key="video.new")
        assert "exchange media: no queue is bound for a persistent message, which is lost" in caplog.text
        eventually(lambda: is_bound(hub, consumer))
        producer.publish(3, exchange="media", routing_key="video.new")
        assert consumer.bodies(1) == [3]


def is_bound(hub: HubThread, consumer: Consumer) -> bool:
    with suppress(TimeoutError):
        consumer.connection.drain_events(timeout=0)
    with Client(hub.address) as client:
        return bool(client.queue(bindings_name("media", b"/")).peek())


def test_a_binding_that_failed_is_made_when_it_is_declared_again(
    serve: Serve, connect: Connect, hub: HubThread
) -> None:
    queue = kombu.Queue("video", kombu.Exchange("media"), routing_key="video")
    with kombu.Connection(f"sbus://{hub.address}?timeout=0.05") as hasty:
        channel = hasty.channel()
        channel.exchange_declare("media", durable=True)
        with pytest.raises(NoServerError):
            channel.queue_bind("video", "media", "video")
        serve()
        queue(channel).declare()
    with connect(1).Producer() as producer:
        producer.publish(1, exchange="media", routing_key="video")
    assert waiting(connect(1), queue) == 1


def test_bindings_are_fetched_once_until_they_change(
    service: QueueService, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched, form = list[object](), queue_service._public_form

    def count(job: Entry) -> Job:
        fetched.append(job)
        return form(job)

    monkeypatch.setattr(queue_service, "_public_form", count)
    media, queue = kombu.Exchange("media"), kombu.Queue("video", routing_key="video")
    media(connect().default_channel).declare()
    queue(connect().default_channel).declare()
    for key, peeks in (("a", 0), ("b", 1)):
        queue(connect().default_channel).bind_to(media, routing_key=key)
        assert len(fetched) == peeks, "the second sees the first"
    with connect(1).Producer() as producer:
        for _ in range(3):
            for key in ("a", "b"):
                producer.publish(key, exchange="media", routing_key=key)
        assert (waiting(connect(1), queue), len(fetched)) == (6, 1 + 2)
        queue(connect().default_channel).unbind_from(media, routing_key="a")
        producer.publish("lost", exchange="media", routing_key="a")
    assert (waiting(connect(1), queue), len(fetched)) == (6, 1 + 2 + 2 + 1)


def test_an_exchange_refuses_more_bindings_than_one_answer_has(
    service: QueueService, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kombu_bus, "MOST_BINDINGS", 3)
    queue = kombu.Queue("video", routing_key="video")(connect().default_channel)
    queue.declare()
    with pytest.raises(ChannelError, match="exchange media: this process has not declared it"):
        queue.bind_to("media", routing_key="a")
    kombu.Exchange("media")(connect().default_channel).declare()
    for key in ("a", "b", "c"):
        queue.bind_to("media", routing_key=key)
    with pytest.raises(ChannelError, match="exchange media: it has 3 bindings to stored queues"):
        queue.bind_to("media", routing_key="d")
    monkeypatch.undo()
    with pytest.raises(ChannelError, match="exchange media: it has 3 bindings to stored queues"):
        queue.bind_to("media", routing_key="d" * 70_000)


def test_a_passive_declaration_fails_unless_the_queue_is_there(service: QueueService, connect: Connect) -> None:
    with pytest.raises(ChannelError, match="404"):
        WORK(connect().default_channel).queue_declare(passive=True)
    put(connect(1), 1)
    assert WORK(connect().default_channel).queue_declare(passive=True).message_count == 1


def test_a_queue_of_a_process_is_that_of_all_its_connections(connect: Connect) -> None:
    results = kombu.Queue("results", auto_delete=True)
    results(connect().default_channel).declare()
    put(connect(1), "low", "requeued", queue=results, priority=1, delivery_mode=1)
    put(connect(1), "high", queue=results, priority=5, delivery_mode=1)
    put(connect(1), "expired", queue=results, expiration=0)
    connect(1).default_channel.connection.bus.client.sync()  # all of them are here
    consumer = Consumer(connect(), results)
    assert consumer.bodies(2) == ["high", "low"]
    consumer.take(1)[0].requeue()
    assert consumer.bodies(1) == ["requeued"]
    with pytest.raises(TimeoutError):
        consumer.connection.drain_events(timeout=0.01)


def test_what_is_for_a_process_that_has_ended_makes_no_queue(service: QueueService, connect: Connect) -> None:
    with connect().Producer() as producer:
        producer.publish("late", routing_key="results", delivery_mode=1)
        producer.publish("to be kept", routing_key="new")
    assert [*service.jobs.queues] == [queue_name("new", b"/")]


def test_an_event_loop_is_woken_by_tasks_and_by_messages_for_other_connections(
    service: QueueService, connect: Connect
) -> None:
    loop, results = Hub(), kombu.Queue("results", auto_delete=True)
    try:
        tasks, other = Consumer(connect(), WORK, prefetch_count=1), Consumer(connect(), results)
        for consumer in (tasks, other):
            consumer.connection.register_with_event_loop(loop)
        put(connect(1), 1, 2)
        put(connect(1), 3, queue=results)
        done = list[int]()
        while len(done) < 3:
            loop.run_once()
            done += [body for consumer in (tasks, other) for body in consumer.bodies(len(consumer.got))]
        assert sorted(done) == [1, 2, 3]
    finally:
        loop.close()


def forged(body: object) -> bytes:
    info = {"exchange": "", "routing_key": "work"}
    raw: Raw = {
        "body": body,
        "content-type": None,
        "content-encoding": None,
        "headers": {},
        "properties": {"delivery_info": info},
    }
    return encode(raw)


@pytest.mark.promise("how-to/celery.md", "A task of any other user is refused")
def test_a_task_of_a_stranger_is_refused_by_the_service_and_by_workers(
    hub: HubThread, serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    serve(users=[STRANGER])
    with acting_as(STRANGER):
        stranger = Client(hub.address)
    with stranger:
        stranger.queue(queue_name("work", b"/")).submit("work", forged("forged"))
        put(connect(), "ours")
        consumer = Consumer(connect(1), WORK)
        assert consumer.bodies(1) == ["ours"]
        consumer.connection.release()
        assert f"messages of user {STRANGER} are refused" in caplog.text
        stranger.queue(queue_name("work", b"/")).submit("work", forged("allowed"))
        assert Consumer(connect(2, users=[STRANGER]), WORK).bodies(1) == ["allowed"]


def test_a_producer_of_another_user_puts_tasks_into_the_queues_that_it_declares(
    hub: HubThread, serve: Serve, connect: Connect
) -> None:
    serve(users=[STRANGER])
    queue = kombu.Queue("tasks", kombu.Exchange("tasks", type="direct"), routing_key="tasks")  # as Celery has it
    consumer = Consumer(connect(0, users=[STRANGER]), queue)
    with acting_as(STRANGER):
        web = connect(1)
        put(web, "of the web server", "once more", queue=queue, exchange="tasks", delivery_mode=2)
    assert consumer.bodies(2) == ["of the web server", "once more"]


def test_a_service_that_names_no_producers_takes_no_task_of_a_stranger(hub: HubThread, service: QueueService) -> None:
    with acting_as(STRANGER):
        stranger = Client(hub.address)
    with stranger, pytest.raises(ReplyError, match=f"no jobs of user {STRANGER}"):
        stranger.queue(queue_name("work", b"/")).submit("work", forged("forged"))


def test_what_is_no_message_ends_neither_a_worker_nor_a_reader(
    hub: HubThread, service: QueueService, connect: Connect
) -> None:
    results = kombu.Queue("results", auto_delete=True)
    consumer = Consumer(connect(), WORK, results)
    with Client(hub.address) as client:
        for payload in (b"", b"\x80", encode({"body": 1}), forged(1)[:-1]):
            client.queue(queue_name("work", b"/")).submit("work", payload)
            client.publish("kombu/queue/results", payload)
    put(connect(1), 1)
    put(connect(1), 2, queue=results)
    assert sorted(consumer.bodies(2)) == [1, 2]


def test_consumers_and_producers_go_on_after_an_outage_of_the_hub(
    hub: HubThread, service: QueueService, connect: Connect
) -> None:
    results = kombu.Queue("results", auto_delete=True)
    consumer, producer = Consumer(connect(1), WORK, results), connect()
    put(producer, 1)
    held = consumer.take(1)[0]
    hub.stop()
    with HubThread(hub.address):
        put(producer, 2)
        held.ack()
        assert consumer.bodies(1) == [2]
        put(producer, 3, queue=results)
        assert consumer.bodies(1) == [3]
        assert waiting(producer) == 0
        for connection in (consumer.connection, producer):
            connection.release()


def test_without_a_service_the_error_says_so(hub: HubThread) -> None:
    says = pytest.raises(NoServerError, match=r"no service has the queue kombu.work: start sbus queue")
    with kombu.Connection(f"sbus://{hub.address}?timeout=0.05") as connection, says:
        WORK(connection.channel()).declare()


def test_names_of_any_text_have_keys_of_their_own() -> None:
    words = ["", "a", "a.b", "a.", ".", "#", "*", "a/b", "%", "!", "ä ö", "=", "a.=", "a%2Eb"]
    for separator in (b"/", b".", b"-", b":"):
        keys = {exchange_key(name, word, separator) for name in words for word in words}
        assert len(keys) == len(words) ** 2
        assert len({queue_name(word, separator) for word in words}) == len(words)
        long = [letter * count for letter in ("x", "ж") for count in (42, 123, 200, 300, 301)]
        names = [make(name, separator) for make in (queue_name, bindings_name) for name in [*words, *long]]
        assert len({*names, *(dead_name(name, separator) for name in names)}) == 2 * len(names)
        for name in names:
            check_name(name, separator)
        for word in words:
            for kind in ("direct", "fanout"):
                assert matches(
                    exchange_pattern("x", kind, word, separator), exchange_key("x", word, separator), separator
                )
        for bound, key in (("#", "a.b"), ("a.#", "a"), ("a.*", "a.b"), ("a.b", "a.b"), ("*.b", "a.b"), ("#.b", "b")):
            assert matches(
                exchange_pattern("x", "topic", bound, separator), exchange_key("x", key, separator), separator
            )


# -- Celery ---------------------------------------------------------------------------------------------


@pytest.fixture
def app(hub: HubThread) -> Iterator[Celery]:
    """A Celery application, which leaves logging and connections as they were."""

    def set_nothing_up(**_: Any) -> None:
        """Celery then leaves logging alone."""

    setup_logging.connect(set_nothing_up)
    with Celery("tasks", broker=f"sbus://{hub.address}", backend="rpc://", set_as_current=False) as app:
        yield app
        if app.backend.result_consumer._consumer is not None:
            app.backend.result_consumer.stop()
    kombu.pools.reset()
    setup_logging.disconnect(set_nothing_up)


def test_celery_works_with_results_remote_control_and_a_time_to_begin(app: Celery, service: QueueService) -> None:
    held = list[int]()

    @app.task(shared=False)  # type: ignore[untyped-decorator]
    def add(one: int, other: int) -> int:
        held.append(sum(queue.state(0.0).held for queue in [*service.jobs.queues.values()]))
        return one + other

    with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False):
        later = add.apply_async((1, 1), countdown=0.5)
        assert add.delay(2, 3).get(timeout=PATIENCE) == 5
        assert sum(result.get(timeout=PATIENCE) for result in [add.delay(n, 1) for n in range(20)]) == 210
        assert [*app.control.ping(timeout=PATIENCE, limit=1)[0].values()] == [{"ok": "pong"}]
        assert later.get(timeout=PATIENCE) == 2
    assert held[0] <= 1, "the one that is not due is held by nobody"


def test_a_task_that_expired_in_the_queue_is_reported_to_its_caller(app: Celery, service: QueueService) -> None:
    @app.task(shared=False)  # type: ignore[untyped-decorator]
    def add(one: int, other: int) -> int:
        return one + other

    expired = add.apply_async((1, 1), expires=datetime.now(UTC) - timedelta(seconds=1))
    with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False), pytest.raises(TaskRevokedError):
        expired.get(timeout=PATIENCE)


def test_remote_control_leaves_no_patterns_behind(hub: HubThread, app: Celery, service: QueueService) -> None:
    with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False):
        assert app.control.ping(timeout=PATIENCE, limit=1)
        before = patterns_of(hub)
        for _ in range(3):
            assert app.control.ping(timeout=PATIENCE, limit=1)
        assert patterns_of(hub) == before


def test_a_child_of_a_fork_has_a_connection_of_its_own(hub: HubThread, service: QueueService) -> None:
    text = """
import os, sys, kombu, sbuslib.integrations.kombu
connection = kombu.Connection(sys.argv[1])
queue = connection.SimpleQueue("work")
queue.put("parent")
if not os.fork():
    connection.close()
    kombu.Connection(sys.argv[1]).SimpleQueue("work").put("child")
    os._exit(0)
assert os.wait()[1] == 0
got = [queue.get(timeout=20) for _ in range(2)]
print(*(message.payload for message in got))
for message in got: message.ack()
connection.close()
"""
    assert python("-c", text, f"sbus://{hub.address}") == "parent child\n"
