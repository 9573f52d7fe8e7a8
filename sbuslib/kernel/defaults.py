"""Default places: addresses, and folders for state, configuration and temporary files.

The environment that names them outlives a change of user: after ``su``, or under ``sudo -E``, it is still that of
another one, who could read what is published at such an address, and replace files in such a folder. So a folder counts
only if the effective user owns it. Imports next to nothing, for programs that live for a moment.
"""

from __future__ import annotations

import os

from ..errors import UsageError

TYPE_CHECKING = False  # the typing module takes longer to load than this one
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_ADDRESS = "/run/sbus.socket"


def default_addresses(environ: Mapping[str, str] | None = None) -> list[str]:
    """Addresses that a client tries by default, in order.

    ``SBUS_ADDRESS`` alone where it is set; else ``$XDG_RUNTIME_DIR/sbus/bus``, if the effective user owns that folder,
    and ``/run/sbus.socket``.

    Raises :exc:`~sbuslib.errors.UsageError` under sudo, for an ``SBUS_ADDRESS`` that belongs to the user who called it.
    """
    environ = os.environ if environ is None else environ
    if given := environ.get("SBUS_ADDRESS"):
        if _is_of_caller(given, environ):
            raise UsageError(
                f"SBUS_ADDRESS={given} belongs to user {environ['SUDO_UID']}, who called sudo, and is no default for "
                f"user {os.geteuid()}: name the address itself, with -a or as an argument"
            )
        return [given]
    folder = runtime_folder(environ)
    return [SYSTEM_ADDRESS] if folder is None else [os.path.join(folder, "sbus", "bus"), SYSTEM_ADDRESS]


def runtime_folder(environ: Mapping[str, str] | None = None) -> str | None:
    """Return ``$XDG_RUNTIME_DIR``, if it is this user's. It need not exist."""
    environ = os.environ if environ is None else environ
    folder = environ.get("XDG_RUNTIME_DIR")
    return folder if folder and _is_own(folder) else None


def state_folder() -> str:
    """Return the folder for state: that of the systemd unit, or of the user. It need not exist."""
    if unit := _own("STATE_DIRECTORY"):
        return unit
    return os.path.join(_own("XDG_STATE_HOME") or os.path.join(home_folder(), ".local", "state"), "sbus")


def config_folder() -> str:
    """Return the folder for the user's configuration. It need not exist."""
    return _own("XDG_CONFIG_HOME") or os.path.join(home_folder(), ".config")


def home_folder() -> str:
    """Return ``$HOME``, if it is this user's, else the folder that the user database names."""
    if home := _own("HOME"):
        return home
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # a user without an entry, as in a container
        return "/"


def temporary_folder() -> str:
    """Return the folder for temporary files: ``$TMPDIR`` and the like, if it is this user's or of the machine."""
    import tempfile

    folder = tempfile.gettempdir()
    return folder if _is_own(folder, or_root=True) else "/tmp"


def _own(variable: str) -> str | None:
    """Return the folder that a variable names, if it is this user's, or root's."""
    folder = os.environ.get(variable)
    return folder if folder and _is_own(folder, or_root=True) else None


def _is_own(folder: str, *, or_root: bool = False) -> bool:
    """Return whether a folder is the effective user's; for one that is missing, whether it may become that."""
    try:
        owner = os.stat(folder).st_uid
    except FileNotFoundError:
        return _is_own(os.path.dirname(os.path.abspath(folder)), or_root=True)
    except OSError:  # another user's folder is in its way
        return False
    return owner == os.geteuid() or (or_root and owner == 0)


def _is_of_caller(address: str, environ: Mapping[str, str]) -> bool:
    """Return whether a socket, or its folder, belongs to the user who called sudo, and is neither ours nor root's."""
    caller = environ.get("SUDO_UID", "")
    if caller in ("", "0", str(os.geteuid())) or address.startswith("/dev/"):
        return False
    for path in (address, os.path.dirname(os.path.abspath(address))):
        try:
            if str(os.lstat(path).st_uid) == caller:
                return True
        except OSError:
            continue
    return False
