"""HTTP servers that no other machine can reach."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress

import gevent
import pytest
from gevent import socket
from gevent.queue import Queue
from support import PATIENCE, eventually
from web.http import get

from sbuslib.errors import AddressError, AddressInUseError, UsageError
from sbuslib.web import serving
from sbuslib.web.serving import Environ, LocalServer, StartResponse

Serve = Callable[[str], LocalServer]


def hello(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(address: str) -> LocalServer:
            server = LocalServer(address, hello)
            server.start()
            stack.callback(server.stop)
            return server

        yield start


def test_a_server_answers_at_a_loopback_address_and_at_a_path(serve: Serve, folder: str) -> None:
    for address in ("127.0.0.1:0", os.path.join(folder, "web")):
        response = get(serve(address).url)
        assert (response.status, response.body) == (200, b"hello")


@pytest.mark.parametrize(
    ("address", "error"),
    [*((address, UsageError) for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0")), ("nowhere", AddressError)],
)
def test_an_address_that_other_machines_can_reach_or_that_is_none_is_refused(
    address: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        LocalServer(address, hello)


def test_an_address_in_use_is_refused(serve: Serve, folder: str) -> None:
    path = os.path.join(folder, "web")
    serve(path)
    with pytest.raises(AddressInUseError):
        LocalServer(path, hello)
    with pytest.raises(AddressInUseError):
        LocalServer(serve("127.0.0.1:0").url.removeprefix("http://").strip("/"), hello)


def test_only_this_user_may_connect_to_a_path_and_a_file_that_is_left_is_replaced(serve: Serve, folder: str) -> None:
    path = os.path.join(folder, "web")
    killed = LocalServer(path, hello)
    killed._path = None  # so the file stays
    killed.close()
    server = serve(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert get(server.url).status == 200
    server.stop()
    assert not os.path.exists(path)


def test_a_file_that_is_no_socket_is_left_alone(folder: str) -> None:
    path = os.path.join(folder, "file")
    with open(path, "w") as file:
        file.write("precious")
    with pytest.raises(AddressInUseError):
        LocalServer(path, hello)
    with open(path) as file:
        assert file.read() == "precious"


HOSTS = {
    200: ["localhost:80", "127.0.0.1", "[::1]", "[::1]:80", "Localhost"],
    403: ["bus.example:80", "localhost:80:80", "", "x"],
}


def test_requests_for_another_host_or_to_change_something_are_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of another site could have its own name resolved to this machine."""
    monkeypatch.setattr(serving, "_PAUSE", 0.0)
    url = serve("127.0.0.1:0").url
    for status, hosts in HOSTS.items():
        for host in hosts:
            assert get(url, host=host).status == status, host
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        response = get(url, method=method)
        assert (response.status, response.body) == (403, b""), method


def endless(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    while True:
        yield bytes(100_000)


@pytest.mark.parametrize("request_line", [b"", b"GET / HTTP/1.0\r\n", b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n"])
def test_a_connection_that_neither_asks_nor_reads_makes_room(
    folder: str, request_line: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serving, "_SECONDS", 0.01)
    server = LocalServer(os.path.join(folder, "web"), endless)
    server.start()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server.url.removeprefix("unix:"))
        connection.sendall(request_line)
        eventually(lambda: server.pool)
        eventually(lambda: not server.pool)
    server.stop()
    assert capfd.readouterr().err == ""


def test_the_oldest_silent_connection_gives_way_to_one_that_asks(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_CONNECTIONS", 3)
    server = serve("127.0.0.1:0")
    where = server.socket.getsockname()
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(where)) for _ in range(serving._CONNECTIONS)]
        eventually(lambda: len(server._open) == serving._CONNECTIONS)
        assert get(server.url).body == b"hello"
        for one in silent:
            one.settimeout(PATIENCE)
        assert silent[0].recv(1) == b""
        silent[1].sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert silent[1].recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("begins", [b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"GET /"])
def test_a_connection_that_trickles_ends(serve: Serve, begins: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its line is too long, and without an answer."""
    monkeypatch.setattr(serving, "_SECONDS", 0.1)
    server = serve("127.0.0.1:0")
    with socket.create_connection(server.socket.getsockname()) as connection:
        connection.sendall(begins)

        def end() -> bytes:
            with suppress(ConnectionError):
                return connection.recv(1)
            return b""

        ended = gevent.spawn(end)

        def trickle() -> bool:
            with suppress(ConnectionError):
                connection.sendall(b"x")
            return bool(ended.ready())

        eventually(trickle)
        assert ended.get() == b""
    eventually(lambda: not server.pool)


def test_a_stream_goes_on_and_stays_where_silent_connections_give_way(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_CONNECTIONS", 2)
    more = Queue[bytes]()

    def stream(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/stream":
            server.stream()
            start_response("200 OK", [])
            return iter(more.get, b"")
        return hello(environ, start_response)

    server = LocalServer(os.path.join(folder, "web"), stream)
    server.start()
    streamed = gevent.spawn(get, server.url, "/stream")
    more.put(b"first ")
    eventually(more.empty)
    with ExitStack() as stack:
        for _ in range(3):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.connect(server.url.removeprefix("unix:"))
        assert get(server.url).body == b"hello"
        more.put(b"last")
        more.put(b"")
        assert streamed.get(timeout=PATIENCE).body == b"first last"
    server.stop()


def test_a_connection_is_for_one_request(serve: Serve) -> None:
    with socket.create_connection(serve("127.0.0.1:0").socket.getsockname()) as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(2 * b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.count(b"hello") == 1
    assert b"\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize("body", [b"Content-Length: 1000000000", b"Transfer-Encoding: chunked"])
def test_a_request_with_a_body_is_refused_and_its_body_not_waited_for(serve: Serve, body: bytes) -> None:
    with socket.create_connection(serve("127.0.0.1:0").socket.getsockname()) as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n" % body)
        assert connection.recv(12) == b"HTTP/1.1 400"


def test_connections_are_taken_at_a_pace(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_PAUSE", 3600.0)
    server = serve("127.0.0.1:0")
    assert get(server.url).body == b"hello"
    with socket.create_connection(server.socket.getsockname()) as next_one:
        next_one.settimeout(0.05)
        with pytest.raises(TimeoutError):
            next_one.recv(1)
        assert not server.pool
        next_one.settimeout(PATIENCE)
        server.accept_next()  # as after the pause
        next_one.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert next_one.recv(12) == b"HTTP/1.1 200"
