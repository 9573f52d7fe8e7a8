"""Users by name or id: the one place that asks the system's user database."""

from __future__ import annotations

import grp
import pwd

from ..errors import UsageError

__all__ = ["resolve_group", "resolve_user"]


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


def resolve_group(group: str) -> int:
    """The id of a group given by id or name. Raises :exc:`~sbuslib.errors.UsageError` if there is none."""
    if group.isascii() and group.isdigit() and int(group) < 2**32 - 1:
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        raise UsageError(f"there is no group {group!r} on this machine") from None
