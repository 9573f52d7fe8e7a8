"""A world: it carries out the steps of a plan, lets all come to rest, and has the oracle judge."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import gevent

from . import processes
from .actors import ClientActor, HubActor
from .clock import START
from .loop import Loop
from .oracle import Oracle
from .outages import RECOVERY
from .plan import Plan
from .rest import check_interest, check_left, check_presences, check_rest, probe

SETTLED: Final = 30.0
"""Seconds in which nobody does anything, before the oracle compares."""

FOLDER: Final = "/proc/self/cwd"
"""Where sockets are: a name of the working directory that is the same in each world, since hubs have ids of it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a world."""

    problems: tuple[str, ...]
    events: tuple[str, ...]
    deliveries: int
    seconds: float  # that passed in it
    rounds: int  # of its loop


def play(plan: Plan) -> Report:
    """Play a world in this process, which has to be a new one, with an empty working directory."""
    Loop.prepare_world(plan.seed)
    gevent.config.loop = Loop  # type: ignore[assignment]  # its stubs name gevent's own loops
    world = _World()
    try:
        world.play(plan)
    except BaseException as error:
        traceback.print_exc()
        world.oracle.check(False, f"the world ends with {error!r}")
    oracle = world.oracle
    return Report(
        tuple(oracle.problems), tuple(oracle.events), oracle.deliveries, world.loop.clock.now - START, world.loop.rounds
    )


class _Log(logging.Handler):
    """Notes what the product logs among the events."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__()
        self._oracle = oracle

    def emit(self, record: logging.LogRecord) -> None:
        self._oracle.say(f"{processes.loop().process} logs: {record.getMessage()}")


class _World:
    def __init__(self) -> None:
        event_loop = gevent.get_hub()
        self.loop = processes.loop()
        self.oracle = Oracle(self.loop.clock)
        event_loop.print_exception = self._on_error  # type: ignore[assignment, method-assign]
        logging.getLogger("sbuslib").addHandler(_Log(self.oracle))
        logging.getLogger("sbuslib").propagate = False
        self.hubs: dict[str, HubActor] = {}
        self.clients: dict[str, ClientActor] = {}

    def _on_error(self, context: object, kind: Any, error: Any, trace: Any) -> None:
        """Somebody's greenlet or callback has failed, which is a fault of the product."""
        lines = traceback.format_exception(kind, error, trace)
        self.oracle.check(False, f"{self.loop.process}: {''.join(lines)}")

    def play(self, plan: Plan) -> None:
        for step in plan.steps:
            verb, *words = step.split()
            self.oracle.say(step)
            getattr(self, f"_{verb}")(*words)
            gevent.sleep(0)
        self._come_to_rest()

    # -- steps --------------------------------------------------------------------------------------

    def _wait(self, seconds: str) -> None:
        gevent.sleep(float(seconds))

    def _hub(self, name: str, uid: str, *rest: str) -> None:
        parents = [word for word in rest if "=" not in word]
        limits = dict(word.split("=") for word in rest if "=" in word)
        if name not in self.hubs and self.hubs.keys() >= set(parents):
            above = self.hubs[parents[0]] if parents else None
            self.hubs[name] = HubActor(name, int(uid), above, limits, f"{FOLDER}/{name}")
            self.oracle.come_back(self.hubs[name])

    def _restart(self, name: str) -> None:
        if (hub := self.hubs.get(name)) is not None and hub.process.is_dead:
            hub.start()
            self.oracle.come_back(hub)

    def _replace(self, name: str) -> None:
        if (hub := self.hubs.get(name)) is not None and hub.parent is None and not hub.process.is_dead:
            self.oracle.begin_take_over(hub)
            error = hub.take_over()
            self.oracle.end_take_over(hub)
            self.oracle.say(f"{name}: taken over" if error is None else f"{name}: not taken over: {error!r}")

    def _join(self, name: str, uid: str, hub: str) -> None:
        if name not in self.clients and hub in self.hubs:
            self.clients[name] = ClientActor(name, int(uid), self.hubs[hub], self.oracle)

    def _kill(self, name: str) -> None:
        if (client := self._living(name)) is not None:
            client.kill()
        elif (hub := self.hubs.get(name)) is not None and not hub.process.is_dead:
            self.loop.kill(hub.process)
            self.oracle.go_away(hub, is_kill=True)

    def _stop(self, name: str) -> None:
        if (client := self._living(name)) is not None:
            client.was_never_stopped = False
            client.process.is_stopped = True
        elif (hub := self.hubs.get(name)) is not None and hub.process.runs:
            hub.process.is_stopped = True
            self.oracle.go_away(hub, is_kill=False)

    def _goon(self, name: str) -> None:
        if (client := self._living(name)) is not None:
            client.process.is_stopped = False
        elif (hub := self.hubs.get(name)) is not None and hub.process.is_stopped:
            hub.process.is_stopped = False
            if not hub.process.is_dead:
                self.oracle.come_back(hub)

    def _living(self, name: str) -> ClientActor | None:
        client = self.clients.get(name)
        return client if client is not None and not client.is_gone else None

    def _let(self, name: str, verb: str, act: Callable[[ClientActor], object]) -> None:
        if (client := self._living(name)) is not None:
            client.do(verb, lambda: act(client) if client.is_connected else None)

    def _leave(self, name: str) -> None:
        self._let(name, "leave", ClientActor.leave)

    def _drop(self, name: str) -> None:
        self._let(name, "drop", ClientActor.drop)

    def _subscribe(self, name: str, pattern: str) -> None:
        self._let(name, f"subscribe {pattern}", lambda client: client.subscribe(pattern))

    def _unsubscribe(self, name: str, pattern: str) -> None:
        self._let(name, f"unsubscribe {pattern}", lambda client: client.unsubscribe(pattern))

    def _publish(self, name: str, key: str, count: str) -> None:
        for _ in range(int(count)):
            self._let(name, f"publish {key}", lambda client: client.publish(key.encode()))

    def _listen(self, name: str) -> None:
        self._let(name, "listen", ClientActor.listen)

    def _whisper(self, name: str, other: str) -> None:
        listener = self._living(other)
        secrets = [pattern for pattern in listener.subscriptions if pattern.startswith("!")] if listener else []
        if secrets:
            self._let(name, f"whisper {other}", lambda client: client.publish(secrets[-1].encode()))

    def _appear(self, name: str, key: str) -> None:
        self._let(name, f"appear {key}", lambda client: client.appear(key))

    def _vanish(self, name: str, key: str) -> None:
        self._let(name, f"vanish {key}", lambda client: client.vanish(key))

    def _watch(self, name: str, pattern: str) -> None:
        self._let(name, f"watch {pattern}", lambda client: client.watch(pattern))

    def _unwatch(self, name: str, pattern: str) -> None:
        self._let(name, f"unwatch {pattern}", lambda client: client.unwatch(pattern))

    def _ask(self, name: str, pattern: str) -> None:
        self._let(name, f"ask {pattern}", lambda client: client.ask(pattern))

    def _unask(self, name: str, pattern: str) -> None:
        self._let(name, f"unask {pattern}", lambda client: client.unask(pattern))

    def _serve(self, name: str, key: str) -> None:
        self._let(name, f"serve {key}", lambda client: client.serve(key))

    def _unserve(self, name: str, key: str) -> None:
        self._let(name, f"unserve {key}", lambda client: client.end_service(key))

    def _request(self, name: str, key: str) -> None:
        self._let(name, f"request {key}", lambda client: client.request(key))

    def _sync(self, name: str) -> None:
        self._let(name, "sync", ClientActor.sync)

    # -- rest ---------------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        # 1. Nobody is away, and everything that was begun ends.
        self.oracle.say("-- comes to rest")
        for name in (*self.hubs, *self.clients):
            self._goon(name)
        for name in self.hubs:
            self._restart(name)
        gevent.sleep(RECOVERY)
        living = [client for client in self.clients.values() if not client.is_gone]
        for client in living:
            self.oracle.check(client.is_idle, f"{client.name} is still busy")
        living = [client for client in living if client.is_idle]

        for client in living:
            check_presences(self.oracle, client, living, "before its program does anything")
            check_interest(self.oracle, client, living, "before its program does anything")

        # 2. A client that nobody waits for does not read: a barrier makes it.
        self._let_all(living, "sync", lambda client: client.client.sync())
        self._let_all(living, "sync again", lambda client: client.client.sync())
        self.oracle.say("-- at rest")
        for client in living:
            self.oracle.check(client.client.connected, f"{client.name} is not connected")
        check_rest(self.oracle, living)

        # 3. Everything arrives.
        served = {key for client in living for key in client.services}
        self._let_all(living, "probe", lambda client: probe(self.oracle, client, served))
        self._let_all(living, "sync", lambda client: client.client.sync())
        self.oracle.check_missing()
        self.oracle.check_told()

        # 4. All leave.
        self._let_all(living, "leave", ClientActor.leave)
        check_left(self.oracle, list(self.hubs.values()), list(self.clients.values()))

    def _let_all(self, clients: list[ClientActor], verb: str, act: Callable[[ClientActor], object]) -> None:
        for client in clients:
            self._let(client.name, verb, act)
        gevent.sleep(SETTLED)
