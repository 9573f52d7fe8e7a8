"""``sbus journal consume``: the messages of a journal, from where this name stopped before. It never loads gevent."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from .arguments import Parser
from .console import yield_to_ctrl_c, yield_to_signals
from .journal import tell_gap
from .sub import add_forms, wants_senders
from .values import count, seconds

if TYPE_CHECKING:
    from ..journal.consume import Consumer
    from ..segments.layout import Record

__all__ = ["add_journal_consume"]

_ACKNOWLEDGED_AT_ONCE = 1_000
"""Messages that are acknowledged together: each acknowledgement is written to a file."""

_LONGEST_TOLD = 65_536
"""Bytes of the longest key or sender that a command is told. The system starts no program with one of twice as much."""


def add_journal_consume(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show the messages that a journal has and gets, or run a command for each, from the first on that was not done "
        "under this NAME before. What could not be shown, or a command did not manage, comes again the next time. "
        "Messages that are missing are told on standard error."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus journal consume alarms /var/lib/sbus/journal 'room/*/alarm'\n"
        "  sbus journal consume billing journal order/ -x ./bill    for each; its standard input is the payload\n"
        "  sbus journal consume nightly journal --once --json       what has come since the last night\n"
        "\n"
        "The command is run by sh(1), for one message at a time, with SBUS_KEY, SBUS_SENDER and SBUS_ROW in its "
        "environment. If its status is not 0, this command ends with status 1."
    )
    parser.add_argument("name", metavar="NAME", help="letters, digits and ._-; one consumer at a time has it")
    parser.add_argument("directory", metavar="DIR", help="the journal's directory")
    parser.add_argument("patterns", metavar="PATTERN", nargs="*", help="pattern of routing keys; else everything")
    parser.add_argument("-x", "--execute", metavar="COMMAND", help="run this for each message, and show none")
    parser.add_argument("--once", action="store_true", help="end where the journal ends, rather than wait for more")
    parser.add_argument("-n", "--count", type=count, metavar="N", help="end after N messages")
    parser.add_argument(
        "--timeout", type=seconds, metavar="TIME", help="end with status 1 when nothing comes for so long"
    )
    parser.add_argument("--positions", metavar="DIR", help="keep the position in this folder, not in the journal's")
    parser.add_argument("--skip-corrupt", action="store_true", help="go on after what is damaged, and tell it")
    add_forms(parser)
    parser.set_defaults(run=_consume)


def _consume(arguments: Namespace) -> None:
    from ..errors import StateError
    from ..journal.consume import consume

    do: Callable[[Record], None]
    if arguments.execute is None:
        yield_to_signals()
        do, most = _shower(arguments), _ACKNOWLEDGED_AT_ONCE
    else:
        yield_to_ctrl_c()  # a command need not read its standard input to the end
        do, most = partial(_execute, arguments.execute), 1
    try:
        with consume(
            arguments.name,
            map(os.fsencode, arguments.patterns or [""]),
            arguments.directory,
            positions=arguments.positions,
            follow=not arguments.once,
            on_corrupt="skip" if arguments.skip_corrupt else "error",
        ) as consumer:
            _work(consumer, do, most, arguments)
    except subprocess.CalledProcessError as error:
        raise StateError(f"the command ended with status {error.returncode}, and gets this message again") from None


def _work(consumer: Consumer, do: Callable[[Record], None], most: int, arguments: Namespace) -> None:
    """Do what is to be done for each row, and acknowledge up to ``most`` rows at a time."""
    waiting, left = 0, arguments.count
    while left != 0:
        try:
            row = consumer.get(0 if waiting else arguments.timeout)
        except TimeoutError:
            if not waiting:
                raise
        except StopIteration:
            break
        else:
            if row.key is None:
                tell_gap(row)
            else:
                do(row)
                left = None if left is None else left - 1
            waiting += 1
            if waiting < most and left != 0:
                continue
        sys.stdout.flush()
        consumer.acknowledge()
        waiting = 0
    sys.stdout.flush()
    consumer.acknowledge()


def _shower(arguments: Namespace) -> Callable[[Record], None]:
    from ..wire.packets import Message
    from .messages import shower

    show, out = shower(arguments), sys.stdout.buffer
    with_sender = wants_senders(arguments)

    def do(row: Record) -> None:
        assert row.key is not None
        assert row.payload is not None
        out.write(show(Message(row.key, row.payload, row.sender if with_sender else None), row.time_ns))

    return do


def _execute(command: str, row: Record) -> None:
    told = {b"SBUS_ROW": b"%d" % row.sequence, b"SBUS_SENDER": row.sender or b"", b"SBUS_KEY": row.key or b""}
    told = {name: value for name, value in told.items() if len(value) <= _LONGEST_TOLD}
    subprocess.run(["sh", "-c", command], input=row.payload, env={**os.environb, **told}, check=True)
