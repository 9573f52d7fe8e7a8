"""The work of a worker: which jobs it has, and what the service is still to be sent of them."""

from __future__ import annotations

from collections.abc import Callable

from clients.recipes.stepping import Stepping

from sbuslib.clients.recipes.queue import (
    Acknowledgement,
    Announcement,
    Job,
    decode,
    encode,
)
from sbuslib.clients.recipes.work import Work
from sbuslib.wire.packets import Message

OWN = b"!/cred/1/1000/7"
KEY = OWN + b"/queue/q/k"


def words(*jobs: Job, token: bytes = b"token", sender: bytes = OWN) -> Message:
    return Message(KEY, encode((OWN + b"/queue/q/s", token, jobs)), sender)


def test_a_worker_takes_jobs_once_and_forgets_those_of_an_earlier_service() -> None:
    work = Work(Stepping(), OWN, b"/", b"k", b"q", 2)
    assert work.mailbox.patterns == [KEY]
    for message in (
        words(Job(1, 1, b"a", b""), Job(1, 2, b"a", b""), Job(2, 1, b"a", b""), Job(3, 1, b"a", b"no room")),
        words(Job(4, 1, b"a", b"of a stranger"), token=b"other", sender=b"!/cred/1/1/1"),
        Message(KEY, b"\xc1", OWN),
    ):
        work.mailbox.put(message)
    assert [job and job.number for job in (work.take(), work.take(), work.take())] == [1, 2, None]
    work.mailbox.put(words(Job(9, 1, b"a", b""), token=b"new"))
    assert (job := work.take()) is not None
    assert job.number == 9
    keeping = work.keep()
    verb, key, payload = keeping.send(None)
    announced = decode(Announcement, payload)
    assert (verb, key, announced) == ("publish", b"queue/q/work", Announcement(KEY, 2, [9]))


def test_a_worker_names_jobs_that_its_application_has_not_looked_at_yet() -> None:
    work = Work(Stepping(), OWN, b"/", b"k", b"q", 2)
    work.mailbox.put(words(Job(1, 1, b"a", b"")))
    verb, _, payload = work.keep().send(None)
    assert (verb, decode(Announcement, payload)) == ("publish", Announcement(KEY, 2, [1]))
    assert work.mailbox.opened, "it is still to be taken"


def acknowledged(work: Work, work_on: Callable[[Job], object]) -> Acknowledgement | None:
    """What a worker says at the end of what is here, while the hub is away at first."""
    steps = work.run(work_on)
    assert steps.send(None)[0] == "publish"
    assert steps.throw(TimeoutError())[0] == "wait"
    work.mailbox.closed = True
    verb, _, payload = steps.send(True)
    assert verb == "publish"
    return decode(Acknowledgement, payload)


def test_what_a_worker_could_not_tell_it_tells_later() -> None:
    work = Work(Stepping(), OWN, b"/", b"k", b"q", 2)
    work.mailbox.put(words(Job(1, 1, b"a", b"")))
    assert acknowledged(work, lambda job: None) == Acknowledgement(KEY, b"token", [1], leaving=True)


def test_the_end_of_an_old_job_says_nothing_about_a_new_one_of_the_same_number() -> None:
    work = Work(Stepping(), OWN, b"/", b"k", b"q", 2)
    work.mailbox.put(words(Job(1, 1, b"a", b"old")))

    def work_on(job: Job) -> None:
        if job.payload == b"old":
            work.mailbox.put(words(Job(1, 1, b"a", b"new"), token=b"new"))
            work._read()  # as another part does
            raise ValueError

    assert acknowledged(work, work_on) == Acknowledgement(KEY, b"new", [1], leaving=True)
