"""Survey of a tree of hubs, from one of them downwards.

Each hub reports its own links only, and only to trusted users: ``hub/links``. So each child is asked in turn, at the
address that its relay claims. An answer counts only if the hub there runs as the user that the kernel named to the
parent, and has that parent in its own path.
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
"""Most hubs that are asked, and most links of each. A hostile hub may claim any number of others."""

DEEPEST: Final = 16
"""Hubs in a row that are asked: no deeper tree is made."""

SLOW: Final = 5
"""Answers for which a look waits in vain for the hubs of one user. Any client may claim that many hubs are below it."""


class SeenHub(msgspec.Struct, frozen=True, kw_only=True):
    """A hub: its statistics without clients and users, its link to a parent, and those to children."""

    statistics: HubStatistics
    parent: LinkStatistics | None
    children: tuple[SeenLink, ...]


class SeenLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link, as the parent reports it, and the child; or ``why`` the child could not be asked."""

    link: LinkStatistics
    hub: SeenHub | None
    why: str


def survey(address: str | None = None, *, timeout: float = 2.0) -> SeenHub:
    """Ask a hub, and those below it as far as their addresses are known and they trust this process.

    No answer is waited for longer than ``timeout`` seconds.

    Raises :exc:`~sbuslib.errors.StateError` if the first hub does not trust this process, and the errors of a client.
    """
    return _Survey(timeout).start(address)


def client_at(link: LinkStatistics, timeout: float) -> Client:
    """Return a client of the hub at the other end of a link, at the address that a hub claims for it.

    Raises the errors of a client, among them one if another user serves there, and
    :exc:`~sbuslib.errors.AddressError` for a descriptor: its number means one of the process that claims it.
    """
    if isinstance(parse_address(link.address), DescriptorAddress):
        raise AddressError(f"{link.address}: a descriptor of another process")
    return Client(link.address, hub_user=link.uid, timeout=timeout)


class Children(Generic[T]):
    """Asks children of hubs, at the addresses that their relays claim, as far as a claim can be checked.

    :param ask: sends the request to one hub, with a client of it.
    :param most: most children that are asked.
    """

    def __init__(self, ask: Callable[[Client], T], timeout: float, most: int) -> None:
        self._ask = ask
        self._timeout = timeout
        self._remaining = most
        self._spent = Counter[int]()  # nanoseconds of waiting for the hubs of a user

    def follow(self, link: LinkStatistics, hub_id: str, user: int, depth: int) -> tuple[T | None, str, int]:
        """Ask the child at a link. Returns its answer, or why it was not asked, and the user charged for all below it.

        A hub may claim any number of hubs below it, so waiting for those is charged to the user of that hub.
        """
        found, why = None, ""

        # 1. The user that is charged, and whether to ask at all.
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
                with client_at(link, self._timeout) as client:
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
            answer = self._ask(client)
        return self._look(*answer, os.getuid(), 1)

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
        answer, why, charged = self._hubs.follow(link, hub_id, user, depth)
        found = self._look(*answer, charged, depth + 1) if answer is not None else None
        return SeenLink(link=link, hub=found, why=why)
