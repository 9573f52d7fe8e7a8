"""``sbus bridge``: a bridge from the bus of this machine to a NATS, MQTT or Redis server."""

from __future__ import annotations

from argparse import Namespace

from .arguments import Parser, add, add_address, add_patterns
from .console import explain, on_stop, show_status, yield_to_ctrl_c
from .networks import add_tls

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bridge import AioBridge

_AWAY_SECONDS = 0.2
"""Seconds between two looks for a bus that has gone."""


def add_bridge(parser: Parser) -> None:
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
        "  sbus bridge mqtts://broker --login line1 --password-file secret --export room/ --mqtt-retain room/\n"
        "\n"
        "When the bus goes away, the bridge waits for it, and sends the server what it has."
    )

    add(parser, "URL", "the server to join, see below")
    add_address(parser)
    add_patterns(parser, "export", "messages under these keys go out")
    add_patterns(parser, "import", "messages under these keys come in")
    add_patterns(parser, "mqtt-retain", "MQTT: the server keeps the newest message of each of these keys")
    what = "only these publishers' messages come in, as patterns for HOST/UID/PID: a claim of that host"
    add_patterns(parser, "trust", what)
    add(parser, "--prefix TEXT", "the first segment of all subjects; '': none (%(default)s)", default="sbus")
    add(parser, "--stream NAME", "keep exported messages in a stream, of JetStream or Redis")
    add(parser, "--name NAME", "name of this bus there, for a stream (the host and the address)")
    add(parser, "--max-bytes SIZE", "while the server is away, keep no more (64MB)", default=2**26)
    add(parser, "--mqtt-qos", "MQTT: quality of service (1)", choices=("0", "1"), default="1")
    add(parser, "--mqtt-version", "the version of MQTT (5)", choices=("3.1.1", "5"), default="5")
    add(parser, "--login NAME", "user name; others on this host can see a password in the URL")
    add(parser, "--password-file FILE", "the password is the first line of this file")
    add(parser, "--token-file FILE", "NATS: the token is the first line of this file")
    add(parser, "--nkey FILE", "NATS: a file with a seed")
    add(parser, "--credentials FILE", "NATS: a file with a JWT and a seed")
    add_tls(parser, "certificate of this bridge (PEM)", "certificate of the server's authority (PEM)")


def run_bridge(arguments: Namespace) -> None:
    import asyncio
    import logging

    from ..bridge import AioBridge, BrokerOptions

    logging.basicConfig(format="sbus: %(message)s")
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns whenever a NATS server ends a TLS connection
    yield_to_ctrl_c()

    def patterns(name: str) -> tuple[bytes, ...]:
        return tuple(getattr(arguments, f"{name}_patterns"))

    options = BrokerOptions(
        user=arguments.login,
        password=_first_line(arguments.password_file),
        token=_first_line(arguments.token_file),
        nkey=arguments.nkey,
        credentials=arguments.credentials,
        ca=arguments.tls_ca,
        certificate=arguments.tls_cert,
        private_key=arguments.tls_key,
        prefix=arguments.prefix,
        stream=arguments.stream,
        name=arguments.name,
        qos=int(arguments.mqtt_qos),
        retain=patterns("mqtt_retain"),
        version=arguments.mqtt_version,
    )

    def make() -> AioBridge:
        return AioBridge(
            arguments.address,
            arguments.url,
            export=patterns("export"),
            import_=patterns("import"),
            trust=patterns("trust") or None,
            options=options,
            keep_bytes=arguments.max_bytes,
        )

    asyncio.run(_keep(make))


async def _keep(make: Callable[[], AioBridge]) -> None:
    """Run one bridge after another: each ends with its hub. The first has to find one."""
    import asyncio
    from contextlib import suppress

    from ..errors import NoHubError

    end, has_joined = asyncio.Event(), False
    on_stop(end.set, asyncio.get_running_loop().add_signal_handler)
    while not end.is_set():
        try:
            async with make() as bridge:
                if has_joined:
                    show_status("joined the bus again")
                has_joined = True
                running, ending = asyncio.create_task(_run(bridge)), asyncio.create_task(end.wait())
                await asyncio.wait((running, ending), return_when=asyncio.FIRST_COMPLETED)
                ending.cancel()
                if running.done():
                    running.result()
        except (ConnectionError, TimeoutError) as error:
            if not has_joined:
                raise
            if not isinstance(error, NoHubError):
                show_status(f"{explain(error)}; waiting for it")
            with suppress(TimeoutError):
                await asyncio.wait_for(end.wait(), _AWAY_SECONDS)


async def _run(bridge: AioBridge) -> None:
    await bridge.ready()
    if bridge.statistics().connected:
        show_status("connected to the server (Ctrl-C ends it)")
    await bridge.run()


def _first_line(path: str | None) -> str | None:
    if path is None:
        return None
    with open(path) as file:
        return file.readline().rstrip("\n")
