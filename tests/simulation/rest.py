"""What has to be true at rest: all hubs are up, nobody does anything, and time has passed. And when all have left."""

from __future__ import annotations

import gc

import gevent

from sbuslib.errors import SbusError
from sbuslib.matcher import matches

from . import processes
from .actors import ClientActor, HubActor
from .oracle import Oracle
from .plan import KEYS

SOME_KEYS = ["/".join((first, *rest)).encode() for first in "abc1" for rest in ((), ("1",), ("2",), ("a",), ("1", "1"))]
"""Keys among which there is one that two patterns of a plan match, if any key is."""


def check_rest(oracle: Oracle, clients: list[ClientActor]) -> None:
    """Compare presences and interest with the truth."""
    for client in clients:
        check_presences(oracle, client, clients)
        check_interest(oracle, client, clients)


def check_presences(oracle: Oracle, client: ClientActor, clients: list[ClientActor], when: str = "at rest") -> None:
    """Compare what a client knows of presences with the truth."""
    for pattern, watch in client.watches.items():
        seen = sorted((member.key, member.info) for member in watch.members)
        true = sorted(
            (key.encode(), other.info)
            for other in clients
            if _may_see(client.hub, other.hub)
            for key in other.presences
            if matches(pattern.encode(), key.encode())
        )
        oracle.check(seen == true, f"{client.name} sees {seen} present under {pattern}, and {true} are, {when}")
        is_whole = all(hub.mode != "plain" for hub in client.hub.path()[1:])
        text = f"to {client.name} at {client.hub.name}, the list of {pattern} is whole: {watch.is_whole}, {when}"
        oracle.check(watch.is_whole is is_whole, text)
        for member in watch.members:
            is_own = member.sender.endswith(b"/" + member.info)
            oracle.check(is_own, f"{client.name} sees {member.info!r} as {member.sender!r}, {when}")


def check_interest(oracle: Oracle, client: ClientActor, clients: list[ClientActor], when: str = "at rest") -> None:
    """Compare what a client knows of interest with the truth."""
    for pattern, watch in client.interests.items():
        keys = [key for key in SOME_KEYS if matches(pattern.encode(), key)]
        true = any(other.wants(key) for other in clients for key in keys)
        if watch.wanted is None and _presumes(client.hub):
            continue
        oracle.check(
            watch.wanted is true,
            f"to {client.name} at {client.hub.name}, {pattern} is wanted: {watch.wanted}, which is wrong {when}",
        )


def _presumes(hub: HubActor) -> bool:
    """Whether a link on the way up must not say what others want."""
    return any(one.mode != "announce" for one in hub.path()[1:])


def _may_see(one: HubActor, other: HubActor) -> bool:
    """Whether presences pass between two hubs: no link between them is one of a plain client."""
    above, below = one.path(), other.path()
    way = set(above) ^ set(below)
    return all(hub.mode != "plain" for hub in way)


def probe(oracle: Oracle, client: ClientActor, served: set[str]) -> None:
    """Publish once under each key, which is due everywhere; and ask under each that somebody serves."""
    for key in KEYS:
        client.publish(key.encode())
    for key in sorted(served):
        try:
            client.request(key)
        except (SbusError, OSError) as error:
            may_be_lost = isinstance(error, TimeoutError) and any(hub.loses for hub in oracle.hubs.values())
            oracle.check(may_be_lost, f"{client.name} gets no answer under {key}: {error!r}")


def check_left(oracle: Oracle, hubs: list[HubActor], clients: list[ClientActor]) -> None:
    """All clients have left, and hubs stop, children first: nothing may be charged or be left of them."""
    for hub in sorted(hubs, key=lambda one: -len(one.path())):
        charged = [account.uid for account in hub.hub.context.quotas.accounts()]
        oracle.check(hub.hub.context.quotas.is_clear(), f"{hub.name} charges users {charged}, which have left")
        error = hub.end()
        oracle.check(error is None, f"{hub.name} does not stop: {error!r}")
        gevent.sleep(1.0)  # its parent notices

    gc.collect()
    loop = processes.loop()
    actors: list[HubActor | ClientActor] = [*hubs, *clients]
    for process in [*(one.process for one in actors), *(past for hub in hubs for past in hub.past)]:
        if process.is_dead:
            continue
        watchers = [type(one).__name__ for one in process.watchers]
        sockets = [one for one in process.sockets if one.fileno() >= 0]
        greenlets = loop.greenlets_of(process)
        oracle.check(not watchers, f"watchers of {process} are left: {watchers}")
        oracle.check(not sockets, f"sockets of {process} are left: {sockets}")
        oracle.check(not greenlets, f"greenlets of {process} are left: {greenlets}")
