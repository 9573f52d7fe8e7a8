"""The configuration file of ``sbusd``, ``sbus hub`` and ``sbus-relay``, in TOML, and the options that win over it.

The keys of the file are the fields of :class:`HubTable` and :class:`RuleTable`. All values are checked before any is
used. An error names the file, the key and the expected value.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from ..core.router import why_too_large
from ..errors import SbusError, UsageError
from ..kernel.defaults import SYSTEM_ADDRESS
from ..kernel.users import know_user, resolve_user, resolve_users_and_groups
from ..keys.policy import Policy, Rule, check_template
from ..limits import Limits
from ..matcher import SEPARATOR, check_separator
from ..wire.addresses import parse_address
from ..wire.packets import check_key
from .console import complain, explain

if TYPE_CHECKING:
    from argparse import Namespace

    from ..hub import Hub
    from ..relay import Relay

T = TypeVar("T")

EVERYBODY: Final = "*"
"""In the ``users`` of a rule: all users."""


class RuleTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """``[[rules]]``: users, groups as ``@group``, ``*`` for everybody, and what they may do."""

    users: list[str | int]
    publish: list[str] = []
    subscribe: list[str] = []


class HubTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The file. The last four keys are for ``sbus-relay``."""

    address: str | None = None
    mode: int | None = None
    users: list[str | int] | None = None
    trusted: list[str | int] | None = None
    relays: list[str | int] | None = None
    separator: str | None = None
    limits: Limits = Limits()
    rules: list[RuleTable] | None = None
    upstream: str | list[str] | None = None
    upstream_user: str | int | None = None
    export: list[str] | None = None
    import_: list[str] | None = msgspec.field(default=None, name="import")


_OF_RELAYS: Final = ("upstream", "upstream_user", "export", "import")


class HubSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings from the options and the file together, checked."""

    address: str
    mode: int
    users: list[int] | None
    trusted: list[int | str]
    relays: list[int | str]
    separator: bytes
    limits: Limits
    policy: Policy | None
    upstream: list[str]
    upstream_user: int | None
    export: list[bytes] | None
    import_: list[bytes] | None


def read_settings(arguments: Namespace, default: str | None = SYSTEM_ADDRESS, *, of_any: bool = False) -> HubSettings:
    """Read the options and the file that they name, and return the settings of both.

    :param default: the address where neither has one.
    :param of_any: options are missing, and the file may be that of a hub or of a relay.

    Raises :exc:`~sbuslib.errors.UsageError`, also for a file that cannot be read.
    """
    # 1. The file.
    path, option = arguments.config, vars(arguments).get
    is_relay = hasattr(arguments, "upstream")
    if option("check_config") and path is None:
        raise UsageError("--check-config needs --config")
    table, lines = (HubTable(), []) if path is None else _read(path, is_relay or of_any)
    check = _Checks(path)
    separator = arguments.separator or check("separator", _separator, table.separator, SEPARATOR)
    mode = check("mode", _mode, table.mode, 0o700)
    if option("group") or option("others"):
        mode = 0o700 | (0o070 if arguments.group or arguments.others else 0) | (0o007 if arguments.others else 0)
    upstream = [table.upstream] if isinstance(table.upstream, str) else table.upstream
    address, above = option("address"), option("upstream_user")

    # 2. All settings, each checked where it comes from.
    settings = HubSettings(
        address=check("address", _address, table.address, default) if address is None else _address(address),
        mode=mode,
        users=check.each("users", resolve_user, arguments.user, table.users),
        trusted=check.each("trusted", resolve_user, option("trusted"), table.trusted) or [],
        relays=check.each("relays", _member, option("relay"), table.relays) or [],
        separator=separator,
        limits=table.limits,
        policy=_policy(check, lines, table.rules, separator, table.limits),
        upstream=check.each("upstream", _address, option("upstream"), upstream) or [],
        upstream_user=check("upstream_user", resolve_user, table.upstream_user, None)
        if above is None
        else resolve_user(above),
        export=check.each("export", _pattern, option("export_patterns"), table.export),
        import_=check.each("import", _pattern, option("import_patterns"), table.import_),
    )
    if is_relay and not settings.upstream:
        raise UsageError(f"{path}: upstream: missing, and there is no --upstream")
    if settings.address is None:
        raise UsageError(f"{path}: address: missing, and there is no --listen")
    return settings


# ---------------------------------------------------------------------------------------------------
# The file


def _read(path: str, may_relay: bool) -> tuple[HubTable, list[int]]:
    """Parse a file. Also returns the lines on which its rules begin, if they are written as ``[[rules]]``."""
    import tomllib

    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path}: this is no regular file, and could not be read again")
            data = file.read()
    except OSError as error:
        raise UsageError(explain(error)) from None
    try:
        text = data.decode()
        parsed = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise UsageError(f"{path}: this is no TOML: {error}") from None
    if not may_relay and (key := next((key for key in _OF_RELAYS if key in parsed), None)):
        raise UsageError(f"{path}: {key}: there is no such key: that is for sbus-relay")
    try:
        table = msgspec.convert(parsed, HubTable)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {_plain(str(error))}") from None
    return table, [number for number, line in enumerate(text.splitlines(), 1) if _RULES.match(line)]


def _open_at_once(path: str, flags: int) -> int:
    """Open without a wait: a hub that serves would wait with all its clients until somebody writes into a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK)


_RULES = re.compile(r"\s*\[\[\s*rules\s*\]\]")
_AT = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")


def _plain(text: str) -> str:
    """Reword an error of msgspec: the key, and the expected value."""
    from difflib import get_close_matches

    found = _AT.match(text)
    assert found is not None
    what, where = found[1], found[2] or ""
    if unknown := _UNKNOWN.fullmatch(what):
        place: Any = {"": HubTable, "limits": Limits}.get(where, RuleTable)
        near = get_close_matches(unknown[1], place.__struct_encode_fields__, 1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        return f"{where}{'.' if where else ''}{unknown[1]}: there is no such key{hint}"
    if missing := _MISSING.fullmatch(what):
        return f"{where}.{missing[1]}: missing"
    what = what.replace("`", "").replace("array", "list").replace("object", "table").replace(" | null", "")
    return f"{where}: {what[0].lower()}{what[1:]}" if what.startswith("Expected") else f"{where}: {what}"


class _Checks:
    """Checks values, and names file and key where one of the file is wrong."""

    def __init__(self, path: str | None) -> None:
        self.path = path

    def __call__(self, key: str, function: Callable[[Any], T], value: Any, default: Any) -> T:
        """Check a value of the file and return it; ``default`` if the file does not have it."""
        if value is None:
            return default  # type: ignore[no-any-return]
        try:
            return function(value)
        except ValueError as error:  # UsageError, and a number that is too long to print
            raise UsageError(f"{self.path}: {key}: {error}") from None

    def each(
        self, key: str, function: Callable[[Any], T], option: Iterable[Any] | None, values: Iterable[Any] | None
    ) -> list[T] | None:
        """Return the values of an option if it was given, else those of the file; ``None`` if neither is there."""
        if option is not None:
            return [function(value) for value in option]
        if values is None:
            return None
        return [self(f"{key}[{number}]", function, value, None) for number, value in enumerate(values)]


def _mode(mode: int) -> int:
    if not 0 <= mode <= 0o777:
        raise UsageError(f"expected permission bits such as 0o770, got {mode}")
    return mode


def _separator(text: str) -> bytes:
    return check_separator(text.encode())


def _address(text: str) -> str:
    parse_address(text)
    return text


def _member(member: str | int) -> str | int:
    resolve_users_and_groups("a member", [member])
    return member


def _pattern(text: str | bytes) -> bytes:
    pattern = text if isinstance(text, bytes) else text.encode()  # of an option, of the file
    check_key(pattern, "pattern")
    return pattern


def _template(text: str) -> bytes:
    pattern = _pattern(text)
    check_template(pattern)
    return pattern


# ---------------------------------------------------------------------------------------------------
# The rules


def _policy(
    check: _Checks, lines: list[int], tables: list[RuleTable] | None, separator: bytes, limits: Limits
) -> Policy | None:
    if tables is None:
        return None

    def to_hold(text: str) -> bytes:
        pattern = _template(text)
        if reason := why_too_large(pattern, limits, separator):
            raise UsageError(f"{reason}: no client may hold it (limits.pattern_segments and limits.pattern_bytes)")
        return pattern

    known = len(lines) == len(tables)  # else they have another form
    made = []
    for number, table in enumerate(tables):
        key = f"rules[{number}]"
        named = [user for user in table.users if user != EVERYBODY]
        check.each(f"{key}.users", _member, None, named)
        users, groups = resolve_users_and_groups(f"{key}.users", named)
        made.append(
            Rule(
                users=users,
                groups=groups,
                everybody=EVERYBODY in table.users,
                publish=tuple(check.each(f"{key}.publish", _template, None, table.publish) or ()),
                subscribe=tuple(check.each(f"{key}.subscribe", to_hold, None, table.subscribe) or ()),
                label=f"{check.path}:{lines[number]}" if known else f"{check.path}: rule {number + 1}",
            )
        )
    return Policy(made, know_user, separator)


# ---------------------------------------------------------------------------------------------------
# Taking up a file that has changed


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
        settings: HubSettings,
        default: str | None,
    ) -> None:
        self._program = program
        self._hub = hub
        self._relay = relay
        self._arguments = arguments
        self._settings = settings
        self._default = default

    def on_hangup(self) -> None:
        """Reload, at SIGHUP."""
        with suppress(SbusError, OSError):  # reload() has printed it
            self.reload()

    def reload(self) -> str:
        """Read the file, apply each change that needs no restart, and return a line that names the others.

        Raises :exc:`~sbuslib.errors.SbusError` and :exc:`OSError`; then nothing has changed.
        """
        try:
            settings = read_settings(self._arguments, self._default)
            if settings.separator != self._settings.separator:
                raise UsageError(f"{self._arguments.config}: separator: this takes a restart of the hub")
            if settings.policy is None and self._hub.context.authorization.is_asked:  # the file may be half written
                raise UsageError(f"{self._arguments.config}: rules: without any, this takes a restart of the hub")

            # From here on the settings are complete and valid. The hub goes first: it may refuse them.
            self._hub.reconfigure(
                users=settings.users, trusted=settings.trusted, relays=settings.relays, authorize=settings.policy
            )
            if self._relay is not None:
                self._relay.reconfigure(
                    settings.upstream,
                    export=settings.export,
                    import_=settings.import_,
                    upstream_user=settings.upstream_user,
                )
        except (SbusError, OSError) as error:
            complain(self._program, f"{explain(error)} (nothing has changed)")
            raise

        later = self._takes_restart(settings)
        text = f"{self._arguments.config} was read again" + (f"; after a restart: {', '.join(later)}" if later else "")
        complain(self._program, text)
        return text

    def _takes_restart(self, settings: HubSettings) -> list[str]:
        """Return the keys whose change takes a restart of the hub."""
        now = self._settings
        keys = [key for key in ("address", "mode") if getattr(settings, key) != getattr(now, key)]
        limits = msgspec.structs.asdict(now.limits)
        return keys + [f"limits.{key}" for key in limits if limits[key] != getattr(settings.limits, key)]
