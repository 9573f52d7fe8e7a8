"""``sbus request`` asks who serves a key, and ``sbus serve`` answers by running a command for each question."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from .arguments import Parser, add_address
from .console import EXIT_FAILURE, EXIT_SUCCESS, complain, tell, wait_for_ctrl_c
from .values import count, seconds

if TYPE_CHECKING:
    from argparse import Namespace

    from ..recipes.request import Answer, Question

__all__ = ["add_request", "add_serve"]


def add_request(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Ask who serves KEY, and write the answer as it is; on a terminal, bytes that cannot be printed are escaped. "
        "Nobody else can read the answer. With --all, all who serve the key are asked, and each answer is a line."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus request math/square 12\n"
        "  sbus request --timeout 1m report/build --stdin < settings.json\n"
        "  sbus request --all --wait 2s service/version\n"
        "\n"
        "exit status:\n"
        "  0   answered\n"
        "  1   nobody serves the key, no answer came in time, or the server failed: a\n"
        "      line on standard error tells which\n"
        "  2   the arguments are wrong"
    )
    add_address(parser)
    parser.add_argument("key", metavar="KEY", help="routing key")
    parser.add_argument("payload", metavar="PAYLOAD", nargs="?", help="the payload; left out, it is empty")
    parser.late = "payload"
    parser.add_argument("--stdin", action="store_true", help="all of standard input is the payload")
    parser.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="TIME", help="wait for the answer no longer (10)"
    )
    parser.add_argument("--all", action="store_true", help="show the answers of all who serve the key")
    parser.add_argument(
        "--wait", type=seconds, default=1.0, metavar="TIME", help="with --all, how long to wait for answers (1)"
    )
    parser.add_argument(
        "--json", action="store_true", help="each answer, or the error of its server, as JSON in a line"
    )
    parser.add_argument(
        "--not-secret",
        action="store_true",
        help="for the C daemon, which has no secret keys: others on the bus could read the answer",
    )
    parser.set_defaults(run=lambda arguments: _request(arguments, parser))


def _request(arguments: Namespace, parser: Parser) -> int:
    from . import messages

    if arguments.stdin and arguments.payload is not None:
        parser.error("give a PAYLOAD or --stdin")
    key, secret = os.fsencode(arguments.key), not arguments.not_secret
    with messages.connected(arguments) as client:
        payload = messages.read_stdin() if arguments.stdin else os.fsencode(arguments.payload or "")
        if not arguments.all:
            answer = client.request(key, payload, timeout=arguments.timeout, secret=secret)
            if arguments.json:
                _show_json(answer)
            else:
                write(answer)
            return EXIT_SUCCESS
        answers = client.request_many(key, payload, wait=arguments.wait, secret=secret)
    if not answers:
        return complain("sbus", "nobody answered")
    shown = [_show(answer, arguments.json) for answer in answers]
    return EXIT_SUCCESS if all(shown) else EXIT_FAILURE


def write(answer: bytes) -> None:
    """Write an answer to standard output: to a terminal such that it cannot steer it."""
    if sys.stdout.isatty():
        from ..wire.text import printable

        answer = b"".join(printable(line).encode() + b"\n" for line in answer.splitlines())
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


def _show_json(payload: bytes, error: str | None = None) -> None:
    import json

    from .messages import json_field

    told = json_field("payload", payload) if error is None else {"error": error}
    print(json.dumps(told), flush=True)


def _show(answer: Answer, as_json: bool) -> bool:
    """Show one answer of several; whether it is none of a server that failed."""
    from ..wire.text import printable
    from .tables import plain

    if as_json:
        _show_json(answer.payload, answer.error)
    elif answer.error is not None:
        complain("sbus", plain(answer.error))
    else:
        print(printable(answer.payload), flush=True)
    return answer.error is None


def add_serve(parser: Parser) -> None:
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
        "All who may publish on the bus can ask, so the command should take no payload or key for shell code."
    )
    add_address(parser)
    parser.add_argument("pattern", metavar="KEY", help="routing key, or a pattern")
    parser.add_argument("command", metavar="COMMAND", nargs="+", help="the command and its arguments, after --")
    parser.add_argument("-j", "--jobs", type=count, metavar="N", default=1, help="so many commands at a time (1)")
    parser.set_defaults(run=_serve)


def _serve(arguments: Namespace) -> None:
    from shutil import which

    from ..errors import UsageError
    from . import messages

    if which(arguments.command[0]) is None:
        raise UsageError(f"{arguments.command[0]}: there is no such command")
    with messages.connected(arguments, senders=True, **messages.RECONNECTING) as client:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a command need not read its standard input to the end
        with client.serve(
            os.fsencode(arguments.pattern), lambda question: answer(question, arguments.command), workers=arguments.jobs
        ) as service:
            tell("ready to answer (Ctrl-C ends it)")
            wait_for_ctrl_c(service.wait)


def answer(question: Question, command: list[str]) -> bytes:
    """What a command says to a question. Raises :exc:`~sbuslib.errors.AnswerError` when it fails."""
    import subprocess
    from time import monotonic

    from ..errors import AnswerError

    told = {b"SBUS_KEY": question.key}
    if question.sender is not None:
        told[b"SBUS_SENDER"] = question.sender
    try:
        done = subprocess.run(
            command,
            input=question.payload,
            capture_output=True,
            env={**os.environb, **told},
            timeout=None if question.until is None else max(0.0, question.until - monotonic()),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AnswerError(str(error)) from None
    if done.returncode:
        text = done.stderr.decode("utf-8", "replace").strip()
        raise AnswerError(text or f"{command[0]} ended with status {done.returncode}")
    return done.stdout
