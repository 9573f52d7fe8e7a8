"""A network without sockets, in which recipes run step by step: it loses messages, and has a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import Any, TypeAlias

from sbuslib.matcher import matches
from sbuslib.recipes.mailbox import Mailbox
from sbuslib.wire.packets import Message

Step: TypeAlias = tuple[Any, ...]
"""What a recipe asks of its client: the name of the verb, and its arguments."""


@coroutine
def _step(*what: Any) -> Generator[Step, Any, Any]:
    return (yield what)


class Stepping:
    """A client that carries out nothing: each verb of a recipe comes out of the coroutine as a :data:`Step`."""

    async def publish(self, key: bytes, payload: bytes = b"", /) -> None:
        await _step("publish", key, payload)

    async def post(self, key: bytes, payload: bytes, *, together: bool) -> None:
        await _step("publish", key, payload)

    async def publish_many(self, messages: Any) -> int:
        for key, payload in messages:
            await _step("publish", key, payload)
        return len(messages)

    async def sync(self, scope: str = "local") -> str:
        await _step("sync", scope)
        return scope

    async def is_wanted(self, key: bytes, *, timeout: float | None = None) -> bool | None:
        return None

    async def tell_senders(self) -> None: ...

    async def in_time(self, function: Callable[[Any], Any], argument: Any, until: float | None) -> Any:
        return function(argument)

    async def open_mailbox(self, mailbox: Mailbox) -> None:
        await _step("open", mailbox)

    async def close_mailbox(self, mailbox: Mailbox) -> None:
        await _step("close", mailbox)

    async def wait_until(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        result: bool = await _step("wait", ready, timeout)
        return result


class Party(Stepping):
    """One recipe at work, as if a client carried out its steps."""

    def __init__(self, network: Network, recipe: Callable[[Party], Coroutine[Any, Any, Any]]) -> None:
        self.mailboxes: list[Mailbox] = []
        self.result: Any = None
        self.error: Exception | None = None
        self.ended = self.killed = False
        self._network = network
        self._steps = recipe(self)
        self._waits: Callable[[], bool] | None = None
        self.until: float | None = None
        self._go(None)

    def kill(self) -> None:
        """End it as a process that is killed: it says nothing more."""
        self.ended = self.killed = True
        self.mailboxes.clear()
        self._waits = None
        with suppress(StopIteration, RuntimeError):
            self._steps.throw(RuntimeError("killed"))
            while True:  # what it would say at its end
                self._steps.send(None)

    def is_ready(self) -> bool:
        late = self.until is not None and self.until <= self._network.now
        return not self.ended and self._waits is not None and (self._waits() or late)

    def go(self) -> None:
        assert self._waits is not None
        self._go(self._waits())

    def _go(self, result: Any) -> None:
        self._waits = None
        try:
            while True:
                step = self._steps.send(result)
                result = None
                match step:
                    case ("open", mailbox):
                        self.mailboxes.append(mailbox)
                    case ("close", mailbox):
                        self.mailboxes.remove(mailbox)
                        mailbox.closed = True
                    case ("publish", key, payload):
                        self._network.publish(self, Message(key, payload))
                    case ("wait", ready, timeout):
                        self._waits = ready
                        self.until = None if timeout is None else self._network.now + timeout
                        return
                    case _:
                        raise AssertionError(step)
        except StopIteration as end:
            self.result = end.value
            self.ended = True
        except Exception as error:
            self.error = error
            self.ended = True


class Network:
    """All parties. ``loses`` is asked for each message and each party that wants it."""

    def __init__(self, loses: Callable[[Message], bool] = lambda message: False) -> None:
        self.now = 0.0
        self.loses = loses
        self.parties: list[Party] = []
        self.published: list[Message] = []

    def clock(self) -> float:
        return self.now

    def start(self, recipe: Callable[[Party], Coroutine[Any, Any, Any]]) -> Party:
        party = Party(self, recipe)
        self.parties.append(party)
        return party

    def publish(self, sender: Party, message: Message) -> None:
        self.published.append(message)
        for party in self.parties:
            for mailbox in party.mailboxes if party is not sender else ():
                if any(matches(pattern, message.key) for pattern in mailbox.patterns) and not self.loses(message):
                    mailbox.put(message)

    def run(
        self,
        choose: Callable[[list[Party]], Party] = lambda ready: ready[0],
        kill: dict[int, Party] | None = None,
    ) -> None:
        """Let parties go on, in any order, until all have ended. Time passes when all of them wait.

        :param kill: whom to kill before which step.
        """
        number = 0
        while any(not party.ended for party in self.parties):
            if (killed := (kill or {}).get(number)) is not None and not killed.ended:
                killed.kill()
                continue
            number += 1
            ready = [party for party in self.parties if party.is_ready()]
            if ready:
                choose(ready).go()
                continue
            times = [party.until for party in self.parties if not party.ended and party.until is not None]
            assert times, "all wait for ever"
            self.now = max(self.now, min(times))
