"""Limits for all connections of one address together, so that opening many connections gains nothing.

Pure. An IPv6 address counts as its /64, which is what one host is given.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

from .limits import TcpLimits

__all__ = ["AddressQuotas", "Usage"]


class Usage:
    """What the connections of one address hold now. The part that reserves also releases."""

    __slots__ = ("address", "links", "queued", "substrings")

    def __init__(self, address: str) -> None:
        self.address = address
        self.links = 0
        self.substrings = 0
        self.queued = 0

    def is_empty(self) -> bool:
        """Whether everything was given back."""
        return not (self.links or self.substrings or self.queued)


class AddressQuotas:
    """The usage of each address that has connections."""

    def __init__(self, limits: TcpLimits) -> None:
        self._limits = limits
        self._usages: dict[str, Usage] = {}

    def __len__(self) -> int:
        return len(self._usages)

    @staticmethod
    def group(host: str) -> str:
        """The key of ``host`` here: the host itself, or its /64 network."""
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return host
        if isinstance(address, IPv6Address):
            if address.ipv4_mapped is not None:
                return str(address.ipv4_mapped)
            return f"{IPv6Address(int(address) >> 64 << 64)}/64"
        return host

    def enter(self, host: str, *, invited: bool = False) -> Usage | None:
        """Reserve one more connection for ``host``; ``None`` when it has as many as it may.

        One that is ``invited``, because this end made it, is always granted.
        """
        group = self.group(host)
        usage = self._usages.get(group)
        if usage is None:
            usage = self._usages[group] = Usage(group)
        if usage.links >= self._limits.address_links and not invited:
            return None
        usage.links += 1
        return usage

    def leave(self, usage: Usage) -> None:
        """Give a connection back. The other reservations of its owner are given back before."""
        usage.links -= 1
        if not usage.links:
            assert usage.is_empty(), "what a connection reserved was not released"
            del self._usages[usage.address]
