"""A network without sockets, in which patterns run step by step: it loses messages, and has a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sbuslib.matcher import matches
from sbuslib.patterns.steps import Close, Mailbox, Open, Publish, Steps, Wait
from sbuslib.wire.packets import Message


class Party:
    """One pattern at work, as if a client carried out its steps."""

    def __init__(self, network: Network, steps: Steps[Any]) -> None:
        self.mailboxes: list[Mailbox] = []
        self.result: Any = None
        self.error: Exception | None = None
        self.ended = self.killed = False
        self._network = network
        self._steps = steps
        self._waits: Wait | None = None
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
                next(self._steps)

    def is_ready(self) -> bool:
        late = self.until is not None and self.until <= self._network.now
        return not self.ended and self._waits is not None and (self._waits.ready() or late)

    def go(self) -> None:
        assert self._waits is not None
        self._go(self._waits.ready())

    def _go(self, result: Any) -> None:
        self._waits = None
        try:
            while True:
                step = self._steps.send(result)
                result = None
                match step:
                    case Open():
                        self.mailboxes.append(step.mailbox)
                    case Close():
                        self.mailboxes.remove(step.mailbox)
                        step.mailbox.closed = True
                    case Publish():
                        self._network.publish(self, Message(step.key, step.payload))
                    case Wait():
                        self._waits = step
                        self.until = None if step.timeout is None else self._network.now + step.timeout
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

    def start(self, steps: Steps[Any]) -> Party:
        party = Party(self, steps)
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
