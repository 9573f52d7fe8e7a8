"""A client without a connection, for tests that carry out what a recipe asks of it step by step."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import coroutine
from typing import Any

from sbuslib.clients.recipes.mailbox import Mailbox, Posted, WatchedKey
from sbuslib.clients.watching import InterestWatch


@coroutine
def _step(*what: Any) -> Generator[tuple[Any, ...], Any, Any]:
    return (yield what)


class Stepping:
    """A client that carries out nothing: each verb of a recipe comes out of the coroutine, with its arguments."""

    epoch = 1

    def deadline(self, timeout: float | None) -> float | None:
        return timeout

    def remaining(self, until: float | None, most: float | None = None) -> float | None:
        return until

    def limit(self, until: float | None = None) -> float | None:
        return until

    async def publish(self, key: bytes, payload: bytes = b"", /) -> None:
        await _step("publish", key, payload)

    async def post(self, key: bytes, payload: bytes, *, together: bool, until: float | None = None) -> Posted:
        await _step("publish", key, payload)
        return Posted()

    def tell(self, key: bytes, payload: bytes) -> None: ...

    async def confirm(self, scope: str, deadline: float | None) -> str:
        await _step("sync", scope)
        return scope

    async def is_wanted(self, key: bytes, *, timeout: float | None = None, until: float | None = None) -> bool | None:
        return None

    def begin_watch(self, key: bytes) -> WatchedKey:
        return InterestWatch(key)

    def end_watch(self, watch: Any) -> None: ...

    def ask_for_senders(self) -> None: ...

    async def in_time(self, function: Callable[[Any], Any], argument: Any, until: float | None) -> Any:
        return function(argument)

    async def open_mailbox(self, mailbox: Mailbox, *, until: float | None = None) -> None:
        await _step("open", mailbox)

    async def close_mailbox(self, mailbox: Mailbox, *, until: float | None = None) -> None:
        await _step("close", mailbox)

    async def wait_until(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        result: bool = await _step("wait", ready, timeout)
        return result
