"""Addresses as URLs, and the client that fits the process: :func:`connect`.

Frameworks are configured by URL, make their objects before they fork, and run the same code with threads or gevent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit
from weakref import WeakSet

import msgspec

from .errors import UsageError
from .kernel.users import resolve_users
from .limits import check_seconds

if TYPE_CHECKING:
    from .clients.endpoint import Endpoint

__all__ = ["BusUrl", "Connector", "connect", "parse_url"]

SCHEME: Final = "sbus"


class BusUrl(msgspec.Struct, frozen=True):
    """``sbus://[/path/of/socket][?hub_user=USER][&timeout=SECONDS][&users=USER,...]``, parsed.

    ``address`` is *None* where the URL names none: a client then tries the default addresses. ``users`` are those from
    whom an application takes messages, besides its own user and root.
    """

    address: str | None = None
    hub_user: str | None = None
    timeout: float = 10.0
    users: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of a client."""
        return {"hub_user": self.hub_user, "timeout": self.timeout}

    def user_ids(self, more: Iterable[int | str] = ()) -> frozenset[int]:
        """Return the ids of ``users`` and ``more``. Raises :exc:`~sbuslib.errors.UsageError`."""
        return frozenset(resolve_users("users", (*self.users, *more)))


def parse_url(url: str) -> BusUrl:
    """Parse a URL. A path stands for itself. Raises :exc:`~sbuslib.errors.UsageError`."""
    # 1. The address.
    if "://" not in url:
        return BusUrl(url or None)
    parts = urlsplit(url)
    if parts.scheme != SCHEME:
        raise UsageError(f"a bus is at {SCHEME}:///path/of/socket, not at {parts.scheme}://")
    if parts.netloc:
        raise UsageError(f"a path begins with '/': {SCHEME}:///{parts.netloc}{parts.path}")

    # 2. The options.
    given: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "users":
            given[name] = (*given.get(name, ()), *filter(None, value.split(",")))
        elif name == "timeout":
            given[name] = _seconds(value)
        elif name == "hub_user":
            given[name] = value
        else:
            raise UsageError(f"an {SCHEME}:// URL takes hub_user, timeout and users, not {name!r}")
    return BusUrl(unquote(parts.path) or None, **given)


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        raise UsageError(f"timeout is a number of seconds, not {value!r}") from None
    check_seconds(seconds, "timeout")
    return seconds


def connect(url: str = "", *, threads: bool = False, **options: Any) -> Endpoint:
    """Make a client that fits the process: for gevent if it is patched, or its event loop runs here; else for threads.

    :param url: a path, or as :class:`BusUrl`.
    :param threads: whether several threads will share it: then the event loop of the calling one does not matter.
    :param options: those of :class:`sbuslib.Client`; they prevail over those of the URL.

    Raises as :class:`sbuslib.Client`.
    """
    parsed = parse_url(url)
    options = parsed.options | options
    if _is_patched() or (not threads and _runs_gevent()):
        from .client import Client

        return Client(parsed.address, **options)
    from . import blocking

    return blocking.Client(parsed.address, **options)


# Neither loads gevent.


def _is_patched() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("socket"))


def _runs_gevent() -> bool:
    """Return whether the calling thread has gevent's event loop."""
    loops = sys.modules.get("gevent._hub_local")
    return loops is not None and loops.get_hub_if_exists() is not None


class Connector:
    """A client that is made at first use, and anew in the child of a fork: for objects that are made before either.

    ::

        bus = Connector("sbus:///run/app/bus")     # when the module is imported: preload, prefork, settings

        def view(request):
            bus.client().publish("views", b"+1")   # each process has its own connection

    :param url: as for :func:`connect`.
    :param options: as for :func:`connect`. By default the client reconnects: it is the process's for good. Its
        subscriptions are not made again in the child.
    """

    def __init__(self, url: BusUrl | str = "", **options: Any) -> None:
        self._url = parse_url(url) if isinstance(url, str) else url  # of the bus
        self._options = {"reconnect": True} | self._url.options | options  # of the client
        self._lock = Lock()  # never held while waiting: greenlets of one thread may use this
        self._client: Endpoint | None = None
        self._forks = 0  # that had been when it was made
        _connectors.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process goes how it was made: that one has a client of its own."""
        return _make_again, (type(self), self._url, self._options)

    def renew_lock(self) -> None:
        """Make a new lock in the child of a fork: another thread may have held the old one."""
        self._lock = Lock()

    def client(self, *, threads: bool = False) -> Endpoint:
        """Return the client of this process. Raises as :func:`connect`, and then tries again at the next call."""
        if (client := self._made()) is not None:
            return client
        made = connect(self._url.address or "", threads=threads, **self._options)
        with self._lock:
            if (client := self._made()) is None:
                self._client, self._forks = made, _forks
                return made
        made.close()  # another caller was first
        return client

    def _made(self) -> Endpoint | None:
        return self._client if self._forks == _forks else None

    def close(self) -> None:
        """Close the client of this process, if it has one."""
        if (client := self._made()) is not None:
            client.close()
            self._client = None


def _make_again(kind: type[Connector], url: BusUrl, options: dict[str, Any]) -> Connector:
    return kind(url, **options)


_connectors: WeakSet[Connector] = WeakSet()  # all that there are
_forks = 0  # from the first process to this one: to ask the kernel who this is costs as much as to send


def _forked() -> None:
    global _forks
    _forks += 1
    for connector in _connectors:
        connector.renew_lock()


os.register_at_fork(after_in_child=_forked)
