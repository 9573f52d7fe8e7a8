"""HTTP server for this machine only: on a loopback address, or on a Unix socket of this user.

Any user of this machine may connect to a loopback address, and the kernel does not name the user, so that the work
cannot be charged. So it is bounded: connections are accepted at a limited rate, each is for one request and has a time
limit, and a new one takes the place of the oldest.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from gevent import GreenletExit, Timeout, getcurrent, kill, socket, spawn_later
from gevent.pool import Pool
from gevent.pywsgi import WSGIHandler, WSGIServer

from ..errors import AddressInUseError, UsageError
from ..kernel.hosts import HostPort, is_loopback, parse_host_port

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
Application: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

_CONNECTIONS: Final = 64
"""Most connections that are served at a time. The oldest gives way to one more."""

_PAUSE: Final = 0.02
"""Seconds from one connection to the next. Each costs about a millisecond on a slow machine: 6 % of one core in all."""

_SECONDS: Final = 10.0
"""Time limit for one request and its answer; for a stream: for progress in reading."""

_QUIET = logging.getLogger("sbuslib.web")
_QUIET.addHandler(logging.NullHandler())


class _Handler(WSGIHandler):
    """Answers one request without a body. Ends a slow connection silently; gevent would print an error."""

    def read_request(self, raw_requestline: str) -> bool:  # type: ignore[override]  # the declared type is wrong
        try:
            valid = bool(super().read_request(raw_requestline))
        except TimeoutError:
            return False

        # A request with a body is refused: gevent would read the body to its end, also after the time limit.
        return valid and not self.content_length and "transfer-encoding" not in self.headers

    def handle_error(self, t: type[BaseException] | None, v: BaseException | None, tb: Any) -> None:
        if isinstance(v, TimeoutError | GreenletExit):
            self.close_connection = True
        else:
            super().handle_error(t, v, tb)


class LocalServer(WSGIServer):
    """Serves a WSGI application in greenlets, from :meth:`start` to :meth:`stop`.

    A browser may have a page of another site open, and that page may send requests here. So a request is refused unless
    its ``Host`` is a loopback name: else that site could resolve its own name to this machine and read the answers (DNS
    rebinding).

    A connection is for one request, which has no body, and ends after 10 s, unless its answer is a :meth:`stream`.

    :param address: ``HOST:PORT`` of a loopback address, port 0 for any that is free; or the path of a Unix socket,
        which only this user may connect to.

    Raises :exc:`~sbuslib.errors.UsageError` for an address that other machines can reach,
    :exc:`~sbuslib.errors.AddressError`, :exc:`~sbuslib.errors.AddressInUseError`, and :exc:`OSError`.
    """

    max_accept = 1

    def __init__(self, address: str, application: Application) -> None:
        # Of the Unix socket; None: at a loopback address.
        self._path = os.path.abspath(address) if "/" in address else None
        listener = _listen_unix(self._path) if self._path else _listen_tcp(parse_host_port(address))
        self._application = application

        # The greenlet of each connection, the oldest first, and the timer that ends it; not pending for a stream.
        self._open: dict[Any, Timeout] = {}

        super().__init__(
            listener,
            self._answer,
            spawn=Pool(),
            handler_class=_Handler,
            log=None,
            error_log=_QUIET,
            environ={"SERVER_NAME": "sbus"},
        )

    def do_handle(self, *args: Any) -> None:
        """Serve a connection, and take the next one after a pause."""
        super().do_handle(*args)
        self.stop_accepting()
        spawn_later(_PAUSE, self.accept_next)

    def accept_next(self) -> None:
        """Take the next connection, unless the server was stopped."""
        if self.started:
            self.start_accepting()

    def handle(self, sock: Any, address: Any) -> None:
        # 1. The oldest makes room: one that is not answered yet rather than a stream, which showed the token.
        if len(self._open) >= _CONNECTIONS:
            oldest = next((each for each, timer in self._open.items() if timer.pending), next(iter(self._open)))
            self._open.pop(oldest).cancel()
            kill(oldest)

        # 2. The limit is for the whole request, not only between two reads: the other end could trickle.
        me = getcurrent()
        self._open[me] = Timeout.start_new(_SECONDS, GreenletExit)
        sock.settimeout(_SECONDS)

        try:
            with suppress(TimeoutError):
                super().handle(sock, address)
        finally:
            if (timer := self._open.pop(me, None)) is not None:
                timer.close()

    def stream(self) -> None:
        """Lift the time limit of this greenlet's answer while it is read. Only after a check of the token."""
        if (timer := self._open.get(getcurrent())) is not None:
            timer.cancel()

    @property
    def url(self) -> str:
        """Address of the server: ``http://HOST:PORT/``, or ``unix:PATH``."""
        if self._path is not None:
            return f"unix:{self._path}"
        host, port = self.socket.getsockname()[:2]
        return f"http://{HostPort(host, port)}/"

    def close(self) -> None:
        super().close()
        if self._path is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            self._path = None

    def _answer(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        def start_last(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            """Allow one request for each connection, or the limited rate of connections would bound nothing."""
            return start_response(status, [*headers, ("Connection", "close")], *error)

        if environ["REQUEST_METHOD"] not in ("GET", "HEAD") or not (self._path or _is_local_name(environ)):
            start_last("403 Forbidden", [("Content-Length", "0")])
            return [b""]
        return self._application(environ, start_last)


def _is_local_name(environ: Environ) -> bool:
    """Whether a request names this machine as its host."""
    host = re.sub(r":[0-9]*\Z", "", str(environ.get("HTTP_HOST", "")))
    return host.lower() in ("127.0.0.1", "localhost", "[::1]")


def _listen_tcp(address: HostPort) -> Any:
    if not is_loopback(address.host):
        raise UsageError(f"{address}: other machines could reach it; take a loopback address, or a path")
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return _listen(listener, (address.host, address.port), str(address))


def _listen_unix(path: str) -> Any:
    _remove_stale(path)
    before = os.umask(0o177)
    try:
        return _listen(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path, path)
    finally:
        os.umask(before)


def _listen(listener: Any, address: Any, name: str) -> Any:
    try:
        listener.bind(address)
        listener.listen(_CONNECTIONS)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(f"{name}: another program listens there") from None
        raise
    return listener


def _remove_stale(path: str) -> None:
    """Remove the file of a socket without a listener."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.lstat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:
            pass
