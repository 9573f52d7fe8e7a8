"""HTTP servers that no other machine can reach: on a loopback address, or on a Unix socket of this user."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from gevent import socket
from gevent.pool import Pool
from gevent.pywsgi import WSGIHandler, WSGIServer

from ..errors import AddressInUseError, UsageError
from ..kernel.hosts import HostPort, is_loopback, parse_host_port

__all__ = ["Application", "Environ", "LocalServer", "StartResponse"]

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
Application: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

_CONNECTIONS: Final = 64
"""Most connections that are served at a time; others wait."""

_STALLED: Final = 30.0
"""Seconds after which a connection ends that neither asks nor reads: any user of this machine may connect."""

_QUIET = logging.getLogger("sbuslib.web")
_QUIET.addHandler(logging.NullHandler())


class _Handler(WSGIHandler):
    """Ends a stalled connection without a word; gevent would print each as an error."""

    def read_request(self, raw_requestline: str) -> bool:  # type: ignore[override]  # the declared type is wrong
        try:
            return bool(super().read_request(raw_requestline))
        except TimeoutError:
            return False

    def handle_error(self, t: type[BaseException] | None, v: BaseException | None, tb: Any) -> None:
        if isinstance(v, TimeoutError):
            self.close_connection = True
        else:
            super().handle_error(t, v, tb)


class LocalServer(WSGIServer):
    """Serves a WSGI application in greenlets, from :meth:`start` to :meth:`stop`.

    A page of another site that a browser has open may send requests here. So requests are refused whose ``Host`` is
    no loopback name: else such a site could have its own name resolved to this machine and read the answers.

    :param address: ``HOST:PORT`` of a loopback address, port 0 for any that is free; or the path of a Unix socket,
        which only this user may connect to.

    Raises :exc:`~sbuslib.errors.UsageError` for an address that other machines can reach,
    :exc:`~sbuslib.errors.AddressError`, :exc:`~sbuslib.errors.AddressInUseError`, and :exc:`OSError`.
    """

    def __init__(self, address: str, application: Application) -> None:
        self._path = os.path.abspath(address) if "/" in address else None
        listener = _listen_unix(self._path) if self._path else _listen_tcp(parse_host_port(address))
        self._application = application
        super().__init__(
            listener,
            self._answer,
            spawn=Pool(_CONNECTIONS),
            handler_class=_Handler,
            log=None,
            error_log=_QUIET,
            environ={"SERVER_NAME": "sbus"},
        )

    def handle(self, sock: Any, address: Any) -> None:
        sock.settimeout(_STALLED)
        with suppress(TimeoutError):
            super().handle(sock, address)

    @property
    def url(self) -> str:
        """Where the server answers: ``http://HOST:PORT/``, or ``unix:PATH``."""
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
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD") or not (self._path or _is_local_name(environ)):
            start_response("403 Forbidden", [("Content-Length", "0")])
            return [b""]
        return self._application(environ, start_response)


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
    _remove_left_behind(path)
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


def _remove_left_behind(path: str) -> None:
    """Remove a socket's file at which nobody listens any more."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.lstat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:
            pass
