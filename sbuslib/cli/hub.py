"""``sbus hub``: a hub in the foreground, its configuration file read again, and the systemd units of a bus."""

from __future__ import annotations

import os
import shutil
import sys
from argparse import Namespace
from pathlib import Path

from ..errors import StateError, UsageError
from .arguments import Parser, add, add_address
from .console import show_status
from .daemon import add_hub_arguments, serve_hub
from .tables import show_json


def add_hub(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Serve a bus in the foreground until Ctrl-C. It prints on standard error where it listens; without an address, "
        "that is the first place where clients look. Everything else is as for sbusd -f, see sbusd(1)."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus hub -a /tmp/bus                        for this user and root\n"
        "  sbus hub -a /tmp/bus -o -u alice -u 1001    for these users\n"
        "  sbus hub -a /dev/unix/abstract              at a random address, which is printed"
    )
    add_address(parser)
    add_hub_arguments(parser)


def own_address(arguments: Namespace) -> str:
    """Return where a hub listens without an address: the first place where clients look. Makes its folder."""
    from ..kernel.defaults import default_addresses, runtime_folder
    from ..kernel.regular_files import make_folder

    if arguments.address is not None:
        return str(arguments.address)
    default = default_addresses()[0]
    if not os.environ.get("SBUS_ADDRESS") and runtime_folder() is not None:
        # Clients look there first, and no other program makes the folder.
        make_folder(os.path.dirname(default))
    return default


def run_hub(arguments: Namespace) -> int:
    def announce(address: str) -> None:
        show_status(f"listening at {address} (Ctrl-C ends it)")

    return serve_hub("sbus", arguments, on_ready=announce, default=own_address(arguments))


def add_hub_reload(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Have a hub read its configuration file again, and wait until it has taken up what has changed. No client is "
        "lost that may still connect. If there is an error in the file, the hub goes on as before. For the hub's own "
        "user, root, and users that the hub trusts."
    )
    parser.epilog = "examples:\n  sbus hub reload -a /run/sbus.socket"
    add_address(parser)


def run_hub_reload(arguments: Namespace) -> None:
    from . import messages

    with messages.connected(arguments) as client:
        print(client.hub.reload())


_UNITS = Path(__file__).parent / "systemd"
_PLACEHOLDER = "@BIN@"
SYSTEM_FOLDER = "/etc/systemd/system"
CONFIG_FOLDER = "/etc"
CONFIG_FILE = "sbus.toml"


def add_hub_units(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = "List, print or install the systemd units of a bus."
    parser.epilog = (
        "examples:\n"
        "  sbus hub units                                  list them\n"
        "  sbus hub units sbus.service                     print one\n"
        f"  sbus hub units --install                        write those of the machine to {SYSTEM_FOLDER}\n"
        "  sbus hub units --install --session                 write those of a user session to ~/.config/systemd/user\n"
        "\n"
        "The units name the programs by the path that they are installed at. A file that is there already with other "
        "contents is not replaced. sbus.toml, which the bus of the machine reads, goes to /etc, unless it is there."
    )

    add(parser, "[UNIT]", "the unit to print; without: list all")
    add(parser, "--install [DIR]", "write units to DIR, or where systemd looks", const="")
    add(parser, "--session", "only the units of a user session, not of the machine")
    add(parser, "--json", "the list, as a JSON object a line")


def unit_names(user: bool | None = None) -> list[str]:
    """Return the names of the units: of user sessions, of the machine, or all."""
    names = sorted(path.name for path in _UNITS.iterdir())
    return [name for name in names if user is None or name.startswith("sbus-user.") is user]


def program_folder() -> str:
    """Return the folder in which ``sbusd`` is installed. Raises :exc:`~sbuslib.errors.StateError`."""
    for folder in (os.path.dirname(os.path.abspath(sys.argv[0])), os.path.dirname(sys.executable)):
        if os.access(os.path.join(folder, "sbusd"), os.X_OK):
            return folder
    found = shutil.which("sbusd")
    if found is None:
        raise StateError("sbusd is not installed, so units cannot name it: pip install sbuslib")
    return os.path.dirname(os.path.abspath(found))


def read_unit(name: str, folder: str) -> str:
    """Return the text of a unit whose programs are in ``folder``."""
    return (_UNITS / name).read_text("utf-8").replace(_PLACEHOLDER, folder)


def run_hub_units(arguments: Namespace) -> None:
    session: bool = arguments.session
    if arguments.install is not None:
        _install(_target(arguments.install, session), session)
    elif arguments.unit is None:
        for name in unit_names(session or None):
            if arguments.json:
                show_json({"unit": name, "title": _title(name), "text": read_unit(name, program_folder())})
                continue
            print(f"{name:<22} {_title(name)}")
    elif arguments.unit in unit_names():
        print(read_unit(arguments.unit, program_folder()), end="")
    else:
        raise UsageError(f"there is no unit {arguments.unit}: {', '.join(unit_names())}")


def _title(name: str) -> str:
    """Return the comment that a unit begins with."""
    return (_UNITS / name).read_text("utf-8").partition("\n")[0].removeprefix("# ")


def _target(folder: str, user: bool) -> Path:
    if folder or not user:
        return Path(folder or SYSTEM_FOLDER)
    from ..kernel.defaults import config_folder

    return Path(config_folder(), "systemd", "user")


def _install(target: Path, user: bool) -> None:
    """Write units into a folder, none of them where one is there with other contents. Raises :exc:`OSError`, too.

    A configuration file that is there already is kept as it is.
    """
    programs = program_folder()
    units = {_place(target, name): read_unit(name, programs) for name in unit_names(user)}
    units = {path: text for path, text in units.items() if path.name != CONFIG_FILE or not path.exists()}

    # All or nothing: one with changes of somebody's own stops it before the first is written.
    for path, text in units.items():
        if path.exists() and path.read_text("utf-8") != text:
            raise StateError(f"{path} is there with other contents: remove it, and keep changes with systemctl edit")
    from ..kernel.regular_files import make_folder, open_emptied

    make_folder(target, 0o755)
    for path, text in units.items():
        with open_emptied(path, 0o644) as file:
            file.write(text.encode())
        print(path)

    # The steps that are left to the user.
    systemctl = "systemctl --user" if user else "systemctl"
    socket = "sbus-user.socket" if user else "sbus.socket"
    first = f"move {target / CONFIG_FILE} to {CONFIG_FOLDER}, then " if _place(target, CONFIG_FILE) in units else ""
    first = "" if target == Path(SYSTEM_FOLDER) else first
    print(f"then: {first}{systemctl} daemon-reload && {systemctl} enable --now {socket}", file=sys.stderr)


def _place(target: Path, name: str) -> Path:
    """Return the path of a file: the configuration goes where the unit looks, if the units go where systemd looks."""
    return Path(CONFIG_FOLDER, name) if name == CONFIG_FILE and target == Path(SYSTEM_FOLDER) else target / name
