"""Actors of a world: hubs with their relays, and clients with what they do. Each is a process, or one after another."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import gevent

from sbuslib import Client, Hub, Limits, Relay
from sbuslib.errors import SbusError
from sbuslib.matcher import matches

from . import processes
from .loop import Process
from .oracle import Holder, Oracle

PATIENCE = 20.0
"""Seconds that a verb of a client takes at most."""

RELAYS = (2201,)
"""Users whose relays may join without learning what others want."""

LOSING = frozenset({"cached_receivers", "queued_packets", "queued_bytes", "user_queued_packets", "fanout_packets"})
"""Limits beyond which messages are lost."""


class HubActor:
    """A hub, and its relay to the parent."""

    hub: Hub
    relay: Relay | None

    def __init__(self, name: str, uid: int, parent: HubActor | None, limits: Mapping[str, str], address: str) -> None:
        self.name = name
        self.uid = uid
        self.parent = parent
        numbers: dict[str, Any] = {of: float(to) if of == "turn_time" else int(to) for of, to in limits.items()}
        self.limits = Limits(**numbers)
        self.loses = bool(limits.keys() & LOSING)
        """Whether messages are lost, and told of, for want of room alone."""
        self.address = address
        self.pids: set[int] = set()
        """Of all processes that it ever was."""
        self.process: Process
        self.past: list[Process] = []
        """Those that others have taken over."""
        self.start()

    def path(self) -> list[HubActor]:
        """The hubs from the root to this one."""
        return [*(self.parent.path() if self.parent is not None else []), self]

    @property
    def mode(self) -> str:
        """How the parent serves this hub: see "Who learns what" on the page about relays."""
        assert self.parent is not None
        if self.uid in (0, self.parent.uid):
            return "announce"
        return "prune" if self.uid in RELAYS else "plain"

    def start(self) -> None:
        """Begin a process that serves."""
        self.process = processes.begin(self.name, self.uid)
        self.pids.add(self.process.pid)
        error = processes.run_in(self.process, self._serve, PATIENCE)
        assert error is None, f"{self.name} does not start: {error!r}"

    def take_over(self) -> BaseException | None:
        """Let another process take the hub over with all of its clients; its error, if it does not."""
        process = processes.begin(self.name, self.uid)
        hub = Hub(self.address, mode=0o777, relays=RELAYS, limits=self.limits, replaceable=True, take_over=True)
        error = processes.run_in(process, hub.start, PATIENCE)
        if error is not None:
            processes.loop().kill(process)
            return error
        self.past.append(self.process)
        self.process, self.hub = process, hub
        self.pids.add(process.pid)
        processes.serve(self.address, process)
        return None

    def _serve(self) -> None:
        self.hub = Hub(self.address, mode=0o777, relays=RELAYS, limits=self.limits, replaceable=True)
        self.hub.start()
        self.relay = None
        if self.parent is not None:
            self.relay = Relay(self.hub, self.parent.address).start()

    def end(self) -> BaseException | None:
        """Stop in good order."""
        return processes.run_in(self.process, self.hub.stop, PATIENCE)


class ClientActor:
    """A client, whose process does one thing after another. What it is to do meanwhile waits."""

    client: Client

    def __init__(self, name: str, uid: int, hub: HubActor, oracle: Oracle) -> None:
        self.name = name
        self.uid = uid
        self.hub = hub
        self.oracle = oracle
        self.process = processes.begin(name, uid)
        self.info = b"%d" % self.process.pid
        """Its description of itself, when it is present."""
        oracle.clients[self.info] = self
        self.is_connected = False
        self.is_gone = False
        self.was_never_stopped = True
        self.holders: dict[str, Holder] = {}
        """Subscriptions that are in force, by pattern."""
        self.subscriptions: dict[str, Any] = {}
        self.presences: dict[str, Any] = {}
        self.watches: dict[str, Any] = {}
        self.interests: dict[str, Any] = {}
        self.services: dict[str, Any] = {}
        self._tasks = deque[Callable[[], None]]()  # that wait
        self.is_busy = False  # at one of them
        self._wake = processes.spawn(self.process, self._work)
        self.do("join", self._join)

    # -- doing --------------------------------------------------------------------------------------

    def do(self, what: str, task: Callable[[], object]) -> None:
        """Do something when all that was asked for before is done. Errors of the bus are noted, and nothing more."""

        def run() -> None:
            try:
                task()
            except (SbusError, OSError, TimeoutError) as error:
                self.oracle.say(f"{self.name}: {what}: {type(error).__name__}: {error}")
            else:
                self.oracle.say(f"{self.name}: {what}")

        self._tasks.append(run)
        self._wake()

    def _work(self, wait: Callable[[], None]) -> None:
        while not self.is_gone:
            if not self._tasks:
                wait()
                continue
            self.is_busy = True
            self._tasks.popleft()()
            self.is_busy = False

    @property
    def is_idle(self) -> bool:
        return not (self.is_busy or self._tasks)

    def _join(self) -> None:
        try:
            self.client = Client(
                self.hub.address,
                senders=True,
                timeout=PATIENCE,
                reconnect=True,
                on_notice=lambda notice: self.oracle.tell(self, notice),
            )
        except (SbusError, OSError):
            self.is_gone = True
            raise
        self.is_connected = True

    def leave(self) -> None:
        if self.is_connected:
            self.client.close()
        self.is_gone = True
        self.oracle.end_of(self)

    def drop(self) -> None:
        """Lose the connection, as when a hub ends it."""
        self.oracle.drop(self)
        self.client.socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        self.is_gone = True
        self.oracle.end_of(self)
        processes.loop().kill(self.process)

    # -- verbs --------------------------------------------------------------------------------------

    def subscribe(self, pattern: str) -> None:
        if pattern in self.subscriptions:
            return
        holder = self.oracle.begin_to_hold(self, pattern.encode())
        try:
            self.subscriptions[pattern] = self.client.subscribe(
                pattern.encode(), on_message=lambda message: self.oracle.deliver(holder, message)
            )
        except BaseException:
            self.oracle.hold_no_more(holder)
            raise
        self.holders[pattern] = holder
        self.oracle.hold(holder)

    def unsubscribe(self, pattern: str) -> None:
        if pattern in self.subscriptions:
            self.oracle.hold_no_more(self.holders.pop(pattern))
            self.subscriptions.pop(pattern).unsubscribe()

    def publish(self, key: bytes) -> None:
        sent = self.oracle.begin_to_send(self, key)
        self.client.publish(key, sent.payload)
        self.oracle.send(sent)

    def secret(self) -> bytes:
        """The key under which only this client receives."""
        return self.client.hub.whoami() + b"/mail"

    def listen(self) -> None:
        self.subscribe(self.secret().decode())

    def appear(self, key: str) -> None:
        if key not in self.presences:
            self.presences[key] = self.client.presence(key.encode(), info=self.info)

    def vanish(self, key: str) -> None:
        if key in self.presences:
            self.presences.pop(key).leave()

    def watch(self, pattern: str) -> None:
        if pattern not in self.watches:
            watch = self.watches[pattern] = self.client.present(pattern.encode())
            seen: dict[object, bool] = {(member.key, member.sender): True for member in watch.members}
            for event in reversed(watch._core._watch.events):  # which are in the members already
                seen[event.member.key, event.member.sender] = not event.came
            gevent.spawn(self._see, watch, seen)

    def _see(self, watch: Any, seen: dict[object, bool]) -> None:
        """Follow a watch of presences."""
        for event in watch:
            self.oracle.see(self, event, seen)

    def unwatch(self, pattern: str) -> None:
        if pattern in self.watches:
            self.watches.pop(pattern).close()

    def ask(self, pattern: str) -> None:
        if pattern not in self.interests:
            watch = self.interests[pattern] = self.client.hub.watch_interest(pattern.encode())
            gevent.spawn(self._hear, watch)

    def _hear(self, watch: Any) -> None:
        """Follow a watch of interest."""
        last = object()
        for state in watch:
            self.oracle.hear(self, watch.pattern, last, state)
            last = state

    def unask(self, pattern: str) -> None:
        if pattern in self.interests:
            self.interests.pop(pattern).close()

    def serve(self, key: str) -> None:
        if key not in self.services:
            self.services[key] = self.client.serve(key.encode(), lambda request: self.oracle.answer(self, request))

    def end_service(self, key: str) -> None:
        if key in self.services:
            self.services.pop(key).stop()

    def request(self, key: str, timeout: float = 5.0) -> None:
        question = self.oracle.ask()
        try:
            reply = self.client.request(key.encode(), question, timeout=timeout)
        finally:
            self.oracle.end_question(question)
        self.oracle.check(reply == b"re: " + question, f"{self.name} asked {question!r} and got {reply!r}")

    def sync(self) -> None:
        holders = list(self.holders.values())
        scope = self.client.sync("tree")
        if scope == "tree" and not scope.trusted_only:
            self.oracle.know_everywhere(holders)

    def wants(self, key: bytes) -> bool:
        return any(matches(pattern.encode(), key) for pattern in self.subscriptions)
