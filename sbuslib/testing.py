"""Helpers for tests of applications: a hub in a thread, and a recording of its messages. They need no test framework.

For pytest there are fixtures in :mod:`sbuslib.pytest_plugin`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import gevent
from gevent.event import Event

from . import blocking
from .errors import StateError
from .hub import Hub
from .kernel.defaults import temporary_folder
from .kernel.threads import unpatched
from .limits import check_seconds
from .matcher import matches
from .wire.packets import Key, Message, as_key, check_payload
from .wire.text import printable

__all__ = ["HubThread", "Recording"]

T = TypeVar("T")

_SHOWN: Final = 20
"""Messages that a failed assertion shows: the last ones, and so many characters of each:"""
_SHOWN_CHARACTERS: Final = 80


class HubThread:
    """A hub in a thread of its own: ``with HubThread() as server: ...``. Any thread may call all of this.

    :param address: where it listens; in a new temporary folder unless given.
    :param options: those of :class:`~sbuslib.hub.Hub`.
    """

    def __init__(self, address: str | None = None, **options: Any) -> None:
        # Where the socket is, unless an address was given.
        self._folder = tempfile.TemporaryDirectory(prefix="sbus-", dir=temporary_folder()) if address is None else None
        self.hub = Hub(address or os.path.join(self._folder.name if self._folder else "", "bus"), **options)
        """The hub, for :meth:`call`: its methods are for its own thread."""
        self._jobs: Any = unpatched("queue", "SimpleQueue")()  # functions to call in the hub's thread
        self._lock = unpatched("_thread", "allocate_lock")()  # held while the thread may be given a job
        self._ended = unpatched("_thread", "allocate_lock")()  # held while the thread runs
        self._thread = 0
        self._answers: set[Any] = set()  # of callers that wait

    @property
    def address(self) -> str:
        """The address at which the hub listens."""
        return self.hub.address

    def __enter__(self) -> HubThread:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the thread, once; returns when the hub listens. Raises as :meth:`sbuslib.hub.Hub.start`."""
        started = unpatched("queue", "SimpleQueue")()
        self._ended.acquire()
        unpatched("_thread", "start_new_thread")(self._run, (started,))
        error = started.get()
        if error is not None:
            raise error

    def _run(self, started: Any) -> None:
        event_loop = gevent.get_hub()
        wake = event_loop.loop.async_()
        try:
            self.hub.start()
            wake.start(self._begin_jobs)
            self._wake, self._thread = wake, unpatched("_thread", "get_ident")()
            started.put(None)
            self.hub.serve_forever()
        except BaseException as error:
            started.put(error)
        finally:
            # No caller may be left waiting for a thread that has ended.
            with self._lock:
                self._thread = 0
                wake.close()
            for answer in [*self._answers]:
                answer.put((False, StateError("the hub was stopped meanwhile")))
            event_loop.destroy(destroy_loop=True)
            self._ended.release()

    def _begin_jobs(self) -> None:
        while not self._jobs.empty():
            gevent.spawn(self._do, *self._jobs.get())

    def _do(self, function: Callable[[], Any], answer: Any) -> None:
        try:
            answer.put((True, function()))
        except BaseException as error:
            answer.put((False, error))

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the hub's thread. Returns its result, or raises its error.

        Raises :exc:`~sbuslib.errors.StateError` when the thread has ended.
        """
        if self._thread == unpatched("_thread", "get_ident")():
            return function(*arguments)

        answer = unpatched("queue", "SimpleQueue")()
        with self._lock:
            if not self._thread:
                raise StateError("the hub is not started, or was stopped")
            self._answers.add(answer)
            self._jobs.put((lambda: function(*arguments), answer))
            self._wake.send()

        done, result = answer.get()
        self._answers.discard(answer)
        if not done:
            raise result
        value: T = result
        return value

    def stop(self) -> None:
        """Stop the hub, which passes on all sent messages first, and the thread. A second call does nothing."""
        with suppress(StateError):
            self.call(self.hub.stop)
        with self._ended:
            if self._folder is not None:
                self._folder.cleanup()

    def settle(self) -> None:
        """Return when the hub has passed on all that was published before."""
        self.call(self._settle)

    def _settle(self) -> None:
        before = -1
        while before != (before := self.hub.statistics(clients=False).published):
            gevent.idle()  # until no socket can be read

    def client(self, **options: Any) -> blocking.Client:
        """Make a client of the hub, which the caller closes."""
        return blocking.Client(self.address, **options)

    def record(self, *patterns: Key) -> Recording:
        """Record new messages under keys that match one of ``patterns``; without patterns all, except secrets."""
        return self.call(Recording, self, tuple(as_key(pattern, "pattern") for pattern in patterns or (b"",)))


class Recording:
    """Messages that were published, for assertions. Any thread may use it. :meth:`HubThread.record` makes it."""

    def __init__(self, server: HubThread, patterns: tuple[bytes, ...]) -> None:
        self._server = server  # of the hub
        self._separator = server.hub.context.router.namespace.separator  # of keys
        self._patterns = patterns  # the recorded messages
        self._messages: list[Message] = []  # since the start or clear()
        self._inbox = server.hub.tap()  # everything but secrets
        self._more = Event()  # set when something was kept
        gevent.spawn(self._take)

    def _take(self) -> None:
        for message in self._inbox:
            if any(matches(pattern, message.key, self._separator) for pattern in self._patterns):
                self._messages.append(message)
                self._more.set()

    @property
    def messages(self) -> list[Message]:
        """Return all messages, with senders, since the start or :meth:`clear`."""
        with suppress(StateError):  # a hub that was stopped has passed on all
            self._server.settle()
        return [*self._messages]

    def clear(self) -> None:
        """Forget all messages published before."""
        self._server.settle()
        self._messages.clear()

    def assert_published(
        self, pattern: Key, payload: bytes | None = None, *, count: int | None = None, timeout: float = 5.0
    ) -> list[Message]:
        """Wait until a message under ``pattern`` was published, with ``payload`` if given; return all that match.

        With ``count``, exactly so many. Raises :exc:`AssertionError`, which shows the messages that were published.
        """
        __tracebackhide__ = True
        pattern, timeout = _checked(pattern, payload), check_seconds(timeout, "timeout")
        with suppress(StateError):
            self._server.call(self._wait, pattern, payload, count or 1, timeout)
        messages = self.messages
        found = self._select(messages, pattern, payload)
        if len(found) != count if count is not None else not found:
            raise AssertionError(self._explain(found, messages, pattern, payload, count, timeout))
        return found

    def assert_not_published(self, pattern: Key, payload: bytes | None = None) -> None:
        """Check that no message under ``pattern`` was published until now, with ``payload`` if given.

        Raises :exc:`AssertionError`, which shows those that were.
        """
        __tracebackhide__ = True
        pattern, messages = _checked(pattern, payload), self.messages
        found = self._select(messages, pattern, payload)
        if found:
            raise AssertionError(self._explain(found, found, pattern, payload, 0, 0))

    def _wait(self, pattern: bytes, payload: bytes | None, count: int, timeout: float) -> None:
        with suppress(TimeoutError), gevent.Timeout(timeout, TimeoutError()):
            while len(self._select(self._messages, pattern, payload)) < count:
                self._more.clear()
                self._more.wait()

    def _select(self, messages: list[Message], pattern: bytes, payload: bytes | None) -> list[Message]:
        return [
            message
            for message in messages
            if matches(pattern, message.key, self._separator) and payload in (None, message.payload)
        ]

    def _explain(
        self,
        found: list[Message],
        shown: list[Message],
        pattern: bytes,
        payload: bytes | None,
        count: int | None,
        timeout: float,
    ) -> str:
        what = f"under '{printable(pattern)}'" + ("" if payload is None else f" with payload {_short(payload)}")
        wanted = "one or more" if count is None else str(count)
        text = f"{len(found)} messages {what} were published, not {wanted}"
        text += f", within {timeout:g} s" if len(found) < (count or 1) and timeout else ""
        lost = sum(self._inbox.lost.values())
        text += f"; {lost} messages were too many at once to be recorded" if lost else ""
        if not shown:
            return f"{text}; nothing was published at all"
        lines = [f"  {_short(message.key)}  {_short(message.payload)}" for message in shown[-_SHOWN:]]
        what = f"of {len(shown)} messages the last {_SHOWN} are" if len(shown) > _SHOWN else "published were"
        return "\n".join([f"{text}; {what}:", *lines])


def _checked(pattern: Key, payload: bytes | None) -> bytes:
    if payload is not None:
        check_payload(payload)
    return as_key(pattern, "pattern")


def _short(data: bytes) -> str:
    """Return bytes as they are shown: their beginning, if they are long."""
    text = printable(data[: _SHOWN_CHARACTERS + 1])
    return f"'{text}'" if len(text) <= _SHOWN_CHARACTERS else f"'{text[:_SHOWN_CHARACTERS]}...' ({len(data):,} bytes)"
