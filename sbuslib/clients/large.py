"""The large messages of a client: what :mod:`sbuslib.recipes.large` needs of it, and the files that it receives."""

from __future__ import annotations

import os
from secrets import token_hex
from time import monotonic

from ..errors import UsageError
from ..kernel.files import FileSink, Opened, safe_name
from ..recipes.large import PART_BYTES, Offer, Receiving, Sending, Sent
from ..recipes.mailbox import Mailbox, Party
from .base import ClientBase

__all__ = ["receiving", "sending"]


async def sending(
    party: Party, client: ClientBase, key: bytes, opened: Opened, name: str | None, receivers: int, timeout: float
) -> Sent:
    """Send one file. Raises :exc:`~sbuslib.errors.UsageError` for what cannot be sent."""
    if receivers < 1:
        raise UsageError(f"receivers is at least 1, not {receivers!r}")
    session, identity = client._session, token_hex(16)
    session.check_publishable(key)
    words = Mailbox(session.separator.join((client.credentials, b"large", identity.encode())))
    told = (opened.name if name is None else name).encode(errors="replace").decode()
    offer = Offer(identity, opened.size, PART_BYTES, told[:255])
    return await Sending(party, key, session.separator, offer, words, opened.read).run(receivers, timeout, monotonic)


def receiving(
    party: Party,
    client: ClientBase,
    patterns: tuple[bytes, ...],
    folder: str | os.PathLike[str] | None,
    most: int,
    timeout: float,
) -> Receiving:
    """Receive files into a folder, or into temporary files. A name that is not safe is replaced by the id."""

    def sink(offer: Offer) -> FileSink:
        return FileSink(folder, safe_name(offer.name, offer.large))

    return Receiving(party, patterns, client._session.separator, token_hex(8), sink, most, timeout, monotonic)
