"""``sbus bridge``: joins the bus of this machine to a NATS, MQTT or Redis server."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from .arguments import ADDRESSES, add_address
from .values import size

__all__ = ["add_arguments"]

_FILES = {
    "password-file": "the password is the first line of this file",
    "token-file": "NATS: the token is the first line of this file",
    "nkey": "NATS: a file with a seed",
    "credentials": "NATS: a file with a JWT and a seed",
    "ca": "PEM: who signs the server's certificate",
    "certificate": "PEM: our own certificate",
    "private-key": "PEM: its key",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Join the bus of this machine to a server or cluster of another kind. Messages whose keys match an exported "
        "pattern go out, those that match an imported one come in; keys that start with '!' never cross. While the "
        "server is away, messages are kept up to a bound, and what is lost is counted."
    )
    parser.epilog = (
        "URL: nats://HOST:PORT, or several with commas between; mqtt://HOST:PORT; redis://HOST:PORT/DB. With TLS: "
        "tls://, mqtts://, rediss://. Each needs an extra of the package: sbuslib[nats], [mqtt], [redis].\n"
        "\n"
        "examples:\n"
        "  sbus bridge nats://127.0.0.1 --export room/ --import alarm/ 'room/*/set'\n"
        "  sbus bridge nats://a,nats://b --stream plant --name line1 --import order/\n"
        "  sbus bridge mqtts://broker --user line1 --password-file secret --export room/ --retain room/\n"
        "\n"
        "The bridge ends, with status 1, when the bus does.\n\n" + ADDRESSES
    )
    parser.add_argument("url", metavar="URL", help="the server to join, see below")
    add_address(parser)
    for option, what in (
        ("export", "messages under these keys go out"),
        ("import", "messages under these keys come in"),
        ("retain", "MQTT: the server keeps the newest message of each of these keys"),
        ("trust", "only these publishers' messages come in, as patterns for HOST/UID/PID: a claim of that host"),
    ):
        parser.add_argument(
            f"--{option}", dest=f"{option}_patterns", metavar="PATTERN", nargs="+", action="extend", help=what
        )
    parser.add_argument("--prefix", default="sbus", help="the first segment of all subjects; '': none (%(default)s)")
    parser.add_argument("--stream", metavar="NAME", help="keep what is exported in a stream, of JetStream or Redis")
    parser.add_argument("--name", help="what this bus is called there, for a stream (the host and the address)")
    parser.add_argument("--keep", type=size, default="64M", metavar="SIZE", help="what an outage keeps (64M)")
    parser.add_argument("--qos", choices=("0", "1"), default="1", help="MQTT: quality of service (1)")
    parser.add_argument("--mqtt", choices=("3.1.1", "5"), default="5", help="the version of MQTT (5)")
    parser.add_argument("--user", metavar="NAME", help="who we are; a password in the URL is seen by all of this host")
    for option, what in _FILES.items():
        parser.add_argument(f"--{option}", metavar="FILE", help=what)
    parser.set_defaults(run=_bridge)


def _bridge(arguments: Namespace) -> int:
    import logging

    from ..errors import SbusError, UsageError
    from .console import EXIT_SUCCESS, EXIT_USAGE, complain, explain, yield_to_ctrl_c

    logging.basicConfig(format="sbus: %(message)s")
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns whenever a NATS server ends a TLS connection
    yield_to_ctrl_c()
    try:
        _serve(arguments)
    except UsageError as error:
        complain("sbus", explain(error))
        return EXIT_USAGE
    except (SbusError, OSError) as error:
        return complain("sbus", explain(error, arguments.address))
    return EXIT_SUCCESS


def _serve(arguments: Namespace) -> None:
    import asyncio

    from ..bridge import AioBridge, EngineOptions
    from .console import on_stop, tell

    def patterns(name: str) -> tuple[bytes, ...]:
        return tuple(map(os.fsencode, getattr(arguments, f"{name}_patterns") or ()))

    options = EngineOptions(
        user=arguments.user,
        password=_first_line(arguments.password_file),
        token=_first_line(arguments.token_file),
        nkey=arguments.nkey,
        credentials=arguments.credentials,
        ca=arguments.ca,
        certificate=arguments.certificate,
        private_key=arguments.private_key,
        prefix=arguments.prefix,
        stream=arguments.stream,
        name=arguments.name,
        qos=int(arguments.qos),
        retain=patterns("retain"),
        version=arguments.mqtt,
    )

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        async with AioBridge(
            arguments.address,
            arguments.url,
            export=patterns("export"),
            import_=patterns("import"),
            trust=patterns("trust") or None,
            options=options,
            keep_bytes=arguments.keep,
        ) as bridge:
            on_stop(lambda: loop.create_task(bridge.close()), loop.add_signal_handler)
            await bridge.ready()
            if bridge.statistics().connected:
                tell("connected to the server (Ctrl-C ends it)")
            await bridge.run()

    asyncio.run(serve())


def _first_line(path: str | None) -> str | None:
    if path is None:
        return None
    with open(path) as file:
        return file.readline().rstrip("\n")
