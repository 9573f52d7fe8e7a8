"""``sbus serve``: answer questions by running a command for each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .arguments import ADDRESSES, Parser, add_address
from .values import count

if TYPE_CHECKING:
    from argparse import Namespace

    from ..blocking import Client
    from ..recipes.request import Question

__all__ = ["add_arguments"]


def add_arguments(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Answer the questions under keys that match a pattern, until Ctrl-C: COMMAND is run for each, with the payload "
        "on its standard input, and what it writes is the answer. If it fails, so does the question, with what it "
        "wrote to standard error. SBUS_KEY is the key of the question, and SBUS_SENDER who asks, if the hub tells. It "
        "is ended when whoever asked has given up."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus serve text/upper -- tr a-z A-Z\n"
        "  sbus serve --jobs 4 'build/*' -- sh -c 'make -s \"${SBUS_KEY#build/}\" 2>&1'\n"
        "\n"
        "All who may publish on the bus can ask, so the command should take no payload or key for shell code.\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("pattern", metavar="KEY", help="routing key, or a pattern")
    parser.add_argument("command", metavar="COMMAND", nargs="+", help="the command and its arguments, after --")
    parser.add_argument("-j", "--jobs", type=count, metavar="N", default=1, help="so many commands at a time (1)")
    parser.set_defaults(run=_serve)


def _serve(arguments: Namespace) -> int:
    import signal
    from shutil import which

    from . import messages
    from .console import EXIT_SUCCESS, complain, on_stop, tell

    if which(arguments.command[0]) is None:
        return complain("sbus", f"{arguments.command[0]}: there is no such command")

    def stop() -> None:
        raise KeyboardInterrupt

    def serve(client: Client) -> None:
        on_stop(stop)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a command need not read its standard input to the end
        with client.serve(
            os.fsencode(arguments.pattern), lambda question: answer(question, arguments.command), workers=arguments.jobs
        ) as service:
            tell("ready to answer (Ctrl-C ends it)")
            service.wait()

    try:
        return messages.run(serve, arguments.address, senders=True, **messages.RECONNECTING)
    except KeyboardInterrupt:
        return EXIT_SUCCESS


def answer(question: Question, command: list[str]) -> bytes:
    """What a command says to a question. Raises :exc:`~sbuslib.errors.AnswerError` when it fails."""
    import subprocess
    from time import monotonic

    from ..errors import AnswerError

    told = {b"SBUS_KEY": question.key}
    if question.sender is not None:
        told[b"SBUS_SENDER"] = question.sender
    done = subprocess.run(
        command,
        input=question.payload,
        capture_output=True,
        env={**os.environb, **told},
        timeout=None if question.until is None else max(0.0, question.until - monotonic()),
        check=False,
    )
    if done.returncode:
        text = done.stderr.decode("utf-8", "replace").strip()
        raise AnswerError(text or f"{command[0]} ended with status {done.returncode}")
    return done.stdout
