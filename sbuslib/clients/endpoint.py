"""The face of the clients that block their caller: each verb carries out the coroutine of the same name."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from ..kernel.vectors import ONE_PACKET_FLAGS
from ..limits import PACKET_BYTES
from ..wire.packets import Key, Message
from .face import ClientFace
from .fd_publishers import AioDescriptorExchange, AioFileExchange, AioFrameExchange
from .fd_subscriptions import AioDescriptors, AioFiles, AioFrames, Descriptor
from .fds.memory import Frame
from .fds.transfers import ReceivedFile
from .handles import AioService, AioSubscription, Subscribed
from .hub_view import AioHubView, Offers
from .job_queue import AioHeldJob, AioJobQueue, AioWorker, AnyHeldJob
from .operations import Operations
from .present import AioInterest, AioPresence, AioPresent, AioWatch
from .recipes.work import DONE, FAILED, REJECTED
from .runtime import run
from .watching import PresenceEvent, Present

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
T = TypeVar("T")


def blocking(verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """A method that carries out the coroutine method of this name of ``self._core``."""
    name = verb.__name__

    def carry_out(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = run(getattr(self._core, name)(*args, **kwargs))
        return result

    update_wrapper(carry_out, verb)
    return carry_out


def making(
    face: Callable[[C], R], verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, C]]
) -> Callable[Concatenate[Any, P], R]:
    """As :func:`blocking`, for a method that makes an object, which blocks its caller, too."""

    def carry_out(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return face(run(verb(self._core, *args, **kwargs)))

    update_wrapper(carry_out, verb)
    return carry_out


class _Part:
    """An object that blocks its caller, and carries out what its core does."""

    def __init__(self, core: Any) -> None:
        self._core = core  # the object for asyncio


class _Face(_Part):
    """Handle of an operation."""

    wait = blocking(AioService.wait)

    def __enter__(self) -> Self:
        run(self._core.__aenter__())
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        run(self._core.__aexit__(kind, error, trace))


class _Subscribed(_Face, Generic[T]):
    _core: Subscribed[T]
    unsubscribe = blocking(Subscribed.unsubscribe)

    @property
    def patterns(self) -> tuple[bytes, ...]:
        """The patterns of the subscription. A secret one changes with the credentials of the client."""
        return self._core.patterns

    @property
    def lost(self) -> dict[str, int]:
        """Messages that were lost, and things that cannot be fetched, by cause: see :class:`~sbuslib.Subscription`."""
        return self._core.lost

    @property
    def closed(self) -> bool:
        """Whether it has ended. Earlier messages can still be received."""
        return self._core.closed

    def receive(self, *, timeout: float | None = None) -> T:
        """The next one, oldest first.

        Raises :exc:`TimeoutError` after ``timeout`` seconds, and :exc:`~sbuslib.errors.DisconnectedError` when the
        subscription was taken back or the connection ended, and nothing is left. Raises
        :exc:`~sbuslib.errors.DescriptorError` for a frame, a descriptor or a file that cannot be had, which is counted
        in
        :attr:`lost`; call again for the next.
        """
        return run(self._core.receive(timeout=timeout))

    def __iter__(self) -> Iterator[T]:
        """Yield messages as they come, until the subscription has ended or the client is closed.

        Raises :exc:`~sbuslib.errors.DisconnectedError` when the hub closes the connection.
        """
        while (found := run(self._core.next())) is not None:
            yield found


class ClientSubscription(_Subscribed[Message]):
    __doc__ = AioSubscription.__doc__
    receive_many = blocking(AioSubscription.receive_many)
    add = blocking(AioSubscription.add)
    remove = blocking(AioSubscription.remove)

    _core: AioSubscription

    def __init__(self, core: AioSubscription) -> None:
        super().__init__(core)
        self._take = core.take  # the quick way while something is here

    def matched(self, key: Key) -> tuple[bytes, ...]:
        return self._core.matched(key)

    matched.__doc__ = AioSubscription.matched.__doc__

    def receive(self, *, timeout: float | None = None) -> Message:
        return self._take() or super().receive(timeout=timeout)

    receive.__doc__ = AioSubscription.receive.__doc__

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the subscription is taken back or the client closed.

        Raises :exc:`~sbuslib.errors.DisconnectedError` when the hub closes the connection.
        """
        while (message := self._take() or run(self._core.next())) is not None:
            yield message


class Frames(_Subscribed[Frame]):
    __doc__ = AioFrames.__doc__


class Descriptors(_Subscribed[Descriptor]):
    __doc__ = AioDescriptors.__doc__


class Files(_Subscribed[ReceivedFile]):
    __doc__ = AioFiles.__doc__

    _core: AioFiles


class Service(_Face):
    __doc__ = AioService.__doc__

    stop = blocking(AioService.stop)


class HeldJob(AnyHeldJob):
    __doc__ = AioHeldJob.__doc__

    def done(self) -> bool:
        """It is done, and forgotten."""
        return run(self._end(DONE))

    def give_back(self) -> bool:
        """It is to be given again, now and to anybody."""
        return run(self._end(FAILED))

    def reject(self) -> bool:
        """Nobody can do it: it goes to the queue of dead jobs at once."""
        return run(self._end(REJECTED))


class Worker(Service):
    __doc__ = AioWorker.__doc__

    _core: AioWorker
    set_prefetch = blocking(AioWorker.set_prefetch)
    pause = blocking(AioWorker.pause)

    @property
    def prefetch(self) -> int:
        """How many jobs it takes at once; 0 while it pauses."""
        return self._core.prefetch

    @property
    def ready(self) -> bool:
        """Whether something is here for :meth:`receive`: a job, or a message of the service."""
        return self._core.ready

    @property
    def service(self) -> bytes:
        return self._core.service

    service.__doc__ = AioWorker.service.__doc__

    def receive(self, *, timeout: float | None = None) -> HeldJob:
        return HeldJob(self._core.work, run(self._core.take(timeout)))

    receive.__doc__ = AioWorker.receive.__doc__

    def receive_many(self, *, most: int | None = None, timeout: float | None = None) -> list[HeldJob]:
        """At least one job, and all others that are here, up to ``most``. Raises as :meth:`receive`.

        With ``timeout=0``, all that are here, which may be none.
        """
        return [HeldJob(self._core.work, job) for job in run(self._core.take_many(most, timeout))]

    def __iter__(self) -> Iterator[HeldJob]:
        """Jobs as they come, until the worker is stopped or the client closed."""
        while (job := run(self._core.next())) is not None:
            yield HeldJob(self._core.work, job)


class JobQueue(_Part):
    __doc__ = AioJobQueue.__doc__

    submit = blocking(AioJobQueue.submit)
    submit_many = blocking(AioJobQueue.submit_many)
    status = blocking(AioJobQueue.status)
    peek = blocking(AioJobQueue.peek)
    purge = blocking(AioJobQueue.purge)
    retry = blocking(AioJobQueue.retry)
    work = making(Service, AioJobQueue.work)
    take = making(Worker, AioJobQueue.take)


class FrameExchange(_Part):
    __doc__ = AioFrameExchange.__doc__

    publish = blocking(AioFrameExchange.publish)
    subscribe = making(Frames, AioFrameExchange.subscribe)


class DescriptorExchange(_Part):
    __doc__ = AioDescriptorExchange.__doc__

    publish = blocking(AioDescriptorExchange.publish)
    subscribe = making(Descriptors, AioDescriptorExchange.subscribe)


class FileExchange(_Part):
    __doc__ = AioFileExchange.__doc__

    send = blocking(AioFileExchange.send)
    receive = making(Files, AioFileExchange.receive)


class HeldPresence(_Part):
    __doc__ = AioPresence.__doc__

    _core: AioPresence
    leave = blocking(AioPresence.leave)

    @property
    def key(self) -> bytes:
        """Under which it is present."""
        return self._core.key

    @property
    def info(self) -> bytes:
        """Its own description, for others."""
        return self._core.info

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class _Watch(_Part, Generic[T]):
    _core: AioWatch[T]
    close = blocking(AioWatch.close)

    @property
    def pattern(self) -> bytes:
        """The watched pattern."""
        return self._core.pattern

    @property
    def missed(self) -> int:
        """Events that were forgotten: of more than 65,536 that nobody took, the oldest."""
        return self._core.missed

    def receive(self, *, timeout: float | None = None) -> T:
        return run(self._core.receive(timeout=timeout))

    receive.__doc__ = AioWatch.receive.__doc__

    def __iter__(self) -> Iterator[T]:
        """Events as they come, until it is ended or the client closed."""
        while (event := run(self._core.next())) is not None:
            yield event[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WatchedInterest(_Watch["bool | None"]):
    __doc__ = AioInterest.__doc__

    _core: AioInterest

    @property
    def wanted(self) -> bool | None:
        """How it was when this client received last."""
        return self._core.wanted


class PresentMembers(_Watch[PresenceEvent]):
    __doc__ = AioPresent.__doc__

    _core: AioPresent

    @property
    def members(self) -> list[Present]:
        """The present ones at the last receive, in the order in which the hub learned of them."""
        return self._core.members

    @property
    def is_whole(self) -> bool:
        """Whether the hub knew all of its tree when it listed them. Else a link was away, or a hub has just begun."""
        return self._core.is_whole


class HubView(Offers):
    __doc__ = AioHubView.__doc__

    def __init__(self, core: AioHubView) -> None:
        super().__init__(core.session)
        self._core = core

    whoami = blocking(AioHubView.whoami)
    is_wanted = blocking(AioHubView.is_wanted)
    watch_interest = making(WatchedInterest, AioHubView.watch_interest)
    statistics = blocking(AioHubView.statistics)
    clients = blocking(AioHubView.clients)
    patterns = blocking(AioHubView.patterns)
    links = blocking(AioHubView.links)
    why = blocking(AioHubView.why)
    reload = blocking(AioHubView.reload)


class Endpoint(ClientFace):
    """The operations of :class:`sbuslib.Client`, which describes the parameters, and
    :class:`sbuslib.blocking.Client`.
    """

    def _begin(self) -> None:
        run(self._connection.open())

    def publish(self, key: Key, payload: bytes = b"", *, flags: int = 0) -> None:
        if type(payload) is bytes and not flags:
            # The quick way for keys that were used before: nothing is checked but the length.
            try:
                packet = self._headers[key] + payload
                if len(packet) <= PACKET_BYTES:
                    self._connection.socket.send(packet, ONE_PACKET_FLAGS)
                    return
            except (KeyError, TypeError, OSError):
                pass
        run(self._core.publish(key, payload, flags=flags))

    publish.__doc__ = Operations.publish.__doc__

    def receive(self, *, timeout: float | None = None, flags: int = 0) -> Message:
        if not flags:
            # The quick way while something is here: nothing has to be waited for.
            try:
                return self._inbox.popleft()
            except IndexError:
                pass
        return run(self._core.receive(timeout=timeout, flags=flags))

    receive.__doc__ = Operations.receive.__doc__

    publish_many = blocking(Operations.publish_many)
    subscribe = making(ClientSubscription, Operations.subscribe)
    receive_many = blocking(Operations.receive_many)
    request = blocking(Operations.request)
    request_many = blocking(Operations.request_many)
    serve = making(Service, Operations.serve)
    presence = making(HeldPresence, Operations.presence)
    present = making(PresentMembers, Operations.present)
    last = blocking(Operations.last)
    sync = blocking(Operations.sync)
    drain = blocking(Operations.drain)

    def queue(self, name: Key) -> JobQueue:
        return JobQueue(self._core.queue(name))

    queue.__doc__ = Operations.queue.__doc__

    @property
    def frames(self) -> FrameExchange:
        """To publish buffers of any size, and to subscribe to them."""
        return FrameExchange(AioFrameExchange(self._core))

    @property
    def descriptors(self) -> DescriptorExchange:
        """To publish open files, pipes and sockets, and to subscribe to them."""
        return DescriptorExchange(AioDescriptorExchange(self._core))

    @property
    def files(self) -> FileExchange:
        """To send files of any size, and to receive them."""
        return FileExchange(AioFileExchange(self._core))

    @property
    def hub(self) -> HubView:
        """The hub: its features, and requests to it."""
        return HubView(AioHubView(self._core))

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until :meth:`close`. Leaving the loop loses nothing.

        Raises :exc:`~sbuslib.errors.DisconnectedError` when the hub closes the connection.
        """
        while True:
            self._connection.check_caller()
            try:
                message: Message | None = self._inbox.popleft()
            except IndexError:
                message = run(self._core.next())
            if message is None:
                return
            yield message

    def close(self) -> None:
        """Close the connection. Earlier messages are still delivered.

        In the child of a fork, the parent's connection stays open.
        """
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
