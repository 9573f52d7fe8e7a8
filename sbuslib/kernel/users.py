"""Users by name or id, and programs by process: the one place that asks the system's user database."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable

from ..errors import UsageError


def resolve_user(user: int | str) -> int:
    """Return the id of a user given by id or name. Raises :exc:`~sbuslib.errors.UsageError` if there is none."""
    if isinstance(user, str) and not (user.isascii() and user.isdigit()):
        try:
            return pwd.getpwnam(user).pw_uid
        except (KeyError, ValueError):
            raise UsageError(f"there is no user {user!r} on this machine") from None
    if isinstance(user, bool) or not isinstance(user, (int, str)) or not 0 <= int(user) < 2**32 - 1:
        raise UsageError(f"a user is a name or an id, not {user!r}")
    return int(user)


def resolve_group(group: str) -> int:
    """Return the id of a group given by id or name. Raises :exc:`~sbuslib.errors.UsageError` if there is none."""
    if group.isascii() and group.isdigit() and int(group) < 2**32 - 1:
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        raise UsageError(f"there is no group {group!r} on this machine") from None


def resolve_users(name: str, users: Iterable[int | str] | str | bytes) -> list[int]:
    """Return the ids of some users; ``name`` is the name of the list in errors. Raises as
    :func:`resolve_users_and_groups`.
    """
    return [resolve_user(user) for user in _listed(name, users)]


def resolve_users_and_groups(
    name: str, members: Iterable[int | str] | str | bytes
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the ids of users, and of groups, named ``@group``; ``name`` is the name of the list in errors.

    Raises :exc:`~sbuslib.errors.UsageError` for anything but a list, and for a user or group that does not exist.
    """
    listed = _listed(name, members)
    groups = [entry for entry in listed if isinstance(entry, str) and entry.startswith("@")]
    users = [entry for entry in listed if entry not in groups]
    return frozenset(map(resolve_user, users)), frozenset(resolve_group(group[1:]) for group in groups)


def _listed(name: str, members: Iterable[int | str] | str | bytes) -> list[int | str]:
    if isinstance(members, (str, bytes)) or not isinstance(members, Iterable):
        raise UsageError(f"{name} is a list of names and ids, not {members!r}")
    return list(members)


def know_user(uid: int) -> tuple[bytes, frozenset[int]]:
    """Return the name of a user, empty if there is none, and the ids of all its groups. It may block."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return b"", frozenset()
    return os.fsencode(entry.pw_name), frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))


def name_of_user(uid: int) -> str:
    """Return the name of a user, or its id where there is no name. It may block."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def program_of(pid: int) -> str:
    """Return the kernel's name of the program of a process in this pid namespace; empty if it is not visible."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Return whether there is a process with this id in this pid namespace."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's
    return True
