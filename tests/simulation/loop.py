"""An event loop for gevent in virtual time, in which many processes are simulated whose order is drawn from a seed.

A :class:`Process` has what an event loop has: callbacks, timers, and watchers of sockets. Each round of the loop is the
round of one process, chosen at random from those that have something to do: its callbacks in their order, then its
expired timers and ready sockets, in any order. When nobody has anything to do, time goes on to the next timer. Sockets
are real: without threads the kernel answers the same each time.

Whatever a greenlet or a callback makes belongs to its process. So a process can be stopped (it has no rounds), and
killed (it never has any again, and its sockets are closed).
"""

from __future__ import annotations

import heapq
import select
from collections import deque
from collections.abc import Callable
from itertools import count
from math import inf
from random import Random
from types import TracebackType
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

import greenlet
from gevent.hub import Waiter

from . import clock

READ, WRITE = 1, 2
"""Events of gevent's watchers of sockets."""

ROUND_COSTS: Final = (0.0, 1e-6, 1e-5, 1e-4)
"""Seconds, one of which a round takes."""

MOST_ROUNDS: Final = 300_000
"""Rounds after which a world is given up: somebody spins."""

_POLLED = {READ: select.POLLIN, WRITE: select.POLLOUT, READ | WRITE: select.POLLIN | select.POLLOUT}
_ENDED = select.POLLHUP | select.POLLERR


class Callback:
    """What gevent holds of a callback that will run: it may stop it."""

    __slots__ = ("args", "callback")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.callback: Callable[..., Any] | None = callback  # until it begins
        self.args: tuple[Any, ...] | None = args  # until it has run

    @property
    def pending(self) -> bool:
        return self.callback is not None

    def __bool__(self) -> bool:
        return self.args is not None

    def stop(self) -> None:
        self.callback = self.args = None

    close = stop


class Process:
    """What one simulated process has in the loop."""

    def __init__(self, name: str, pid: int, uid: int) -> None:
        self.name = name
        self.pid = pid
        self.uid = uid
        self.is_dead = False
        self.is_stopped = False
        self.sockets: list[Any] = []
        """Those that it has made, and not closed when somebody last looked."""
        self.callbacks: deque[Callback] = deque()
        self.timers: list[tuple[float, int, int, Timer]] = []  # a heap: when, which came first, which start of it
        self.watchers: dict[Watcher, None] = {}  # that are active
        self.iteration = 0  # how many rounds it has had
        self.alone: tuple[Io, Timer] | None = None
        """While its only thread waits without gevent: for this socket, at most until this timer."""

    @property
    def runs(self) -> bool:
        return not (self.is_dead or self.is_stopped)

    def may_call(self) -> bool:
        """Whether it has a callback to run."""
        return bool(self.callbacks) and self.alone is None

    def next_timer(self) -> float | None:
        """The time of its next timer."""
        if self.alone is not None:
            return self.alone[1].at
        while self.timers and self.timers[0][2] != self.timers[0][3].starts:
            heapq.heappop(self.timers)  # stopped, or started again
        return self.timers[0][0] if self.timers else None

    def __repr__(self) -> str:
        return self.name


class Watcher:
    """A watcher as gevent knows it. One of this very class is called when :meth:`send` is."""

    def __init__(self, loop: Loop, ref: bool = True, priority: int | None = None) -> None:
        self.loop = loop
        self.ref = ref
        self.priority = priority or 0
        self.process = loop.process
        self.callback: Callable[..., Any] | None = None  # while it is active
        self.args: tuple[Any, ...] = ()  # of the callback
        self.pending = False  # gevent asks

    @property
    def active(self) -> bool:
        return self in self.process.watchers

    def start(self, callback: Callable[..., Any], *args: Any, pass_events: bool = False, update: bool = True) -> None:
        if callback is None:
            raise TypeError("callback must be callable")
        self.callback, self.args = callback, args
        if not self.active:
            self.process.watchers[self] = None
            self._begin()

    def stop(self) -> None:
        if self.process.watchers.pop(self, self) is None:
            self._end()
        self.callback, self.args = None, ()

    def close(self) -> None:
        self.stop()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def send(self) -> None:
        self.loop.run_callback(self.fire)

    def send_ignoring_arg(self, _: object) -> None:
        self.send()

    def feed(self, events: int, callback: Callable[..., Any], *args: Any) -> None:
        self.loop.run_callback(callback, *args)

    def fire(self, events: int = 0) -> None:
        if self.callback is None:
            return
        args = self.args
        if args and type(args[0]).__name__ == "_EVENTSType":  # gevent's mark for "the events go here"
            args = (events, *args[1:])
        self.loop.call(self.callback, args)

    def _begin(self) -> None:
        """Begin to watch."""

    def _end(self) -> None:
        """Watch no more."""


class Timer(Watcher):
    def __init__(
        self, loop: Loop, after: float = 0.0, repeat: float = 0.0, ref: bool = True, priority: int | None = None
    ) -> None:
        super().__init__(loop, ref, priority)
        self.after, self.repeat = max(0.0, after), repeat
        self.starts = 0  # how often it was started or stopped: one in the heap counts only if it is the last
        self.at = 0.0  # when it expires

    def _begin(self) -> None:
        self._set(self.after)

    def _end(self) -> None:
        self.starts += 1

    def _set(self, delay: float) -> None:
        self.starts += 1
        self.at = self.loop.clock.now + delay
        heapq.heappush(self.process.timers, (self.at, next(self.loop.counter), self.starts, self))

    def again(self, callback: Callable[..., Any], *args: Any, update: bool = True) -> None:
        self.callback, self.args = callback, args
        self.process.watchers[self] = None
        self._set(self.repeat or self.after)

    def expire(self) -> None:
        """Fire; it is not active any more then, unless it repeats."""
        if self.repeat:
            self._set(self.repeat)
        else:
            self.starts += 1
            self.process.watchers.pop(self, None)
        self.fire()


class Io(Watcher):
    def __init__(self, loop: Loop, fd: int, events: int, ref: bool = True, priority: int | None = None) -> None:
        super().__init__(loop, ref, priority)
        self.fd, self.events = fd, events

    def _begin(self) -> None:
        self.loop.sockets.add(self)

    def _end(self) -> None:
        self.loop.sockets.remove(self)


class Sockets:
    """The watched sockets of all processes. A descriptor is that of one process."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._watchers: dict[int, list[Io]] = {}  # by descriptor

    def add(self, watcher: Io) -> None:
        self._watchers.setdefault(watcher.fd, []).append(watcher)
        self._register(watcher.fd)

    def remove(self, watcher: Io) -> None:
        self._watchers[watcher.fd].remove(watcher)
        self._register(watcher.fd)

    def _register(self, fd: int) -> None:
        events = 0
        for watcher in self._watchers[fd]:
            events |= watcher.events
        if events:
            self._poll.register(fd, _POLLED[events])
        else:
            del self._watchers[fd]
            self._poll.unregister(fd)

    def ready(self) -> dict[Process, list[tuple[Io, int]]]:
        """The watchers whose sockets are ready now, and for what, by process."""
        found: dict[Process, list[tuple[Io, int]]] = {}
        for fd, polled in self._poll.poll(0):
            for watcher in self._watchers[fd]:
                if watcher.process.alone is not None and watcher is not watcher.process.alone[0]:
                    continue
                assert not polled & select.POLLNVAL, f"{watcher.process} watches descriptor {fd}, which is closed"
                read = READ if polled & (select.POLLIN | _ENDED) else 0
                write = WRITE if polled & (select.POLLOUT | _ENDED) else 0
                if events := (read | write) & watcher.events:
                    found.setdefault(watcher.process, []).append((watcher, events))
        return found

    def is_ready(self, watcher: Io) -> bool:
        """Whether it is ready still, after others had their turn."""
        poll = select.poll()
        poll.register(watcher.fd, _POLLED[watcher.events])
        return bool(poll.poll(0))


class Loop:
    """gevent's event loop. :meth:`prepare_world` says with which seed the next one runs."""

    MAXPRI, MINPRI = 2, -2
    starting_timer_may_update_loop_time = False
    approx_timer_resolution = 0.0
    default = True
    WatcherType = Watcher

    clock: ClassVar[clock.Clock]
    seed: ClassVar[int]

    def __init__(self, flags: object = None, default: object = None) -> None:
        self.order = Random(f"{self.seed} order")  # who goes next
        self.counter = count()  # of timers: those for the same time come in the order of their starts
        self.sockets = Sockets()
        self.world = Process("world", 0, 0)
        """The process of whoever plays the world: what belongs to no simulated one."""
        self.processes = [self.world]
        """All that were ever begun."""
        self.rounds = 0
        """How many there were."""
        self.error_handler: Any = None  # gevent's hub, which prints errors
        self._at_hand = self.world  # whose round this is
        self._homes: WeakKeyDictionary[Any, Process] = WeakKeyDictionary()  # of greenlets
        self._homes[greenlet.getcurrent()] = self.world
        self._ends = False  # whether run has to return

    # -- processes ----------------------------------------------------------------------------------

    @classmethod
    def prepare_world(cls, seed: int) -> None:
        cls.seed, cls.clock = seed, clock.begin(seed)

    def add(self, process: Process) -> None:
        self.processes.append(process)

    @property
    def process(self) -> Process:
        """The process that runs: that of the greenlet, or of the callback."""
        running = greenlet.getcurrent()
        return self._homes.get(running, self._at_hand)

    def adopt(self, owned: Any, process: Process) -> None:
        """Let a greenlet belong to a process."""
        self._homes[owned] = process

    def greenlets_of(self, process: Process) -> list[Any]:
        """Its greenlets that have not ended."""
        return [one for one, home in list(self._homes.items()) if home is process and not one.dead]

    def kill(self, process: Process) -> None:
        """End a process as ``kill -9`` does: nothing of it runs any more, and the kernel closes its sockets."""
        process.is_dead = True
        for watcher in list(process.watchers):
            watcher.stop()
        for sock in process.sockets:
            sock.close()

    def wait_alone(self, fd: int, timeout: float | None) -> bool:
        """Wait until a socket can be read, as a process does that waits without gevent: nothing else of it runs."""
        process = self.process
        waiter: Any = Waiter()
        readable, timer = self.io(fd, READ), self.timer(inf if timeout is None else timeout)
        process.alone = readable, timer
        readable.start(waiter.switch, True)
        timer.start(waiter.switch, False)
        try:
            return bool(waiter.get())
        finally:
            process.alone = None
            readable.close()
            timer.close()

    # -- what gevent asks for -----------------------------------------------------------------------

    def io(self, fd: int, events: int, ref: bool = True, priority: int | None = None) -> Io:
        return Io(self, fd, events, ref, priority)

    def timer(self, after: float, repeat: float = 0.0, ref: bool = True, priority: int | None = None) -> Timer:
        return Timer(self, after, repeat, ref, priority)

    def idle(self, ref: bool = True, priority: int | None = None) -> Timer:
        return Timer(self, 0.0, 0.0, ref, self.MINPRI)

    def _other(self, *_: object, ref: bool = True, priority: int | None = None, **__: object) -> Watcher:
        return Watcher(self, ref, priority)

    signal = prepare = check = fork = async_ = child = stat = _other

    def run_callback(self, function: Callable[..., Any], *args: Any) -> Callback:
        callback = Callback(function, args)
        self._home_of(function).callbacks.append(callback)
        return callback

    run_callback_threadsafe = run_callback

    def _home_of(self, function: Callable[..., Any]) -> Process:
        """The process of a callback: that of its watcher or of the greenlet to which it switches; else the one here."""
        owner = getattr(function, "__self__", None)
        if isinstance(owner, Watcher):
            return owner.process
        if not isinstance(owner, greenlet.greenlet):
            owner = getattr(owner, "greenlet", None)  # of gevent's Waiter
        if not isinstance(owner, greenlet.greenlet):
            return self.process
        if owner not in self._homes:
            self._homes[owner] = self.process  # it was just made
        return self._homes[owner]

    @property
    def iteration(self) -> int:
        return self.process.iteration

    def now(self) -> float:
        return self.clock.now

    def update_now(self) -> None:
        """Time goes on by itself."""

    update = update_now

    def handle_error(
        self, context: object, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        getattr(self.error_handler, "handle_error", self.error_handler)(context, kind, error, trace)

    def install_sigchld(self) -> None:
        """Nobody has children."""

    def break_(self, how: object = None) -> None:
        self._ends = True

    def _format(self) -> str:
        return "simulated"

    def destroy(self) -> bool:
        return True

    # -- rounds -------------------------------------------------------------------------------------

    def run(self, nowait: bool = False, once: bool = False) -> None:
        """Give rounds to processes until nothing can happen any more."""
        self._ends = False
        while not self._ends:
            if self.rounds > MOST_ROUNDS:
                raise SystemExit(f"this world has had {MOST_ROUNDS:,} rounds, and does not come to its end")
            ready = self.sockets.ready()
            able = [one for one in self.processes if one.runs and (one.may_call() or one in ready or self._is_due(one))]
            if able:
                chosen = self.order.choice(able)
                self._give_round(chosen, ready.get(chosen, []))
            elif not self._go_to_next_timer():
                return

    def _is_due(self, process: Process) -> bool:
        at = process.next_timer()
        return at is not None and at <= self.clock.now

    def _go_to_next_timer(self) -> bool:
        """Let time pass until somebody has something to do; ``False``: nobody ever will."""
        times = [at for one in self.processes if one.runs and (at := one.next_timer()) not in (None, inf)]
        if times:
            self.clock.now = max(self.clock.now, min(times))
        return bool(times)

    def _give_round(self, process: Process, sockets: list[tuple[Io, int]]) -> None:
        self.rounds += 1
        process.iteration += 1
        self._at_hand = process
        try:
            self._run_callbacks(process)
            ready: list[tuple[Watcher, int]] = [*sockets]
            if process.alone is not None and self._is_due(process):
                ready.append((process.alone[1], process.alone[1].starts))
            while process.alone is None and self._is_due(process):
                _, _, start, timer = heapq.heappop(process.timers)
                ready.append((timer, start))
            self._fire(process, ready)
        finally:
            self._at_hand = self.world
        self.clock.now += self.order.choice(ROUND_COSTS)

    def _run_callbacks(self, process: Process) -> None:
        """Run those that were there when the round began, in their order, which gevent guarantees."""
        for _ in range(len(process.callbacks)):
            if not (process.may_call() and process.runs):
                return
            callback = process.callbacks.popleft()
            function, callback.callback = callback.callback, None
            if function is not None and callback.args is not None:
                self.call(function, callback.args)
                callback.args = None

    def _fire(self, process: Process, ready: list[tuple[Watcher, int]]) -> None:
        """Fire watchers, those of a higher priority first; some a round later, as if they had become ready after it."""
        alone = process.alone
        self.order.shuffle(ready)
        ready.sort(key=lambda entry: -entry[0].priority)
        now = self.order.randint(1, len(ready)) if ready else 0
        for position, (watcher, what) in enumerate(ready):
            if isinstance(watcher, Timer):
                if what != watcher.starts:
                    continue
                if position >= now or not process.runs or process.alone is not alone:
                    heapq.heappush(process.timers, (self.clock.now, next(self.counter), what, watcher))
                else:
                    watcher.expire()
            elif position < now and process.runs and process.alone is alone and watcher.active:
                assert isinstance(watcher, Io)
                if self.sockets.is_ready(watcher):
                    watcher.fire(what)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            function(*args)
        except BaseException as error:
            self.handle_error(None, type(error), error, error.__traceback__)
