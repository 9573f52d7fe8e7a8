"""A look at a tree of hubs, from one of them downwards.

Each hub tells of its own links only, and those who trust it: ``hub/links``. So each child is asked in turn, at the
address that its relay claims. An answer counts only if the hub there runs as the user that the kernel named to the hub
above, and is below that hub by its own path.
"""

from __future__ import annotations

import os
from collections import Counter
from time import monotonic
from typing import Final

import msgspec

from ..blocking import Client
from ..errors import AddressError, SbusError
from ..statistics import HubStatistics, LinkStatistics
from ..wire.addresses import DescriptorAddress, parse_address

MOST_HUBS: Final = 1_000
"""Hubs that are asked, and links of each that are told. A hostile hub may claim any number of others."""

DEEPEST: Final = 16
"""Hubs in a row that are asked: no deeper tree is made."""

SLOW: Final = 5
"""Answers for which a look waits in vain for the hubs of one user. Any client may claim that many hubs are below it."""


class SeenHub(msgspec.Struct, frozen=True, kw_only=True):
    """A hub: what it tells of itself, less its clients and users; its link to a parent, and those to children."""

    statistics: HubStatistics
    parent: LinkStatistics | None
    children: tuple[SeenLink, ...]


class SeenLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link, as the upper hub tells it, and the child; or ``why`` that could not be asked."""

    link: LinkStatistics
    hub: SeenHub | None
    why: str


def survey(address: str | None = None, key: bytes | None = None, *, timeout: float = 2.0) -> SeenHub:
    """Ask a hub, and those below it as far as their addresses are known and they trust this process.

    With ``key``, each link tells whether it carries that key. No answer is waited for longer than ``timeout`` seconds.

    Raises :exc:`~sbuslib.errors.StateError` if the first hub does not trust this process, and what a client raises.
    """
    return _Survey(key, timeout).start(address)


class _Survey:
    def __init__(self, key: bytes | None, timeout: float) -> None:
        self._key = key
        self._timeout = timeout
        #: How many hubs may still be asked.
        self._remaining = MOST_HUBS
        self._spent = Counter[int]()  # nanoseconds for which the hubs of a user let us wait

    def start(self, address: str | None) -> SeenHub:
        with Client(address, timeout=self._timeout) as client:
            told = self._ask(client)
        return self._look(*told, os.getuid(), 1)

    def _ask(self, client: Client) -> tuple[HubStatistics, list[LinkStatistics]]:
        self._remaining -= 1
        links = client.hub.links(self._key, most=MOST_HUBS)
        return msgspec.structs.replace(client.hub.statistics(), per_client=(), per_user=(), per_link=()), links

    def _look(self, statistics: HubStatistics, links: list[LinkStatistics], user: int, depth: int) -> SeenHub:
        parent = [link for link in links if link.direction == "parent"]
        children = [link for link in links if link.direction == "child"]
        return SeenHub(
            statistics=statistics,
            parent=parent[0] if parent else None,
            children=tuple(self._follow(link, statistics.hub_id, user, depth) for link in children),
        )

    def _follow(self, link: LinkStatistics, hub_id: str, user: int, depth: int) -> SeenLink:
        """Ask the child a link. What is below the hub of a user is the doing of that user, whatever it claims."""
        found, why = None, ""

        # 1. Whom this is charged to, and whether to ask at all.
        user = link.uid if user in (0, os.getuid()) else user
        if not link.address:
            why = "it does not say where it listens"
        elif not self._remaining or depth >= DEEPEST:
            why = "not asked: there are too many hubs"
        elif self._spent[user] >= SLOW * self._timeout * 1e9:
            why = f"not asked: hubs of user {user} take too long"
        else:
            # 2. The hub that listens there has to be the one that the link leads to.
            started = monotonic()
            try:
                if isinstance(parse_address(link.address), DescriptorAddress):
                    raise AddressError(f"{link.address}: a descriptor of another process")
                with Client(link.address, hub_user=link.uid, timeout=self._timeout) as client:
                    path = client.hub.features.path if client.hub.features is not None else ()
                    told = self._ask(client) if path[1:2] == (hub_id.encode(),) else None
            except (SbusError, OSError) as error:
                told, why = None, str(error)
            self._spent[user] += int((monotonic() - started) * 1e9)
            if told is not None:
                found = self._look(*told, user, depth + 1)
            elif not why:
                why = f"{link.address}: another hub listens there"

        return SeenLink(link=link, hub=found, why=why)
