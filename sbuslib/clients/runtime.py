"""Interface by which the callers of one client wait: greenlets, threads or tasks. Each kind of client implements it.

For tasks the coroutines here suspend. Greenlets and threads block in them, so that they never suspend, and
:func:`run` carries them out.
"""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeVar

from .leadership import Waiter, time_left

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a client that blocks its caller: it never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("a client that blocks has nothing to await")


class Runtime(ABC):
    """Runtime of one client: how its callers wait."""

    OWNER: ClassVar[str] = "the thread that made it"
    """The word for the owner of a client, in errors."""
    IN_GEVENT: ClassVar[bool] = False
    SHARES_TURNS: ClassVar[bool] = True
    """Whether callers that share a client take turns in one thread."""
    AWAITS: ClassVar[bool] = False
    """Whether functions of the application may be coroutine functions."""
    WORKERS: ClassVar[int] = 1
    """How many requests a server answers at a time by default."""

    is_begun = True
    """Whether the client may be used: with asyncio, once it was awaited."""

    def find_caller(self) -> object:
        """Return the caller's event loop, if clients of this kind belong to one."""
        return None

    def find_waiting(self) -> object:
        """Return the caller, if it is one that waits for one thing at a time, apart from signal handlers."""
        return None

    @abstractmethod
    def make_waiter(self) -> Waiter:
        """Make a waiter, with which one caller waits once."""

    def make_lock(self) -> AbstractContextManager[object]:
        """Make a lock, which a caller that holds it may take again."""
        return nullcontext()

    @abstractmethod
    async def wait(self, fd: int, events: int, timeout: float | None) -> bool:
        """Wait for ``select.POLLIN`` or ``select.POLLOUT``; ``False`` after ``timeout`` seconds."""

    async def wait_readable(self, fd: int, timeout: float) -> bool:
        return await self.wait(fd, select.POLLIN, timeout)

    async def read(self, fd: int, receive: Callable[[], bool | None], deadline: float | None) -> bool | None:
        """Wait for the connection, which one caller at a time does, and receive; ``None`` at the deadline."""
        while await self.wait(fd, select.POLLIN, time_left(deadline)):
            if (ended := receive()) is not None:
                return ended
        return None

    def let_go(self, fd: int) -> None:  # noqa: B027  # most need not
        """Stop watching the connection, which is about to be closed."""

    def interrupt(self) -> None:  # noqa: B027  # most need not
        """End :meth:`read` after the connection was shut down, where that does not notice it by itself."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    async def in_time(self, function: Callable[[Any], Any], argument: Any, until: float | None) -> Any:
        """Call a function of the application. Where that can be, it is ended at ``until``, by ``time.monotonic``."""
        return function(argument)

    @abstractmethod
    def start(self, work: Coroutine[Any, Any, None]) -> Any:
        """Run a coroutine in the background: in a greenlet, a thread or a task, which this returns."""

    @abstractmethod
    async def join(self, running: Any, timeout: float | None = None) -> None:
        """Wait for what :meth:`start` has started, unless that is the caller; not for more than ``timeout`` seconds."""
