"""A plain HTTP client in gevent's event loop."""

from __future__ import annotations

from typing import NamedTuple

from gevent import socket

from sbuslib.kernel.hosts import parse_host_port


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def get(url: str, path: str = "/", *, host: str | None = None, method: str = "GET") -> Response:
    """What a local server answers: to one request, until the end of the connection."""
    if url.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(url.removeprefix("unix:"))
        name = "localhost"
    else:
        name = url.removeprefix("http://").strip("/")
        address = parse_host_port(name)
        connection = socket.create_connection((address.host, address.port))
    with connection:
        connection.settimeout(20)
        request = f"{method} {path} HTTP/1.0\r\nHost: {name if host is None else host}\r\n\r\n"
        connection.sendall(request.encode())
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Response(int(first.split()[1]), headers, body)
