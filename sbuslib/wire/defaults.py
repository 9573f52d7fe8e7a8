"""Default addresses. Imports next to nothing, for programs that live for a moment."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # the typing module takes longer to load than this one
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_ADDRESS = "/run/sbus.socket"


def default_addresses(environ: Mapping[str, str] | None = None) -> list[str]:
    """Addresses that a client tries by default, in order.

    ``SBUS_ADDRESS`` alone where it is set; else ``$XDG_RUNTIME_DIR/sbus/bus`` and ``/run/sbus.socket``.
    """
    if environ is None:
        environ = os.environ
    if environ.get("SBUS_ADDRESS"):
        return [environ["SBUS_ADDRESS"]]
    addresses = []
    if environ.get("XDG_RUNTIME_DIR"):
        addresses.append(os.path.join(environ["XDG_RUNTIME_DIR"], "sbus", "bus"))
    return [*addresses, SYSTEM_ADDRESS]
