"""What others handed out is closed by few threads, and stays open behind what does not close."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
from support import eventually

from sbuslib.kernel import closers, descriptors
from sbuslib.kernel.closers import MOST_KEPT, MOST_THREADS, STUCK_SECONDS, close_later, is_behind
from sbuslib.kernel.descriptors import close_elsewhere


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What a close waits for; the piles are those of a new process."""
    before, closers._closers = closers._closers, closers._Closers()
    event = threading.Event()
    yield event
    event.set()
    eventually(lambda: not closers._closers._piles)
    assert closers._closers._kept == 0, "nothing is kept open"
    closers._closers = before


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


def test_a_user_whose_descriptors_do_not_close_takes_one_thread_and_no_others(stuck: threading.Event) -> None:
    threads = set[int]()

    def wait() -> None:
        threads.add(threading.get_ident())
        stuck.wait()

    pipe, other = os.pipe(), os.pipe()
    for _ in range(100):
        close_later(5, wait, 1)
    close_elsewhere(list(pipe), 5)
    close_elsewhere(list(other), 6)
    eventually(lambda: threads and not is_open(other[0]) and not is_open(other[1]))
    assert len(threads) == 1
    assert is_open(pipe[0]), "it waits behind the others"
    stuck.set()
    eventually(lambda: not is_open(pipe[0]) and not is_open(pipe[1]))


def test_all_strangers_together_have_few_threads_and_our_own_user_has_one(stuck: threading.Event) -> None:
    begun = list[int]()

    def wait(user: int) -> None:
        begun.append(user)
        stuck.wait()

    for user in range(100, 100 + 2 * MOST_THREADS):
        close_later(user, lambda user=user: wait(user), 1)  # type: ignore[misc]
    eventually(lambda: len(begun) == MOST_THREADS)
    pipe = os.pipe()
    close_elsewhere(list(pipe), os.geteuid())
    eventually(lambda: not is_open(pipe[0]) and not is_open(pipe[1]))
    assert len(begun) == MOST_THREADS
    stuck.set()
    eventually(lambda: len(begun) == 2 * MOST_THREADS)


def test_a_user_is_behind_while_much_of_it_is_kept_open_or_a_close_takes_long(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_later(5, stuck.wait, MOST_KEPT)
    close_later(6, stuck.wait, 1)
    assert (is_behind(5), is_behind(6), is_behind(7)) == (True, False, False)
    monkeypatch.setattr(closers, "monotonic", lambda: time.monotonic() + 2.0)
    assert (is_behind(6), is_behind(7)) == (True, False)
    close_later(os.geteuid(), stuck.wait, 1)
    assert not is_behind(os.geteuid())
    monkeypatch.setattr("resource.getrlimit", lambda _: (2 * MOST_KEPT, 0))
    assert is_behind(7), "half of all files are kept open"
    assert not is_behind(os.geteuid())


def test_what_no_thread_can_be_started_for_stays_open_until_the_next_try(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never closed in the thread that serves."""

    def fail(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(closers, "in_a_thread", fail)
    first, second = os.pipe(), os.pipe()
    close_elsewhere(list(first), 5)
    assert is_open(first[0])
    monkeypatch.undo()
    close_elsewhere(list(second), 6)
    eventually(lambda: not any(map(is_open, first + second)))


def test_the_child_of_a_fork_has_no_closers(stuck: threading.Event) -> None:
    close_later(5, stuck.wait, MOST_KEPT)
    child = os.fork()
    if not child:
        pipe = os.pipe()
        descriptors.close_elsewhere([pipe[0]], 5)
        while is_open(pipe[0]):
            time.sleep(0.001)
        os._exit(is_behind(5))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_close_that_takes_long_is_told_from_many_that_do_not(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, begun = [100.0], threading.Event()
    monkeypatch.setattr(closers, "monotonic", lambda: now[0])

    def pass_time() -> None:
        now[0] += 10 * STUCK_SECONDS

    def wait() -> None:
        begun.set()
        stuck.wait()

    close_later(5, pass_time, 1)
    close_later(5, wait, 1)
    eventually(begun.is_set)
    assert not is_behind(5), "this one has only begun"
    now[0] += 1.5 * STUCK_SECONDS
    assert is_behind(5)
