"""The verbs of a client that take a time limit of their own, in one table for all tests of time limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

Limited: TypeAlias = Callable[[Any, Any], Awaitable[Any]]
"""Call a verb of a client with these seconds."""

ASKING: dict[str, Limited] = {
    "request": lambda client, seconds: client.request("k", timeout=seconds),
    "plain request": lambda client, seconds: client.request("k", timeout=seconds, secret=False),
    "request_many": lambda client, seconds: client.request_many("k", wait=seconds),
    "is_wanted": lambda client, seconds: client.hub.is_wanted("k", timeout=seconds),
    "submit": lambda client, seconds: client.queue("q").submit("k", timeout=seconds),
    "submit_many": lambda client, seconds: client.queue("q").submit_many([("k", b"")], timeout=seconds),
    "status": lambda client, seconds: client.queue("q").status(timeout=seconds),
    "peek": lambda client, seconds: client.queue("q").peek(timeout=seconds),
    "purge": lambda client, seconds: client.queue("q").purge(timeout=seconds),
}
"""Verbs that wait for an answer."""

RECEIVING: dict[str, Limited] = {
    "receive": lambda client, seconds: client.receive(timeout=seconds),
    "receive_many": lambda client, seconds: client.receive_many(timeout=seconds),
}
"""Verbs that wait for a message to the client."""

BEGINNING: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "subscription": lambda client: client.subscribe("k"),
    "worker": lambda client: client.queue("q").take(),
    "presences": lambda client: client.present("k"),
    "interest": lambda client: client.hub.watch_interest("k"),
    "frames": lambda client: client.frames.subscribe("k"),
    "descriptors": lambda client: client.descriptors.subscribe("k"),
    "files": lambda client: client.files.receive("k"),
}
"""What returns an object that has a ``receive`` of its own."""
