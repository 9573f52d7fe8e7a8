"""The settings of a hub that can change while it serves."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ..errors import UsageError
from ..kernel.users import resolve_users, resolve_users_and_groups
from .authorization import Authorize

__all__ = ["Settings"]


class Settings:
    """Who may connect, who is trusted, whose relays may join, and what each may do: users by id.

    The hub's own user may always connect; it and root are always trusted. Raises
    :exc:`~sbuslib.errors.UsageError`.
    """

    def __init__(
        self,
        users: Iterable[int | str] | None,
        trusted: Iterable[int | str],
        relays: Iterable[int | str],
        authorize: Authorize | None,
    ) -> None:
        if authorize is not None and not callable(authorize):
            raise UsageError("authorize is a function of credentials, verb and key")
        own = os.getuid()
        # Ids; ``None``: all that the socket lets in.
        self.users = None if users is None else {own, *resolve_users("users", users)}
        self.trusted = frozenset({own, 0, *resolve_users("trusted", trusted)})  # always these two
        self.relays = resolve_users_and_groups("relays", relays)  # users, and groups
        self.authorize = authorize
