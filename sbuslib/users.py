"""Users by name or id: the one place that asks the system's user database."""

from __future__ import annotations

import pwd

from .errors import UsageError

__all__ = ["resolve_user"]


def resolve_user(user: int | str) -> int:
    """The id of a user given by id or name. Raises :exc:`~sbuslib.errors.UsageError` if there is none."""
    if isinstance(user, str) and not (user.isascii() and user.isdigit()):
        try:
            return pwd.getpwnam(user).pw_uid
        except (KeyError, ValueError):
            raise UsageError(f"there is no user {user!r} on this machine") from None
    if isinstance(user, bool) or not isinstance(user, (int, str)) or not 0 <= int(user) < 2**32 - 1:
        raise UsageError(f"a user is a name or an id, not {user!r}")
    return int(user)
