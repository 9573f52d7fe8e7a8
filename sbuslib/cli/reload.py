"""``sbus reload``, and what the programs that serve a hub do then: they take up a file that has changed."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ..errors import SbusError, UsageError
from .arguments import ADDRESSES, Parser, add_address
from .config import Settings, read_settings
from .console import complain, explain

if TYPE_CHECKING:
    from ..hub import Hub
    from ..relay import Relay

__all__ = ["Reloader", "add_arguments"]


def add_arguments(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Have a hub read its configuration file again, and wait until it has taken up what has changed. No client is "
        "lost that may still connect. If there is an error in the file, the hub goes on as before. For the hub's own "
        "user, root, and users that the hub trusts."
    )
    parser.epilog = "examples:\n  sbus reload -a /run/sbus.socket\n\n" + ADDRESSES
    add_address(parser)
    parser.set_defaults(run=_reload)


def _reload(arguments: Namespace) -> int:
    from . import messages

    return messages.run(lambda client: print(client.reload()), arguments.address)


class Reloader:
    """Takes up the configuration file of a hub that serves.

    :param relay: the hub's, if it has one.
    """

    def __init__(
        self,
        program: str,
        hub: Hub,
        relay: Relay | None,
        arguments: Namespace,
        settings: Settings,
        default: str | None,
    ) -> None:
        self._program = program
        self._hub = hub
        self._relay = relay
        self._arguments = arguments
        self._settings = settings
        self._default = default

    def on_hangup(self) -> None:
        """At SIGHUP."""
        with suppress(SbusError, OSError):  # it was told
            self.reload()

    def reload(self) -> str:
        """Read the file, take up what can change now, and tell what takes a restart.

        Raises :exc:`~sbuslib.errors.SbusError` and :exc:`OSError`; then nothing has changed.
        """
        try:
            told = read_settings(self._arguments, self._default)
            if told.separator != self._settings.separator:
                raise UsageError(f"{self._arguments.config}: separator: this takes a restart of the hub")
            if told.policy is None and self._hub.context.authorization.is_asked:  # the file may be half written
                raise UsageError(f"{self._arguments.config}: rules: without any, this takes a restart of the hub")
            self._hub.reconfigure(users=told.users, trusted=told.trusted, relays=told.relays, authorize=told.policy)
            if self._relay is not None:
                self._relay.reconfigure(
                    told.upstream, export=told.export, import_=told.import_, upstream_user=told.upstream_user
                )
        except (SbusError, OSError) as error:
            complain(self._program, f"{explain(error)} (nothing has changed)")
            raise
        later = self._takes_restart(told)
        text = f"{self._arguments.config} was read again" + (f"; after a restart: {', '.join(later)}" if later else "")
        complain(self._program, text)
        return text

    def _takes_restart(self, told: Settings) -> list[str]:
        """The keys whose change takes a restart of the hub."""
        now = self._settings
        keys = [key for key in ("address", "mode") if getattr(told, key) != getattr(now, key)]
        limits = msgspec.structs.asdict(now.limits)
        return keys + [f"limits.{key}" for key in limits if limits[key] != getattr(told.limits, key)]
