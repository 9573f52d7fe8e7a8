"""``sbus config check``: whether a configuration file is correct, and what its rules would have refused."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .arguments import Parser, add
from .console import CONFIG_PLACE, EXIT_FAILURE, EXIT_SUCCESS, begin_to_show, tell

if TYPE_CHECKING:
    from ..reports.rehearsal import Flow, Rehearsal
    from ..reports.sql import InDuckDB
    from .config import HubSettings

_ROWS = 20
"""Rows of a table that are shown, unless asked for more."""

_KEY_BYTES = 200
"""Bytes of a key that are shown."""


def add_config_check(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Check a configuration file, and try its rules on what a journal holds: which messages they would have refused "
        "to whom, and which patterns matched nothing. Nothing is sent. Without FILE, it is that of the bus of the "
        "machine. With --propose, no file is read: print the narrowest rules that would have allowed all of it. This "
        "needs pip install 'sbuslib[report]'."
    )
    parser.epilog = (
        "exit status:\n"
        "  0   the file is correct, and nothing known would be refused\n"
        "  1   something would be refused, or an error\n"
        "  2   the arguments are wrong, or what stands in the file\n"
        "\n"
        "examples:\n"
        "  sbus config check new.toml --journal /var/lib/sbus/journal --start 2026-11-26\n"
        "  sbus config check --journal /var/lib/sbus/journal --propose > new.toml"
    )

    add(parser, "[FILE]", "the file that the hub is to read (%(default)s)", dest="config", default=CONFIG_PLACE)
    add(parser, "--journal DIR", "directory of a journal, or of a lake")
    add(parser, "--hub ID", "only what this hub recorded; else what all hubs did")
    add(parser, "--start WHEN", "leave out earlier records")
    add(parser, "--end WHEN", "leave out records from then on")
    parser.hide("--start", "--since")
    add(parser, "--propose", "print rules that allow what was recorded")
    add(parser, "--rows N", f"only the first N of a table ({_ROWS})", default=_ROWS)
    add(parser, "-u --user USER", "as the hub was given it", action="append")
    add(parser, "--separator BYTE", "as the hub was given it")


def run_config_check(arguments: Namespace) -> int:
    from ..errors import UsageError
    from ..reports.sql import Choice, in_duckdb
    from .config import read_settings

    begin_to_show()
    if arguments.propose and arguments.journal is None:
        raise UsageError("--propose needs --journal: rules are made of what was recorded")
    settings = None if arguments.propose else read_settings(arguments, of_any=True)
    if settings is not None:
        rules = "no rules, so everybody may do everything"
        if settings.policy is not None:
            rules = f"{len(settings.policy.rules):,} rules"
        print(f"{arguments.config}: correct, {rules}")
    if arguments.journal is None:
        return EXIT_SUCCESS

    separator = _separator(arguments, settings)
    tell("counting ...")
    choice = Choice(arguments.hub, arguments.start, arguments.end)
    with in_duckdb(arguments.journal, choice, on_corrupt="skip") as recorded:
        if settings is None:
            return _propose(arguments, recorded, separator)
        return _rehearse(arguments, recorded, settings)


def _separator(arguments: Namespace, settings: HubSettings | None) -> bytes:
    """That of the keys. Raises :exc:`~sbuslib.errors.UsageError` where the journal has another than the rules."""
    from ..errors import UsageError
    from ..wire.text import printable
    from .report import separator_of

    recorded = separator_of(arguments.journal, arguments.hub, None if settings is None else settings.separator)
    if settings is not None and recorded != settings.separator:
        ours, theirs = printable(settings.separator), printable(recorded)
        raise UsageError(f"{arguments.journal}: its keys have the separator {theirs}, and the rules {ours}")
    return recorded


# ---------------------------------------------------------------------------------------------------
# What the rules refuse


def _rehearse(arguments: Namespace, recorded: InDuckDB, settings: HubSettings) -> int:
    from ..reports.rehearsal import PolicyTrial, rehearse
    from ..reports.traffic import span

    trial = PolicyTrial(settings.policy, settings.users, settings.separator)
    result, covered = rehearse(recorded, trial, settings.separator), span(recorded)
    when_ = "" if covered is None else _between(covered.first_ns, covered.last_ns)
    print(
        f"{arguments.journal}: {result.messages:,} messages of {result.users:,} users under {result.keys:,} keys{when_}"
    )
    for line in (*_unknown(result), *_refused(result, arguments.rows), *_unmatched(result, arguments.rows)):
        print(line)
    return EXIT_FAILURE if result.refusals else EXIT_SUCCESS


def _between(first_ns: int, last_ns: int) -> str:
    from .journal import when

    return f", from {when(first_ns)} to {when(last_ns)}"


def _unknown(result: Rehearsal) -> Iterator[str]:
    """A line for each kind of message of which the rules' answer is not known."""
    from .tables import plain

    if result.unknown:
        yield f"unknown: {result.unknown:,} messages whose sender nobody knows"
    if result.unsure:
        yield f"unknown: {result.unsure:,} messages from links, refused to some of the users on their way"
    for cause, messages, times in result.lost:
        parts = [f"{messages:,} messages"] * bool(messages) + [f"{times:,} times nobody knows how many"] * bool(times)
        yield f"not recorded: {' and '.join(parts) or 'none'}: {plain(cause)}"
    if result.reserved:
        yield f"not asked: {result.reserved:,} messages under keys with the reserved token !"


def _refused(result: Rehearsal, rows: int) -> Iterator[str]:
    """The table of what would be refused."""
    from .journal import when
    from .tables import columns, name_of_user

    if not result.refusals:
        yield "refused: none of those whose sender is known"
        return
    yield f"refused: {result.refused:,} messages, unless the hub's own program published them (no journal says so)"
    table: list[list[object]] = [["USER", "KEY", "FIRST", "LAST", "PROCESSES", "MESSAGES", "RULES"]]
    for one in result.refusals[:rows]:
        key = one.key[:_KEY_BYTES].decode("utf-8", "surrogateescape") + "..." * (len(one.key) > _KEY_BYTES)
        first, last = when(one.first_ns), when(one.last_ns)
        table.append([name_of_user(one.uid), key, first, last, len(one.processes), one.messages, one.why])
    yield from columns(table, left=4)
    yield from _more(len(result.refusals), rows)
    yield "Programs are not known: a journal has process ids alone."


def _unmatched(result: Rehearsal, rows: int) -> Iterator[str]:
    """The table of patterns that nothing matched, and of rules that have no others."""
    from .tables import columns

    if not result.unmatched:
        return
    yield "unmatched: no message of a known sender needs these"
    table: list[list[object]] = [["RULE", "VERB", "PATTERN"]]
    for rule, verb, template in result.unmatched[:rows]:
        table.append([rule.label, verb, f'"{template.decode("utf-8", "surrogateescape")}"'])
    yield from columns(table, left=2)
    yield from _more(len(result.unmatched), rows)


def _more(count: int, rows: int) -> Iterator[str]:
    if count > rows:
        yield f"and {count - rows:,} more: --rows {count}"


# ---------------------------------------------------------------------------------------------------
# What rules would allow it


def _propose(arguments: Namespace, recorded: InDuckDB, separator: bytes) -> int:
    from ..reports.proposal import allowing, rules_text
    from ..reports.rehearsal import flows
    from ..reports.traffic import span
    from ..wire.text import printable

    unknown, covered = 0, span(recorded)

    def known() -> Iterator[Flow]:
        nonlocal unknown
        for flow in flows(recorded, separator):
            unknown += 0 if flow.users else flow.messages
            yield flow

    publish = allowing(known(), separator)
    print(f"# Allows what {printable(arguments.journal.encode('utf-8', 'surrogateescape'))} holds", end="")
    print("" if covered is None else _between(covered.first_ns, covered.last_ns))
    if unknown:
        print(f"# but for {unknown:,} messages whose sender nobody knows.")
    print("# Who subscribed to what is not recorded: add subscribe = [...] to each rule.")
    for line in rules_text({uid: _name(uid) for uid in publish}, publish, separator):
        print(line)
    return EXIT_SUCCESS


def _name(uid: int) -> str | int:
    """A user as a file of rules names it: by its name, if that means this user there."""
    from ..errors import UsageError
    from ..kernel.users import name_of_user, resolve_user

    name = name_of_user(uid)
    try:
        plain = name.isascii() and name.isprintable() and not name.startswith(("@", "*"))
        return name if plain and not name.isdigit() and resolve_user(name) == uid else uid
    except UsageError:
        return uid
