"""``sbusd``: a hub as a daemon, with the flags of the C daemon; and the code that ``sbus hub`` shares with it.

The steps have to be in this order:

* Checks that can fail (users, pid file, address) come before the fork, so that the caller sees the error.
* gevent is loaded after the fork. It does not survive a fork, and takes longest to load.
* Signals are blocked from before the socket's file is made until the hub can handle them. So no signal ends this
  process and leaves the file behind.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import SbusError
from ..kernel.defaults import SYSTEM_ADDRESS
from .arguments import Parser, add, add_address, add_program_options
from .console import EXIT_SUCCESS, STOPPING, complain, finish, hold_signals, on_stop, release_signals

if TYPE_CHECKING:
    from argparse import Namespace

    from ..hub import Hub
    from ..kernel.sockets import Listener
    from ..relay import Relay
    from ..web.serving import LocalServer
    from ..wire.addresses import Address
    from .config import HubSettings

PID_FILE = "/run/sbus.pid"
NO_PID_FILE = "/dev/null"

METRICS_TRIES = 100
METRICS_PAUSE = 0.05
"""How many times a hub that took over another one tries to get the address of its metrics, and seconds between."""

_DESCRIPTION = """\
Serve a message bus in the background. sbusd listens on a Unix-domain sequenced-packet socket and passes what its \
clients publish on to those of them whose patterns match. It takes the arguments of the C daemon of the same name and \
serves the same protocol.

Without -f the command returns with status 0 once clients can connect, and with another if that cannot be. The daemon \
keeps its standard error, such as a log file, unless that is a terminal. It logs there each kind of violation by \
clients of a user, once."""

ADDRESS_FORMS = """\
addresses:
  PATH                      a socket in the file system, of at most 107 bytes
  /dev/fd/N                 a socket that was passed as descriptor N, whether
                            it listens already or not
  /dev/unix/abstract        a random name in the abstract namespace, which is
                            printed first
  /dev/unix/abstract/HEX    a name in the abstract namespace: its bytes in
                            hexadecimal from the leading 00 on

Without -g, -o or -u only the hub's own user and root may connect to an abstract address, as it has no mode."""

_EPILOG = f"""\
{ADDRESS_FORMS}

signals:
  SIGINT, SIGTERM   accept no more, pass on what clients have sent already, for
                    at most a second, remove the socket and the pid file, and
                    exit with status 0
  SIGHUP            with --config: read the file again; an error in it changes
                    nothing. Else the same as SIGTERM in the foreground, unless
                    it was ignored as under nohup(1); ignored in the background

exit status:
  0   in the background: it listens; in the foreground: a signal has stopped it,
      or its last client has left
  1   it cannot listen: one line on standard error says why
  2   the arguments are wrong

examples:
  sbusd                                  a bus for this user and root
  sbusd -o -a /run/sbus.socket           a bus for everybody on this machine
  sbusd -f -a /tmp/bus                   in the foreground
  SBUS_ADDRESS=$(sbusd -c -p /dev/null -a /dev/unix/abstract)
                                         at a random address, until the last
                                         client leaves"""


def add_hub_arguments(parser: Parser, *, may_take_over: bool = True) -> None:
    """Add the arguments that ``sbusd``, ``sbus hub`` and ``sbus-relay`` have in common, without the address."""
    users: dict[str, Any] = {"action": "append"}
    add(parser, "-c --close", "exit when the last client has left, once there was one")
    what = "let the group of the socket connect: its mode is 0770, whatever the umask, and else 0700"
    add(parser, "-g --group", f"{what}. At an abstract address: the hub's own group")
    add(parser, "-o --others", "let everybody connect: adds 0077 to the mode, else as -g")
    add(parser, "-r --reuse", "replace an empty file at the address, as a socket that nobody listens at always is")

    # Permissions.
    what = "serve only clients of USER, by name or id, besides those of the hub's own user; may be repeated. The mode"
    add(parser, "-u --user USER", f"{what} of the socket must let USER connect too, see -o", **users)
    what = "let relays of USER, or of @GROUP, join; may be repeated. They learn which of the keys that they published"
    add(parser, "--relay USER", f"{what} are not wanted. Those of the hub's own user and root always may", **users)
    what = "let USER ask for statistics, and hold back publishers of other users; may be repeated. The hub's own user"
    add(parser, "--trusted USER", f"{what} and root always may", **users)

    # How it serves.
    what = "the byte between the segments of a key (/). Clients of the protocol's edition of 2017 need a full stop"
    add(parser, "--separator BYTE", what)
    what = "serve metrics for Prometheus, at a loopback address and port, or at the path of a Unix socket"
    add(parser, "--metrics WHERE", f"{what}. Needs sbuslib[metrics]")
    what = "settings without an option come from FILE, which is TOML: sbus hub units sbus.toml prints one with comments"
    add(parser, "--config FILE", f"{what}. It is read again at SIGHUP and by sbus hub reload")
    add(parser, "--check-config", "only check whether the file is correct")
    if may_take_over:
        what = "take over the hub that serves the address, with its socket and all clients, who notice nothing; it then"
        more = "ends. If that fails, it goes on. For the hub's own user and root; no relay of either hub may be joined"
        add(parser, "--take-over", f"{what} {more}")
    parser.set_defaults(take_over=False, holds_signals=True)


def build_parser() -> Parser:
    """Build the parser of ``sbusd``."""
    parser = Parser(prog="sbusd", description=_DESCRIPTION, epilog=_EPILOG)
    add_address(parser, help=f"where to listen: {SYSTEM_ADDRESS} unless given")
    what = "stay in the foreground and write no pid file. Its standard output is closed once clients can connect"
    add(parser, "-f --foreground", what)
    what = f"where the process id is written (%(default)s), nowhere for {NO_PID_FILE}; must not be there yet"
    add(parser, "-p --pid-file FILE", what, default=PID_FILE)
    add_hub_arguments(parser)
    add_program_options(parser)
    parser.set_defaults(run=lambda arguments: serve_hub("sbusd", arguments, background=not arguments.foreground))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``sbusd`` and return its exit status."""
    hold_signals()
    return finish("sbusd", build_parser().parse_args(argv))


def serve_hub(
    program: str,
    arguments: Namespace,
    *,
    background: bool = False,
    on_ready: Callable[[str], None] | None = None,
    on_hub: Callable[[Hub, HubSettings], Relay | None] | None = None,
    default: str | None = SYSTEM_ADDRESS,
) -> int:
    """Serve a hub until a signal stops it, here or in the background. Returns the exit status.

    ``arguments`` are those of :func:`add_hub_arguments` with ``address``, and ``pid_file`` for ``background``.
    ``on_ready`` is called with the address once the hub serves, and ``on_hub`` before with the hub itself; it
    returns the hub's relay, if it has one. ``default`` is the address where neither an option nor the file has one.
    """
    import logging

    from .config import read_settings

    if arguments.config is not None:
        arguments.config = os.path.abspath(arguments.config)  # a daemon changes its working directory
    settings = read_settings(arguments, default)
    if arguments.check_config:
        print(f"{arguments.config}: correct")
        return EXIT_SUCCESS

    from ..kernel.sockets import Listener
    from ..wire.addresses import PathAddress, parse_address
    from . import process

    # 1. Checks that can fail, before the fork, where the caller sees the error.
    process.fill_standard_descriptors()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    with ExitStack() as undo:
        parsed = parse_address(settings.address)
        if arguments.take_over and isinstance(parsed, PathAddress):
            parsed = PathAddress(os.path.abspath(parsed.path))  # a daemon changes its working directory
        process.allow_many_files()
        pid_file = None
        if background and arguments.pid_file != NO_PID_FILE:
            pid_file = process.PidFile(arguments.pid_file, replaces=arguments.take_over)
            undo.callback(pid_file.remove)
        arguments.address = str(parsed)  # for errors from here on
        listener = None
        if not arguments.take_over:
            listener = Listener(parsed, mode=settings.mode, reuse=arguments.reuse)
            undo.callback(listener.close)
            _settle_passed_descriptor(listener, settings.mode, program)
        if parsed != parse_address(settings.address):  # only a random one differs
            _print_address(arguments.address)

        # 2. The fork.
        report = None
        if background:
            is_daemon, pipe = process.detach()
            if not is_daemon:
                return process.await_daemon(pipe, undo, program)
            report = undo.enter_context(os.fdopen(pipe, "wb", buffering=0))

        def notify_caller() -> None:
            if report is not None:
                report.write(process.LISTENS)
                report.close()
            if on_ready is not None:
                on_ready(arguments.address)

        def ready() -> None:
            steps: list[Callable[[], object]] = [] if pid_file is None else [pid_file.write]
            steps.append(partial(process.release_standard_descriptors, errors=background and os.isatty(2)))
            for step in (*steps, notify_caller):
                try:
                    step()
                except OSError as error:
                    if not arguments.take_over:
                        raise
                    # Its clients are connected here already, so this goes on if the caller has gone.
                    logging.getLogger("sbuslib").error("%s", error)

        # 3. The hub.
        where = parsed if listener is None else listener
        was_taken_over = _serve(program, where, settings, arguments, background, ready, on_hub, default)
        if was_taken_over and pid_file is not None:
            pid_file.await_successor()
    return EXIT_SUCCESS


def _serve(
    program: str,
    where: Address | Listener,
    settings: HubSettings,
    arguments: Namespace,
    background: bool,
    ready: Callable[[], None],
    on_hub: Callable[[Hub, HubSettings], Relay | None] | None,
    default: str | None,
) -> bool:
    """Serve until the hub is stopped, or taken over. Returns whether it was taken over."""
    import logging

    import gevent

    from ..hub import Hub
    from ..kernel.sockets import Listener
    from . import process
    from .log import HubLog, begin_log

    # 1. The hub. Optional packages are loaded before anything is taken over: one may be missing.
    begin_log(program)
    if not arguments.verbose:
        logging.getLogger("sbuslib").setLevel(logging.ERROR if arguments.quiet else logging.INFO)
    if arguments.metrics:
        from ..web.metrics import serve_metrics
    hub = Hub(
        where if isinstance(where, Listener) else str(where),
        mode=settings.mode,
        users=settings.users,
        trusted=settings.trusted,
        relays=settings.relays,
        separator=settings.separator,
        limits=settings.limits,
        authorize=settings.policy,
        stop_when_empty=arguments.close,
        replaceable=True,
        take_over=arguments.take_over,
    )
    hub.replacement.handed_on = process.supervision()
    hub.start()
    log = HubLog(hub)

    # 2. Its log, metrics and signals.
    relay = on_hub(hub, settings) if on_hub is not None else None
    metrics = None
    if arguments.metrics and not arguments.take_over:
        metrics = serve_metrics(hub, arguments.metrics, relay=relay)
    if arguments.config is not None:
        from .config import Reloader

        reloader = Reloader(program, hub, relay, arguments, settings, default)
        hub.reloads.function = reloader.reload
        gevent.signal_handler(signal.SIGHUP, reloader.on_hangup)
    elif background:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    on_stop(hub.stop, gevent.signal_handler, but=() if arguments.config is None else (signal.SIGHUP,))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    release_signals()

    # 3. Readiness, to the caller and the supervisor.
    ready()
    is_new = not arguments.take_over or not process.take_supervision(hub.replacement.handed_on)
    if is_new:  # else the supervisor of the hub before knows that it is ready
        hub.replacement.handed_on = process.supervision() | log.handed_on
        process.notify_supervisor(b"READY=1")
    beat = process.watchdog(hub.context.running.loop)
    process.look_once()
    if arguments.metrics and arguments.take_over:
        metrics = _serve_metrics(lambda: serve_metrics(hub, arguments.metrics, relay=relay))

    # 4. Until it is stopped, or taken over.
    hub.serve_forever()
    if hub.replaced_by is not None:
        process.notify_supervisor(b"MAINPID=%d\nWATCHDOG=1" % hub.replaced_by, wait=10.0)
    log.close()
    if metrics is not None:
        metrics.stop(timeout=0)
    if beat is not None:
        beat.stop()
        beat.close()
    return hub.replaced_by is not None


def _serve_metrics(start: Callable[[], LocalServer]) -> LocalServer | None:
    """Start serving the metrics. The hub that was taken over has their address for a moment longer."""
    import logging

    import gevent

    for tries_left in range(METRICS_TRIES, -1, -1):
        try:
            return start()
        except (SbusError, OSError) as error:
            if not tries_left:  # clients are served here: that goes on
                logging.getLogger("sbuslib").error("no metrics are served: %s", error)
        gevent.sleep(METRICS_PAUSE)
    return None


def _print_address(address: str) -> None:
    """Print the address with one write(2), so that one read(2) gets all of it.

    ``print`` makes two writes, of the text and of the end of the line, where Python's standard output is not buffered.
    """
    os.write(1, os.fsencode(address) + b"\n")  # descriptor 1 is open: see fill_standard_descriptors


def _settle_passed_descriptor(listener: Listener, mode: int, program: str) -> None:
    """Close the descriptor that was passed, since the listener has a copy, and warn of arguments without effect."""
    if listener.passed is not None:
        if listener.passed.fd > 2:
            os.close(listener.passed.fd)
        if mode != 0o700 and not listener.is_abstract:
            complain(
                program, f"{listener.passed}: -g and -o are ignored: a socket that was passed has its mode already"
            )


if __name__ == "__main__":
    sys.exit(main())
