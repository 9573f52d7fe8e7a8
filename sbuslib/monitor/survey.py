"""A look at a tree of hubs, from one of them downwards.

Each hub tells of its own links only, and those who trust it: ``hub/links``. So each child is asked in turn, at the
address that its relay claims. An answer counts only if the hub there runs as the user that the kernel named to the hub
above, and is below that hub by its own path.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from ..blocking import Client
from ..errors import AddressError, SbusError
from ..statistics import HubStatistics, LinkStatistics
from ..wire.addresses import DescriptorAddress, parse_address

T = TypeVar("T")

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


def survey(address: str | None = None, *, timeout: float = 2.0) -> SeenHub:
    """Ask a hub, and those below it as far as their addresses are known and they trust this process.

    No answer is waited for longer than ``timeout`` seconds.

    Raises :exc:`~sbuslib.errors.StateError` if the first hub does not trust this process, and what a client raises.
    """
    return _Survey(timeout).start(address)


class Children(Generic[T]):
    """Asks children of hubs, as far as what their relays claim can be believed.

    :param ask: what each is asked, with a client of it.
    :param most: how many are asked.
    """

    def __init__(self, ask: Callable[[Client], T], timeout: float, most: int) -> None:
        self._ask = ask
        self._timeout = timeout
        self._remaining = most
        self._spent = Counter[int]()  # nanoseconds for which the hubs of a user let us wait

    def follow(self, link: LinkStatistics, hub_id: str, user: int, depth: int) -> tuple[T | None, str, int]:
        """Ask the child at a link: what it answers, or why it was not asked, and who is charged for all below it.

        What is below the hub of a user is the doing of that user, whatever it claims.
        """
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
            self._remaining -= 1
            started = monotonic()
            try:
                if isinstance(parse_address(link.address), DescriptorAddress):
                    raise AddressError(f"{link.address}: a descriptor of another process")
                with Client(link.address, hub_user=link.uid, timeout=self._timeout) as client:
                    path = client.hub.features.path if client.hub.features is not None else ()
                    if path[1:2] == (hub_id.encode(),):
                        found = self._ask(client)
                    else:
                        why = f"{link.address}: another hub listens there"
            except (SbusError, OSError) as error:
                why = str(error)
            self._spent[user] += int((monotonic() - started) * 1e9)

        return found, why, user


_Seen: TypeAlias = tuple[HubStatistics, list[LinkStatistics]]


class _Survey:
    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._hubs = Children[_Seen](self._ask, timeout, MOST_HUBS - 1)  # asks them

    def start(self, address: str | None) -> SeenHub:
        with Client(address, timeout=self._timeout) as client:
            told = self._ask(client)
        return self._look(*told, os.getuid(), 1)

    @staticmethod
    def _ask(client: Client) -> _Seen:
        links = client.hub.links(most=MOST_HUBS)
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
        told, why, charged = self._hubs.follow(link, hub_id, user, depth)
        found = self._look(*told, charged, depth + 1) if told is not None else None
        return SeenLink(link=link, hub=found, why=why)
