"""``sbus web``: one live page about a hub, for a browser on this machine.

The path of the page begins with a random token. Any request without it gets "404 Not Found". The page only reads.
Untrusted bytes (keys, payloads) are sent as JSON strings with unprintable characters escaped
(:func:`~sbuslib.wire.text.printable`); the page's script inserts them as text, never as markup.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qs

import gevent
import msgspec

from ..client import Client
from ..clients.recipes.payload_text import payload_text
from ..errors import SbusError
from ..wire.packets import Message
from ..wire.text import printable
from .feed import Feed
from .serving import Environ, LocalServer, StartResponse

_FILES: Final = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "uplot.js": ("uplot.js", "text/javascript; charset=utf-8"),
    "uplot.css": ("uplot.css", "text/css; charset=utf-8"),
}

_HEADERS: Final = [
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
     "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
]  # fmt: skip

_KEEPALIVE: Final = 10.0
"""Seconds after which a stream without news sends an empty line, so that a browser that has gone is noticed."""

_SHOWN: Final = 20
"""Most messages of a tail that are sent at once. Further ones are only counted: a reader could not follow."""

_TAIL_PAUSE: Final = 0.25
"""Seconds in which the messages of a tail are collected."""

_PAYLOAD_SHOWN: Final = 500
"""Most characters of a payload that are shown."""


class Page:
    """Serves the page, from :meth:`start` to :meth:`stop`.

    :param hub: the address of the hub, as a :class:`~sbuslib.Client` takes it. The hub must trust this user.
    :param address: where to serve: ``HOST:PORT`` of a loopback address, or the path of a Unix socket.

    Raises as :class:`~.serving.LocalServer`.
    """

    def __init__(self, hub: str | None = None, address: str = "127.0.0.1:0") -> None:
        self._hub = hub
        self._token = secrets.token_urlsafe(16)  # gives access to the page
        self.feed = Feed(hub)  # data of the page
        self._server = LocalServer(address, self._answer)  # answers requests with the token

    @property
    def url(self) -> str:
        """Address of the page, with the token: it gives access."""
        return f"{self._server.url}{'/' if self._server.url.startswith('unix:') else ''}{self._token}/"

    def start(self) -> None:
        """Serve, in greenlets."""
        self.feed.start()
        self._server.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.stop(timeout=0)
        self.feed.stop()

    def serve_forever(self) -> None:
        """Serve until :meth:`stop` is called."""
        if not self._server.started:
            self.start()
        self._server.serve_forever()

    # -- requests -----------------------------------------------------------------------------------

    def _answer(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        _, token, name = [*environ["PATH_INFO"].split("/", 2), "", ""][:3]
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return _nothing(start_response)
        if name in _FILES:
            file, kind = _FILES[name]
            start_response("200 OK", [("Content-Type", kind), *_HEADERS])
            return [files(__package__).joinpath("static", file).read_bytes()]
        if name == "events":
            return self._stream(start_response, self._moments())
        if name == "tail":
            pattern = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True).get("pattern", [""])[0]
            return self._stream(start_response, self._messages(pattern.encode("utf-8", "surrogateescape")))
        return _nothing(start_response)

    def _stream(self, start_response: StartResponse, events: Iterator[tuple[str, Any]]) -> Iterator[bytes]:
        """Encode server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html"""
        self._server.stream()
        start_response("200 OK", [("Content-Type", "text/event-stream"), *_HEADERS])
        for name, data in events:
            yield b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data)) if name else b":\n\n"

    def _moments(self) -> Iterator[tuple[str, Any]]:
        """Yield the history, and then each moment as it comes."""
        yield "history", list(self.feed.history)
        moment = self.feed.now
        yield "moment", moment
        while True:
            number, moment = moment.number, self.feed.wait(moment.number, _KEEPALIVE)
            yield ("moment", moment) if moment.number != number else ("", None)

    def _messages(self, pattern: bytes) -> Iterator[tuple[str, Any]]:
        """Yield the messages that match a pattern, until the hub goes away; never secrets."""
        if pattern.startswith(b"!"):
            yield "end", {"why": "secrets are not shown"}
            return

        try:
            with Client(self._hub, timeout=10, senders=True, monitor=True) as client:
                client.subscribe(pattern)
                yield "begin", {}
                while True:
                    try:
                        messages = client.receive_many(timeout=_KEEPALIVE)
                    except TimeoutError:
                        yield "", None
                        continue
                    yield (
                        "messages",
                        {
                            "shown": [_show(message) for message in messages[-_SHOWN:]],
                            "more": max(0, len(messages) - _SHOWN),
                        },
                    )
                    gevent.sleep(_TAIL_PAUSE)
        except (SbusError, OSError) as error:
            yield "end", {"why": str(error)}


def _show(message: Message) -> dict[str, str]:
    payload = payload_text(message, 4 * _PAYLOAD_SHOWN)
    cut = payload[:_PAYLOAD_SHOWN] + ("..." if len(payload) > _PAYLOAD_SHOWN else "")
    sender = printable(message.sender) if message.sender is not None else ""
    return {"key": printable(message.key), "payload": cut, "sender": sender}


def _nothing(start_response: StartResponse) -> list[bytes]:
    start_response("404 Not Found", [("Content-Length", "0")])
    return [b""]
