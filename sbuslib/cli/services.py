"""``sbus request``, ``serve``, ``retain`` and ``queue``: services of a bus, and requests to them."""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from .arguments import Parser, add, add_address
from .console import EXIT_FAILURE, EXIT_SUCCESS, complain, on_stop, progress, show_status, wait_for_ctrl_c
from .tables import columns, plain, show_json

if TYPE_CHECKING:
    from ..clients.recipes.request import Reply, Request
    from ..services.retain import Retain


_LISTED_WITHIN = 0.5
"""Seconds in which services of queues answer."""
_SHOWN_BYTES = 80
"""Bytes of the payload of a dead job that are shown."""
_SHOWN_AFTER = 2.0
"""Seconds after which ``sbus retain`` prints that it keeps, though it does not answer yet."""


def add_request(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Send a request to a server of KEY, and write the reply as it is; on a terminal, bytes that cannot be printed "
        "are escaped. Nobody else can read the reply. With --all, all servers of the key are asked, and each reply "
        "is a line."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus request --timeout 1m report/build --stdin < settings.json\n"
        "  sbus request --all --wait 2s service/version\n"
        "\n"
        "exit status:\n"
        "  0   answered\n"
        "  1   nobody serves the key, no reply came in time, or the server failed: a\n"
        "      line on standard error says which\n"
    )

    add_address(parser)
    add(parser, "KEY", "routing key")
    add(parser, "[PAYLOAD]", "the payload; left out, it is empty")
    parser.late = "payload"
    add(parser, "--stdin", "all of standard input is the payload")
    add(parser, "--timeout TIME", "wait for the reply no longer (10)", default=10.0)
    add(parser, "--all", "show the replies of all who serve the key")
    add(parser, "--wait TIME", "with --all, how long to wait for replies (1)", default=1.0)
    add(parser, "--json", "each reply, or the error of its server, as JSON in a line")
    add(parser, "--not-secret", "for the C daemon, which has no secret keys: others on the bus could read the reply")


def run_request(arguments: Namespace) -> int:
    from . import messages

    if arguments.stdin and arguments.payload is not None:
        arguments.parser.error("give a PAYLOAD or --stdin")
    key, secret = arguments.key, not arguments.not_secret
    with messages.connected(arguments) as client:
        payload = messages.read_stdin() if arguments.stdin else arguments.payload or b""
        if not arguments.all:
            reply = client.request(key, payload, timeout=arguments.timeout, secret=secret)
            if arguments.json:
                _show_json(reply)
            else:
                write(reply)
            return EXIT_SUCCESS
        replies = client.request_many(key, payload, wait=arguments.wait, secret=secret)
    if not replies:
        return complain("sbus", "nobody replied")
    shown = [_show(reply, arguments.json) for reply in replies]
    return EXIT_SUCCESS if all(shown) else EXIT_FAILURE


def write(reply: bytes) -> None:
    """Write a reply to standard output; for a terminal, without control characters."""
    if sys.stdout.isatty():
        from ..wire.text import printable

        reply = b"".join(printable(line).encode() + b"\n" for line in reply.splitlines())
    sys.stdout.buffer.write(reply)
    sys.stdout.buffer.flush()


def _show_json(payload: bytes, error: str | None = None) -> None:
    from .messages import json_field

    show_json(json_field("payload", payload) if error is None else {"error": error})


def _show(reply: Reply, as_json: bool) -> bool:
    """Print one reply of several. Returns ``False`` if it is an error of its server."""
    from ..wire.text import printable

    if as_json:
        _show_json(reply.payload, reply.error)
    elif reply.error is not None:
        complain("sbus", plain(reply.error))
    else:
        print(printable(reply.payload), flush=True)
    return reply.error is None


def add_serve(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Answer requests under keys that match a pattern, until Ctrl-C: COMMAND is run for each, with the payload "
        "on its standard input, and its output is the reply. If it fails, so does the request, with the text that it "
        "wrote to standard error. SBUS_KEY is the key of the request, and SBUS_SENDER its sender, if the hub names "
        "senders. The command is ended when the requester has given up."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus serve text/upper -- tr a-z A-Z\n"
        "  sbus serve --jobs 4 'build/*' -- sh -c 'make -s \"${SBUS_KEY#build/}\" 2>&1'\n"
        "\n"
        "All who may publish on the bus can send requests, so the command should take no payload or key for shell code."
    )

    add_address(parser)
    add(parser, "KEY", "routing key, or a pattern", dest="pattern")
    add(parser, "COMMAND...", "the command and its arguments, after --", dest="command")
    add(parser, "-j --jobs N", "so many commands at a time (1)", default=1)


def run_serve(arguments: Namespace) -> None:
    from shutil import which

    from ..errors import UsageError
    from . import messages

    if which(arguments.command[0]) is None:
        raise UsageError(f"{arguments.command[0]}: there is no such command")
    with messages.connected(arguments, senders=True, lasting=True) as client:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a command need not read its standard input to the end
        with client.serve(
            arguments.pattern, lambda request: reply_to(request, arguments.command), workers=arguments.jobs
        ) as service:
            show_status("ready to answer (Ctrl-C ends it)")
            wait_for_ctrl_c(service.wait)


def reply_to(request: Request, command: list[str]) -> bytes:
    """Return a command's reply to a request. Raises :exc:`~sbuslib.errors.ReplyError` when it fails."""
    import subprocess
    from time import monotonic

    from ..errors import ReplyError

    variables = {b"SBUS_KEY": request.key}
    if request.sender is not None:
        variables[b"SBUS_SENDER"] = request.sender
    try:
        done = subprocess.run(
            command,
            input=request.payload,
            capture_output=True,
            env={**os.environb, **variables},
            timeout=None if request.until is None else max(0.0, request.until - monotonic()),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ReplyError(str(error)) from None
    if done.returncode:
        text = done.stderr.decode("utf-8", "replace").strip()
        raise ReplyError(text or f"{command[0]} ended with status {done.returncode}")
    return done.stdout


def add_retain(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Keep the newest message of each key that matches, until Ctrl-C or SIGTERM, for sbus get and for programs that "
        "subscribe with last=True. An empty message deletes a key. Secrets are never kept.\n\n"
        "It begins to keep at once, copies the values of another service of the same patterns, and then answers. "
        "Beyond --max-keys and --max-bytes, the keys with the oldest messages are deleted."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus retain room/ &\n"
        "  sbus pub room/1/temp 21.5\n"
        "  sbus get 'room/*/temp'\n"
        "  sbus retain --store /var/lib/sbus/last.db config/ 'room/*/temp'"
    )

    add_address(parser)
    add(parser, "PATTERN...", "pattern of routing keys; '': everything")
    add(parser, "--store FILE", "keep them in this file as well, over restarts")
    add(parser, "--max-keys N", "keep no more keys (100000)", default=100_000)
    add(parser, "--max-bytes SIZE", "keep no more (64MB)", default=2**26)


def run_retain(arguments: Namespace) -> None:
    import gevent

    from ..services.retain import Retain

    address, arguments.address = arguments.address, None  # errors may be about files, and name the hub themselves
    with progress(lambda: "looking for a hub"):
        service = Retain(
            address, *arguments.patterns, file=arguments.store, keys=arguments.max_keys, size=arguments.max_bytes
        )
    on_stop(service.stop, gevent.signal_handler)
    gevent.spawn(_show_kept, service)
    service.run()


def _show_kept(service: Retain) -> None:
    """Print when a service answers. It keeps messages before that, too."""
    if not service.is_settled.wait(_SHOWN_AFTER):
        show_status("keeping; looking for others that keep these patterns ...")
        service.is_settled.wait()
    others = "" if service.taken_over is None else f", {service.taken_over:,} of them from another service"
    show_status(f"{len(service.kept.values):,} keys are kept{others} of {service.client.address} (Ctrl-C ends it)")


def add_queue(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Share jobs out among workers until Ctrl-C or SIGTERM. Programs submit jobs to the queue NAME; with * at its "
        "end, to any queue whose name begins so. A message under a PATTERN is a job, too. Each job is given to "
        "the worker with most room, and given again when that worker dies, gives it back or does not acknowledge it in "
        "time. A job that was given too often goes into the queue NAME-dead.\n\n"
        "Jobs are kept in a file, and those that were accepted outlive a crash. The command ends with status 1 when "
        "the disk is full. Only processes of this user, of root, and of users that are trusted may work; they, and "
        "those of --producer, may put jobs in."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus queue mail mail/                       all messages under mail/\n"
        "  sbus queue --store /var/lib/app 'celery*'   many queues, for submitted jobs\n"
        "  sbus queue --memory thumbs 'photo/*/new'    quick, and gone when it ends\n"
        "  sbus queue --ordered orders order/          one job of each key at a time\n"
        "  sbus queue --list                           the queues of this bus, and their state\n"
        "  sbus queue --dead mail                      its dead jobs\n"
        "  sbus queue --retry mail                     put them back\n"
        "  sbus queue --purge mail-dead                forget jobs that wait"
    )

    add(parser, "[NAME]", "name of the queue, one segment of a key; or its beginning and *")
    add(parser, "[PATTERN...]", "messages that match are jobs")
    add_address(parser)
    add(parser, "--list", "show the queues that services of this bus have")
    add(parser, "--json", "with --list, a JSON object a line for each; the age of the oldest job in seconds")
    add(parser, "--dead", "show the dead jobs of NAME, the oldest; its service has to trust this user")
    add(parser, "--retry", "put the dead jobs of NAME back into it; its service has to trust this user")
    add(parser, "--purge", "delete all waiting jobs of NAME; its service has to trust this user")
    where = parser.add_mutually_exclusive_group()
    add(where, "--store FILE", "where jobs are kept, or a folder (NAME.queue in ~/.local/state/sbus)")
    add(where, "--memory", "keep no job when this ends")
    add(parser, "--max-jobs N", "refuse more jobs (100000)", default=100_000)
    add(parser, "--max-bytes SIZE", "refuse more bytes of jobs (256MB)", default=2**28)
    add(parser, "--max-each N", "refuse more jobs for one queue")
    add(parser, "--age TIME", "forget jobs that no worker had by then, unless they say otherwise")
    add(parser, "--ordered", "give the jobs of each key in order, one at a time")
    add(parser, "--trusted USER", "its processes may work, too; may be repeated", action="append", default=[])
    add_queue_rules(parser)


def add_queue_rules(parser: Parser) -> None:
    """Add the options of a service of queues that ``sbus broker`` has, too."""
    help = "have the disk take jobs so much later: a crash of the machine loses those; each is on disk when accepted"
    add(parser, "--sync TIME", help)
    add(parser, "--limit TIME", "give a job again after this time (60)", default=60.0)
    add(parser, "--attempts N", "give a job so often at most (5)", default=5)
    help = "it may put jobs in, too; '*': everybody; may be repeated"
    add(parser, "--producer USER", help, dest="users", action="append", default=[])


def run_queue(arguments: Namespace) -> None:
    # 1. Requests to services that run.
    if arguments.list:
        _list_queues(arguments)
        return
    if arguments.name is None:
        arguments.parser.error("give the NAME of a queue")
    if arguments.dead:
        _show_dead(arguments)
        return
    if arguments.retry:
        _retry_dead(arguments)
        return
    if arguments.purge:
        _purge_queue(arguments)
        return

    # 2. The rules, and the file.
    from contextlib import nullcontext

    from ..kernel.users import resolve_user
    from ..services.queue_rules import Jobs
    from ..services.queue_service import QueueService
    from ..services.queue_store import Store

    jobs = Jobs(
        *(arguments.max_jobs, arguments.max_bytes, arguments.limit, arguments.attempts),
        ordered=arguments.ordered,
        each=arguments.max_each,
        age=arguments.age,
    )
    address, arguments.address = arguments.address, None  # errors may be about files, and name the hub themselves
    if not arguments.memory:
        arguments.store = _find_store(arguments.store, arguments.name)

    # 3. The service.
    with nullcontext() if arguments.memory else Store(arguments.store, arguments.sync) as store:
        with progress(lambda: "waiting for a hub"):
            service = QueueService(
                address,
                os.fsencode(arguments.name),
                arguments.patterns,
                jobs,
                store,
                trusted=map(resolve_user, arguments.trusted),
                users=None if "*" in arguments.users else map(resolve_user, arguments.users),
            )
        on_stop(service.stop)
        show_status(f"{len(jobs.jobs):,} jobs wait in {arguments.name} on {service.client.address} (Ctrl-C ends it)")
        service.run()
    ends = f"{len(jobs.jobs):,} {'lost with --memory' if arguments.memory else 'kept'}"
    gone = f", {jobs.expired:,} expired" if jobs.expired else ""
    show_status(f"{service.accepted:,} jobs accepted, {service.refused:,} refused, {service.done:,} done{gone}, {ends}")


def _list_queues(arguments: Namespace) -> None:
    """Ask all services which queues they have."""
    from ..clients.recipes.queue import list_queues, services_key
    from ..wire.text import printable
    from . import messages

    with messages.connected(arguments) as client:
        key = services_key(client.hub.separator)
        queues = list_queues(lambda after: client.request_many(key, after, wait=_LISTED_WITHIN))
    if arguments.json:
        for name, state in sorted(queues.items()):
            fields = {field: getattr(state, field) for field in ("waiting", "delayed", "held", "workers", "oldest")}
            show_json({"queue": printable(name), **fields})
        return

    table: list[tuple[object, ...]] = [("QUEUE", "WAITING", "HELD", "WORKERS", "OLDEST WAITS")]
    for name, state in sorted(queues.items()):
        oldest = "" if state.oldest is None else f"{state.oldest:.0f} s"
        table.append((os.fsdecode(name), state.waiting, state.held, state.workers, oldest))
    print("\n".join(columns(table)), flush=True)


def _show_dead(arguments: Namespace) -> None:
    """Show dead jobs, each in a line: number, sender, key, and the beginning of the payload."""
    from ..services.queue_rules import dead_name
    from . import messages

    with messages.connected(arguments) as client:
        jobs = client.queue(dead_name(os.fsencode(arguments.name), client.hub.separator)).peek()
    table: list[tuple[object, ...]] = [("NUMBER", "SENDER", "KEY", "PAYLOAD")]
    for job in jobs:
        cut = job.payload[:_SHOWN_BYTES] + (b" ..." if len(job.payload) > _SHOWN_BYTES else b"")
        table.append((job.number, *map(os.fsdecode, (job.sender or b"", job.key, cut))))
    print("\n".join(columns(table)), flush=True)


def _retry_dead(arguments: Namespace) -> None:
    from . import messages

    with messages.connected(arguments) as client:
        show_status(f"{client.queue(arguments.name).retry():,} dead jobs of {arguments.name} are back in it")


def _purge_queue(arguments: Namespace) -> None:
    from . import messages

    with messages.connected(arguments) as client:
        show_status(f"{client.queue(arguments.name).purge():,} jobs of {arguments.name} are forgotten")


def _find_store(path: str | None, name: str) -> str:
    """Return the file of jobs: ``path``, or a file in it if it is a folder, or in the default folder."""
    if path is None:
        return _default_store(name)
    return os.path.join(path, _store_name(name)) if os.path.isdir(path) else path


def _store_name(name: str) -> str:
    return f"{name.replace('/', '_')}.queue"


def _default_store(name: str) -> str:
    """Return the path of ``NAME.queue`` in the folder for state."""
    from ..kernel.defaults import state_folder
    from ..kernel.regular_files import make_folder

    folder = state_folder()
    make_folder(folder)
    return os.path.join(folder, _store_name(name))
