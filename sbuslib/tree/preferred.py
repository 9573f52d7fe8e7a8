"""Whether a hub that a relay prefers to the one it has joined is there again, and stable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..client import Client
from ..clients.reconnect import Backoff
from ..errors import NoHubError, SbusError
from ..limits import ClientLimits
from .greeting import check_features
from .tree import Tree

__all__ = ["LOOK_PAUSES", "Preferred"]

LOOK_PAUSES: Final = 12
"""How many times ``Limits.link_pause_most`` a relay waits at most before it looks again. The pauses only grow while a
hub is there that cannot be joined, or does not keep the link."""


class Preferred:
    """Looks for hubs at preferred addresses, with pauses between the looks. For greenlets."""

    def __init__(self, tree: Tree, client_limits: ClientLimits) -> None:
        self._tree = tree
        self._limits = tree.context.limits
        self._client_limits = client_limits
        most = self._limits.link_pause_most
        self._pauses = Backoff(most, LOOK_PAUSES * most)

    def pause(self) -> float:
        """Seconds to wait before the next look."""
        return self._pauses.next()

    def find(self, addresses: Iterable[str], hub_user: int | str | None) -> str | None:
        """The first of these addresses whose hub is stable."""
        return next((address for address in addresses if self._is_stable(address, hub_user)), None)

    def _is_stable(self, address: str, hub_user: int | str | None) -> bool:
        """Whether the hub there can be joined, and keeps a connection for as long as our longest pause."""
        limits = self._limits
        try:
            client = Client(address, timeout=limits.link_wait, hub_user=hub_user, limits=self._client_limits)
        except NoHubError:
            self._pauses.reset()  # nobody listens, which costs nothing to find out
            return False
        except (OSError, SbusError):
            return False
        with client:
            try:
                if client.features is not None:
                    separator = self._tree.context.router.namespace.separator
                    check_features(client.features, self._tree.hub_id, separator, limits.path_hubs)
                client.receive(limits.link_pause_most)
            except TimeoutError:
                return True
            except (OSError, SbusError):
                return False
        return False  # it sends what nobody asked for
