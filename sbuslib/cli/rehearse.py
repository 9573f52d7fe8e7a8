"""``sbus config check``: a check of a configuration file, and of recorded messages that its rules would refuse."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .arguments import Parser, add, add_address
from .console import CONFIG_PLACE, EXIT_FAILURE, EXIT_SUCCESS, begin_to_show, show_status
from .tables import plain, show_json

if TYPE_CHECKING:
    from ..keys.policy import Rule, Verb
    from ..reports.rehearsal import Ending, MissingMessages, Rehearsal
    from ..reports.sql import InDuckDB
    from ..reports.traffic import Span
    from ..statistics import HeldPatterns
    from .config import HubSettings

_ROWS = 20
"""Rows of a table that are shown, unless asked for more."""

_KEY_BYTES = 200
"""Bytes of a key that are shown."""


def add_config_check(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Check a configuration file, and try its rules: which messages of a journal they would have refused, by user, "
        "which subscriptions of a running hub would end, and which patterns match none of these. Nothing is sent. "
        "Without FILE, the file is that of the machine's bus. With --propose, no file is read: print the narrowest "
        "rules that would have allowed all of it. A journal needs pip install 'sbuslib[report]'. A hub shows its "
        "subscriptions to its own user, root, and the users of --trusted."
    )
    parser.epilog = (
        "exit status:\n"
        "  0   the file is correct, and nothing known would be refused or end\n"
        "  1   something would be refused or end, or an error\n"
        "  2   the arguments or the file are wrong\n"
        "\n"
        "examples:\n"
        "  sbus config check new.toml --journal /var/lib/sbus/journal --start 2026-11-26\n"
        "  sbus config check --journal /var/lib/sbus/journal --propose > new.toml"
    )

    add(parser, "[FILE]", "the file that the hub is to read (%(default)s)", dest="config", default=CONFIG_PLACE)
    add_address(parser, help="the hub whose subscriptions are looked at")
    add(parser, "--journal DIR", "directory of a journal, or of a lake")
    add(parser, "--hub ID", "only records of this hub; else of all hubs")
    add(parser, "--start WHEN", "leave out earlier records")
    add(parser, "--end WHEN", "leave out records from then on")
    parser.hide("--start", "--since")
    add(parser, "--propose", "print rules that allow all that was recorded")
    add(parser, "--rows N", f"only the first N of a table ({_ROWS})", default=_ROWS)
    add(parser, "--json", "all that was found, as JSON in a line; not with --propose")
    add(parser, "-u --user USER", "as for the hub", action="append")
    add(parser, "--separator BYTE", "as for the hub")


def run_config_check(arguments: Namespace) -> int:
    from ..errors import UsageError
    from .config import read_settings

    begin_to_show()
    if arguments.propose:
        if arguments.journal is None:
            raise UsageError("--propose needs --journal: rules are made of what was recorded")
        if arguments.json:
            raise UsageError("--json is not for --propose, which prints a file of rules")
        return _propose(arguments)
    settings = read_settings(arguments, of_any=True)
    return _rehearse(arguments, settings)


@contextmanager
def _recorded(arguments: Namespace) -> Iterator[InDuckDB]:
    from ..reports.sql import Choice, in_duckdb

    show_status("counting ...")
    choice = Choice(arguments.hub, arguments.start, arguments.end)
    with in_duckdb(arguments.journal, choice, on_corrupt="skip") as recorded:
        yield recorded


def _subscriptions(arguments: Namespace, separator: bytes) -> tuple[list[HeldPatterns] | None, str]:
    """Return the patterns of the hub's clients now, and its address; or ``None``, and why the hub was not asked."""
    from ..blocking import Client
    from ..errors import SbusError, UsageError
    from .console import explain

    try:
        with Client(arguments.address) as client:
            if client.hub.separator != separator:
                raise UsageError(f"{client.address}: this hub has another separator")
            return client.hub.patterns(), client.address
    except (SbusError, OSError) as error:
        if arguments.address is not None:
            raise
        return None, explain(error)


def _separator(arguments: Namespace, settings: HubSettings | None) -> bytes:
    """Return the separator of the keys. Raises :exc:`~sbuslib.errors.UsageError` if the journal's is not the rules'."""
    from ..errors import UsageError
    from ..reports.sql import require
    from ..wire.text import printable
    from .report import separator_of

    require()
    recorded = separator_of(arguments.journal, arguments.hub, None if settings is None else settings.separator)
    if settings is not None and recorded != settings.separator:
        ours, theirs = printable(settings.separator), printable(recorded)
        raise UsageError(f"{arguments.journal}: its keys have the separator {theirs}, and the rules {ours}")
    return recorded


# ---------------------------------------------------------------------------------------------------
# Messages that the rules refuse


def _rehearse(arguments: Namespace, settings: HubSettings) -> int:
    from ..reports.rehearsal import PolicyTrial, endings, rehearse
    from ..reports.traffic import span

    trial = PolicyTrial(settings.policy, settings.users, settings.separator)
    result, covered, ending = None, None, None
    verbs: list[Verb] = []

    # 1. Recorded messages.
    if arguments.journal is not None:
        verbs.append("publish")
        separator = _separator(arguments, settings)
        with _recorded(arguments) as recorded:
            result, covered = rehearse(recorded, trial, separator), span(recorded)

    # 2. Subscriptions of now, and patterns that matched nothing.
    clients, where = _subscriptions(arguments, settings.separator)
    if clients is not None:
        verbs.append("subscribe")
        ending = endings(trial, clients, settings.separator)
    unmatched = trial.unmatched(*verbs)

    # 3. What was found.
    if arguments.json:
        show_json(_as_json(settings, result, ending, unmatched))
    else:
        rules = "no rules, so everybody may do everything"
        if settings.policy is not None:
            rules = f"{len(settings.policy.rules):,} rules"
        print(f"{plain(str(arguments.config))}: correct, {rules}")
        if result is not None:
            many = f"{result.messages:,} messages of {result.users:,} users under {result.keys:,} keys"
            print(f"{plain(str(arguments.journal))}: {many}{'' if covered is None else _between(covered)}")
            print("\n".join((*_unknown(result), *_refused(result, arguments.rows))))
        if clients is None:
            print(f"subscriptions: no hub was asked: {where}")
        else:
            print("\n".join(_ending(ending or [], clients, where, arguments.rows)))
        print("\n".join(_unmatched(unmatched, settings, verbs, arguments.rows)), end="")
    return EXIT_FAILURE if ending or (result is not None and result.refusals) else EXIT_SUCCESS


def _as_json(
    settings: HubSettings,
    result: Rehearsal | None,
    ending: list[Ending] | None,
    unmatched: list[tuple[Rule, Verb, bytes]],
) -> dict[str, object]:
    """Return all findings for JSON, keys and patterns as text; *None* for what was not looked at."""
    recorded, ends = None, None
    if result is not None:
        recorded = {
            **{name: getattr(result, name) for name in ("messages", "refused", "unknown", "unsure", "reserved")},
            "refusals": [
                {"uid": refusal.uid, "key": _shown(refusal.key), "messages": refusal.messages, "why": refusal.why}
                for refusal in result.refusals
            ],
            "lost": [lost._asdict() for lost in result.lost],
        }

    if ending is not None:
        ends = [{"uid": end.who.uid, "pattern": _shown(end.pattern), "why": end.why} for end in ending]

    return {
        "rules": None if settings.policy is None else len(settings.policy.rules),
        "recorded": recorded,
        "ending": ends,
        "unmatched": [
            {"rule": rule.label, "verb": verb, "pattern": _shown(template)} for rule, verb, template in unmatched
        ],
    }


def _between(covered: Span) -> str:
    from .journal import when

    return f", from {when(covered.first_ns)} to {when(covered.last_ns)}"


def _unknown(result: Rehearsal) -> Iterator[str]:
    """Yield a line for each kind of message for which the rules' answer is unknown."""
    if result.unknown:
        yield f"unknown: {result.unknown:,} messages whose sender nobody knows"
    if result.unsure:
        yield f"unknown: {result.unsure:,} messages from links, refused to some of the users on their way"
    yield from _missing(result.lost)
    if result.reserved:
        yield f"not asked: {result.reserved:,} messages under keys with the reserved token !"


def _missing(lost: list[MissingMessages]) -> Iterator[str]:
    """Yield a line for each cause of messages that are not recorded."""
    for cause, messages, times in lost:
        parts = [f"{messages:,} messages"] * bool(messages) + [f"{times:,} times nobody knows how many"] * bool(times)
        yield f"not recorded: {' and '.join(parts) or 'none'}: {plain(cause)}"


def _refused(result: Rehearsal, rows: int) -> Iterator[str]:
    """Yield the table of messages that would be refused."""
    from .journal import when
    from .tables import columns, name_of_user

    if not result.refusals:
        yield "refused: none of those whose sender is known"
        return
    yield f"refused: {result.refused:,} messages, unless the hub's own program published them (no journal says so)"
    table: list[list[object]] = [["USER", "KEY", "FIRST", "LAST", "PROCESSES", "MESSAGES", "RULES"]]
    for one in result.refusals[:rows]:
        first, last = when(one.first_ns), when(one.last_ns)
        table.append([name_of_user(one.uid), _shown(one.key), first, last, len(one.processes), one.messages, one.why])
    yield from columns(table, left=4)
    yield from _more(len(result.refusals), rows)
    yield "Programs are not known: a journal has process ids alone."


def _ending(found: list[Ending], clients: list[HeldPatterns], where: str, rows: int) -> Iterator[str]:
    """Yield the table of subscriptions that would end."""
    from .tables import columns, name_of_user

    total = sum(client.count for client in clients)
    held = f"{total:,} at {plain(where)}"
    yield f"subscriptions: of {held}, {len(found):,} would end; links keep what their user may read"
    if missing := total - sum(len(client.patterns) for client in clients):
        yield f"unknown: {missing:,} of them, of clients that hold too many to be looked at"
    if found:
        table: list[list[object]] = [["USER", "PATTERN", "OF", "PROCESS", "RULES"]]
        for one in found[:rows]:
            kind = "link" if one.is_link else "client"
            table.append([name_of_user(one.who.uid), _shown(one.pattern), kind, str(one.who.pid), one.why])
        yield from columns(table, left=3)
        yield from _more(len(found), rows)


def _unmatched(
    found: list[tuple[Rule, Verb, bytes]], settings: HubSettings, verbs: list[Verb], rows: int
) -> Iterator[str]:
    """Yield the table of patterns that nothing matched, and the rules that have no others."""
    from .tables import columns

    if not found:
        return
    yield f"unmatched: nothing that is known needs these to {' or '.join(verbs)}"
    table: list[list[object]] = [["RULE", "VERB", "PATTERN"]]
    for rule, verb, template in found[:rows]:
        table.append([rule.label, verb, f'"{_shown(template)}"'])
    yield from columns(table, left=2)
    yield from _more(len(found), rows)

    needless, rules = set(found), settings.policy.rules if settings.policy is not None else ()
    labels = [
        rule.label
        for rule in rules
        if all((rule, verb, template) in needless for verb, templates in rule.templates() for template in templates)
    ]
    if labels:
        yield f"whole rules that may go, as far as that shows: {', '.join(map(plain, labels))}"
    yield ""


def _shown(key: bytes) -> str:
    """Return a key or pattern for a table, cut to its beginning."""
    return key[:_KEY_BYTES].decode("utf-8", "surrogateescape") + "..." * (len(key) > _KEY_BYTES)


def _more(count: int, rows: int) -> Iterator[str]:
    if count > rows:
        yield f"and {count - rows:,} more: --rows {count}"


# ---------------------------------------------------------------------------------------------------
# Rules that would allow all of it


def _propose(arguments: Namespace) -> int:
    from ..reports.proposal import allowing, held, is_text, rules_text
    from ..reports.rehearsal import flows, missing_messages
    from ..reports.traffic import span
    from ..wire.text import printable

    # 1. Published keys and subscriptions, by user.
    separator = _separator(arguments, None)
    with _recorded(arguments) as recorded:
        covered, listed, lost = span(recorded), list(flows(recorded, separator)), missing_messages(recorded)
    unknown = sum(flow.messages for flow in listed if not flow.users)
    publish = allowing(listed, separator)
    clients, where = _subscriptions(arguments, separator)
    subscribe = held(clients or (), separator)

    # 2. Comments about the sources, and about gaps in them.
    print(f"# publish: all that {printable(os.fsencode(arguments.journal))} holds", end="")
    print("." if covered is None else f"{_between(covered)}.")
    if unknown:
        print(f"# But for {unknown:,} messages whose sender nobody knows.")
    for line in _missing(lost):
        print(f"# {line}")
    if clients is None:
        print(f"# subscribe: not known, no hub was asked: {where}")
    else:
        print(f"# subscribe: what clients of {printable(os.fsencode(where))} hold now.")
        written = sum(is_text(pattern) for client in clients for pattern in client.patterns)
        if missing := sum(client.count for client in clients) - written:
            print(f"# But for {missing:,} subscriptions that are not UTF-8, or of clients that hold too many.")
    names = {uid: _name(uid) for uid in {**publish, **subscribe}}
    for line in rules_text(names, publish, subscribe, separator):
        print(line)
    return EXIT_SUCCESS


def _name(uid: int) -> str | int:
    """Return a user as a file of rules names it: by its name, if that means this user there."""
    from ..errors import UsageError
    from ..kernel.users import name_of_user, resolve_user

    name = name_of_user(uid)
    try:
        plain = name.isascii() and name.isprintable() and not name.startswith(("@", "*"))
        return name if plain and not name.isdigit() and resolve_user(name) == uid else uid
    except UsageError:
        return uid
