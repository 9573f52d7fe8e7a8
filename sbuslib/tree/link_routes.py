"""Who receives what comes over a link between two hubs: everybody but the link itself."""

from __future__ import annotations

from ..core.context import Context
from ..core.protocols import Receiver, Routes
from ..core.router import CACHED_HEADER_BYTES

__all__ = ["receivers_of", "remember"]


def receivers_of(context: Context, header: bytes, link: Receiver) -> Routes:
    """The receivers of a message that came over ``link``.

    Raises :exc:`~sbuslib.errors.ReservedKeyError` where nobody may publish under its key.
    """
    found = context.router.routes.get(header)
    if found is None:
        found = context.router.route(header)
    return tuple(receiver for receiver in found if receiver is not link)


def remember(context: Context, routes: dict[bytes, Routes], header: bytes, found: Routes) -> None:
    """Remember the receivers of a message for the next one, in the routes of the connection that it came by.

    Not of a longer header than the router remembers: the router does not say when these receivers change.
    """
    if len(header) <= CACHED_HEADER_BYTES:
        if len(routes) >= context.limits.cached_keys:
            routes.clear()
        routes[header] = found
