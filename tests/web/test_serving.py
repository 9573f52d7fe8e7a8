"""HTTP servers that no other machine can reach."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import pytest
from gevent import socket
from support import eventually
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


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_an_address_that_other_machines_can_reach_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="other machines could reach it"):
        LocalServer(address, hello)


def test_malformed_addresses_are_refused() -> None:
    with pytest.raises(AddressError):
        LocalServer("nowhere", hello)


def test_an_address_in_use_is_refused(serve: Serve, folder: str) -> None:
    path = os.path.join(folder, "web")
    serve(path)
    with pytest.raises(AddressInUseError):
        LocalServer(path, hello)
    with pytest.raises(AddressInUseError):
        LocalServer(serve("127.0.0.1:0").url.removeprefix("http://").strip("/"), hello)


def test_only_this_user_may_connect_to_a_path_and_its_file_goes_with_the_server(serve: Serve, folder: str) -> None:
    path = os.path.join(folder, "web")
    server = serve(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    server.stop()
    assert not os.path.exists(path)


def test_a_file_that_a_killed_server_left_is_replaced(serve: Serve, folder: str) -> None:
    path = os.path.join(folder, "web")
    first = LocalServer(path, hello)
    first._path = None  # as if it were killed: the file stays
    first.close()
    assert get(serve(path).url).status == 200


def test_a_file_that_is_no_socket_is_left_alone(folder: str) -> None:
    path = os.path.join(folder, "file")
    with open(path, "w") as file:
        file.write("precious")
    with pytest.raises(AddressInUseError):
        LocalServer(path, hello)
    with open(path) as file:
        assert file.read() == "precious"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:80", 200),
        ("127.0.0.1", 200),
        ("[::1]", 200),
        ("[::1]:80", 200),
        ("Localhost", 200),
        ("bus.example:80", 403),
        ("localhost:80:80", 403),
        ("", 403),
        ("x", 403),
    ],
)
def test_requests_for_another_host_are_refused(serve: Serve, host: str, status: int) -> None:
    """A page of another site could have its own name resolved to this machine."""
    assert get(serve("127.0.0.1:0").url, host=host).status == status


def endless(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    while True:
        yield bytes(100_000)


@pytest.mark.parametrize("request_line", [b"", b"GET / HTTP/1.0\r\n", b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n"])
def test_a_connection_that_neither_asks_nor_reads_makes_room(
    folder: str, request_line: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serving, "_STALLED", 0.01)
    server = LocalServer(os.path.join(folder, "web"), endless)
    server.start()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server.url.removeprefix("unix:"))
        connection.sendall(request_line)
        eventually(lambda: server.pool)
        eventually(lambda: not server.pool)
    server.stop()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_a_server_only_reads(serve: Serve, method: str) -> None:
    response = get(serve("127.0.0.1:0").url, method=method)
    assert (response.status, response.body) == (403, b"")
