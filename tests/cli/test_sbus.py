"""``sbus hub``, ``pub``, ``sub`` and ``whoami`` as programs."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable

import pytest
from support import PATIENCE, ROOT, HubThread

import sbuslib
from sbuslib.blocking import Client
from sbuslib.limits import PACKET_BYTES

Start = Callable[..., "subprocess.Popen[bytes]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Await = Callable[[int], None]

ODD = b"\x00\x1b[2J\xff\xc2\x9b\t\n\\ \xe2\x80\xae"
ODD_SHOWN = rb"\x00\x1b[2J\xff\xc2\x9b\t\n\\ \xe2\x80\xae"


@pytest.fixture
def subscribed(start: Start, bus: HubThread, await_patterns: Await) -> Start:
    """Start ``sbus sub`` with arguments, the last of which is its only pattern, and return when that is in force."""

    def subscribed(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
        process = start("sbuslib", "sub", "-a", bus.hub.address, *arguments, **options)
        await_patterns(1)
        return process

    return subscribed


def publish(address: str, *messages: tuple[bytes, bytes]) -> None:
    with Client(address) as client:
        client.publish_many(messages)


# -- pub and sub ------------------------------------------------------------------------------------------


def test_a_published_message_is_shown_by_sub(run: Run, subscribed: Start, path: str) -> None:
    subscriber = subscribed("-n", "2", "room/*/temp")
    assert subscriber.stdout is not None
    for arguments, line in (
        (("room/1/temp", "21.5"), b"room/1/temp\t21.5\n"),
        (("--", "room/ü/temp", "-5 °C"), "room/ü/temp\t-5 °C\n".encode()),
    ):
        done = run("sbuslib", "pub", "-a", path, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert subscriber.stdout.readline() == line, "each message is there at once"
    assert subscriber.wait(PATIENCE) == 0


@pytest.mark.parametrize("extra", [(), ("--raw",), ("--json",)], ids=["text", "raw", "json"])
def test_bytes_that_cannot_be_printed_are_escaped(subscribed: Start, path: str, extra: tuple[str, ...]) -> None:
    subscriber = subscribed("-n", "2", *extra, "")
    key = ODD.replace(b"\0", b"")
    publish(path, (key, ODD), (b"plain/key", "ü".encode()))
    output, errors = subscriber.communicate(timeout=PATIENCE)
    assert errors == b""
    if extra == ("--raw",):
        assert output == ODD + "ü".encode()
    elif extra == ("--json",):
        assert output.isascii()
        assert [json.loads(line) for line in output.splitlines()] == [
            {"key_base64": base64.b64encode(key).decode(), "payload_base64": base64.b64encode(ODD).decode()},
            {"key": "plain/key", "payload": "ü"},
        ]
    else:
        shown = ODD_SHOWN.replace(rb"\x00", b"")
        assert output == shown + b"\t" + ODD_SHOWN + b"\n" + "plain/key\tü\n".encode()


def test_characters_that_the_encoding_lacks_are_escaped(subscribed: Start, path: str) -> None:
    subscriber = subscribed("-n", "1", "", env={"PYTHONIOENCODING": "latin-1"})
    publish(path, (b"key", "ü€".encode()))
    assert subscriber.communicate(timeout=PATIENCE)[0] == b"key\t\xfc\\u20ac\n"


def test_sub_shows_senders(subscribed: Start, path: str) -> None:
    own = f"!/cred/{os.getgid()}/{os.getuid()}/{os.getpid()}"
    subscriber = subscribed("-n", "1", "-s", "")
    publish(path, (b"key", b"payload"))
    assert subscriber.communicate(timeout=PATIENCE)[0].decode() == f"{own}\tkey\tpayload\n"
    subscriber = subscribed("-n", "1", "-s", "--json", "")
    publish(path, (b"key", b"payload"))
    assert json.loads(subscriber.communicate(timeout=PATIENCE)[0])["sender"] == own


def test_sub_ends_after_the_count(subscribed: Start, path: str) -> None:
    subscriber = subscribed("-n", "3", "--raw", "")
    publish(path, *((b"key", b"%d" % n) for n in range(100)))
    assert subscriber.communicate(timeout=PATIENCE)[0] == b"012"
    assert subscriber.returncode == 0


def test_sub_takes_several_patterns(start: Start, bus: HubThread, await_patterns: Await, path: str) -> None:
    subscriber = start("sbuslib", "sub", "-n", "2", "-a", path, "a/", "b")
    await_patterns(2)
    publish(path, (b"a/1", b"x"), (b"c", b"y"), (b"b", b"z"))
    assert subscriber.communicate(timeout=PATIENCE)[0] == b"a/1\tx\nb\tz\n"


def test_pub_publishes_each_line_of_standard_input(run: Run, subscribed: Start, path: str) -> None:
    subscriber = subscribed("-n", "4", "--json", "")
    done = run("sbuslib", "pub", "-a", path, "log", "-", input="one\n\n three \nlast")
    assert (done.returncode, done.stderr) == (0, "")
    payloads = [json.loads(line)["payload"] for line in subscriber.communicate(timeout=PATIENCE)[0].splitlines()]
    assert payloads == ["one", "", " three ", "last"]


def test_pub_publishes_each_line_at_once(start: Start, subscribed: Start, path: str) -> None:
    subscriber = subscribed("")
    publisher = start("sbuslib", "pub", "-a", path, "log", "-")
    assert subscriber.stdout is not None
    assert publisher.stdin is not None
    for line in (b"one\n", b"two\n"):
        publisher.stdin.write(line)
        publisher.stdin.flush()
        assert subscriber.stdout.readline() == b"log\t" + line
    publisher.stdin.close()
    assert publisher.wait(PATIENCE) == 0


def test_many_lines_stay_whole_and_in_order(run: Run, subscribed: Start, path: str) -> None:
    lines = [f"{n} " + "x" * (n % 500) for n in range(5_000)]
    subscriber = subscribed("-n", str(len(lines)), "")
    assert run("sbuslib", "pub", "-a", path, "log", "-", input="\n".join(lines)).returncode == 0
    assert subscriber.communicate(timeout=PATIENCE)[0].decode().replace("log\t", "").splitlines() == lines


def test_a_line_that_is_too_long_is_refused(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "pub", "-a", path, "log", "-", input="x" * (2 * PACKET_BYTES))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"sbus: {path}: a line of more than 409,600 bytes")


def test_a_payload_that_is_too_long_is_refused(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "pub", "-a", path, "log", "-", input="x" * PACKET_BYTES)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "does not fit a packet" in done.stderr


# -- who am I, and which hub --------------------------------------------------------------------------------


def test_whoami_prints_the_credentials(start: Start, bus: HubThread, path: str) -> None:
    process = start("sbuslib", "whoami", "-a", path)
    output, _ = process.communicate(timeout=PATIENCE)
    assert output.decode() == f"!/cred/{os.getgid()}/{os.getuid()}/{process.pid}\n"


def test_the_address_is_taken_from_the_environment(run: Run, bus: HubThread, folder: str, path: str) -> None:
    assert run("sbuslib", "whoami", env={"SBUS_ADDRESS": path}).returncode == 0
    assert run("sbuslib", "whoami", "-a", path, env={"SBUS_ADDRESS": "/nowhere"}).returncode == 0
    done = run("sbuslib", "whoami", env={"SBUS_ADDRESS": "/nowhere", "XDG_RUNTIME_DIR": folder})
    assert done.returncode == 1
    assert done.stderr.startswith("sbus: no hub at /nowhere: No such file or directory; ")


@pytest.mark.parametrize("command", [("pub", "key", "payload"), ("pub", "key", "-"), ("sub", ""), ("whoami",)])
def test_a_missing_hub_is_told_in_one_line(run: Run, path: str, command: tuple[str, ...]) -> None:
    done = run("sbuslib", command[0], "-a", path, *command[1:])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"sbus: no hub at {path}: No such file or directory\n"


def test_without_a_hub_the_addresses_that_were_tried_are_told(run: Run, folder: str) -> None:
    done = run("sbuslib", "whoami", env={"XDG_RUNTIME_DIR": folder})
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"sbus: no hub at {folder}/sbus/bus: No such file or directory; nor at /run/sbus.socket"
    )


def test_without_a_hub_the_line_that_helps_is_named(run: Run, bus: HubThread, path: str) -> None:
    """It names the hub that began to listen last; there may be others on this machine meanwhile."""
    for command in (("whoami",), ("pub", "key", "payload"), ("sub", "")):
        done = run("sbuslib", *command, env={"SBUS_ADDRESS": "/nowhere"})
        assert done.returncode == 1
        assert re.search(r"; one may be at another address: export SBUS_ADDRESS=/\S+\n$", done.stderr)


AS_STRANGER = """
import os, sys
from sbuslib.cli.main import main
command, address, *words = sys.argv[1:]
main([command, "-a", "/nowhere", *words])  # loads what a stranger may not read
os.setgroups([]); os.setgid(65533); os.setuid(65533)
sys.exit(main([command, "-a", address, *words]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
@pytest.mark.parametrize("command", [("whoami",), ("pub", "key", "payload")])
def test_permissions_read_as_refused(bus: HubThread, path: str, command: tuple[str, ...]) -> None:
    os.chmod(os.path.dirname(path), 0o755)
    program = [sys.executable, "-c", AS_STRANGER, command[0], path, *command[1:]]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [f"sbus: {path} refuses this user: Permission denied"]


@pytest.mark.parametrize("command", [("whoami",), ("sub", ""), ("pub", "key", "payload"), ("pub", "key", "-")])
def test_a_refused_user_is_told_why(run: Run, bus: HubThread, path: str, command: tuple[str, ...]) -> None:
    bus.call(lambda: setattr(bus.hub._acceptor, "_users", {12345}))  # as another user would find it
    done = run("sbuslib", command[0], "-a", path, *command[1:])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"sbus: {path}: the hub closed the connection (user not allowed)\n"


# -- what a hub does not allow --------------------------------------------------------------------------------


def test_subscribing_to_secrets_of_others_is_refused(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "sub", "-a", path, f"!/cred/{os.getgid()}/{os.getuid()}/1/")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"sbus: {path}: the hub refused the subscription: secret pattern of another\n"


def test_publishing_to_a_reserved_key_is_refused(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "pub", "-a", path, "a/!/b", "payload")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"sbus: {path}: nobody may publish under a/!/b: reserved token in a key\n"


def test_sub_ends_with_an_error_when_the_hub_ends(subscribed: Start, bus: HubThread, path: str) -> None:
    subscriber = subscribed("")
    assert subscriber.stdout is not None
    publish(path, (b"key", b"payload"))
    assert subscriber.stdout.readline() == b"key\tpayload\n"  # it knows by now that it has subscribed
    bus.stop()
    _, errors = subscriber.communicate(timeout=PATIENCE)
    assert (subscriber.returncode, errors.decode()) == (1, f"sbus: {path}: the hub closed the connection\n")


# -- Ctrl-C and closed pipes ----------------------------------------------------------------------------------


def test_an_interrupt_ends_it_without_a_word(subscribed: Start) -> None:
    subscriber = subscribed("")
    subscriber.send_signal(signal.SIGINT)
    assert subscriber.communicate(timeout=PATIENCE) == (b"", b"")
    assert subscriber.returncode == -signal.SIGINT


def test_an_interrupt_while_reading_lines(start: Start, subscribed: Start, path: str) -> None:
    subscriber = subscribed("-n", "1", "--raw", "")
    publisher = start("sbuslib", "pub", "-a", path, "log", "-")
    assert publisher.stdin is not None
    publisher.stdin.write(b"line\n")
    publisher.stdin.flush()
    assert subscriber.communicate(timeout=PATIENCE)[0] == b"line"
    publisher.send_signal(signal.SIGINT)
    assert publisher.wait(PATIENCE) == -signal.SIGINT
    assert publisher.stderr is not None
    assert publisher.stderr.read() == b""


@pytest.mark.parametrize("speak", [False, True], ids=["in silence", "at the next message"])
def test_a_closed_pipe_ends_it_without_a_word(subscribed: Start, path: str, speak: bool) -> None:
    subscriber = subscribed("")
    assert subscriber.stdout is not None
    subscriber.stdout.close()
    if speak:
        publish(path, (b"key", b"payload"))
    assert subscriber.wait(PATIENCE) == -signal.SIGPIPE
    assert subscriber.stderr is not None
    assert subscriber.stderr.read() == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_told(subscribed: Start, path: str) -> None:
    with open("/dev/full", "wb") as full:
        subscriber = subscribed("", stdout=full)
    publish(path, (b"key", b"payload"))
    _, errors = subscriber.communicate(timeout=PATIENCE)
    assert (subscriber.returncode, errors) == (1, b"sbus: standard output: No space left on device\n")


def test_a_closed_standard_output_is_told(environment: dict[str, str], bus: HubThread, path: str) -> None:
    shell = ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "sbuslib", "sub", "-a", path, ""]
    done = subprocess.run(shell, env=environment, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr.decode()) == (1, f"sbus: {path}: standard output is closed\n")


# -- hub ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_hub_serves_in_the_foreground(start: Start, path: str, number: signal.Signals) -> None:
    hub = start("sbuslib", "hub", "-a", path)
    assert hub.stdout is not None
    assert hub.stderr is not None
    assert hub.stdout.read() == b""
    assert hub.stderr.readline().decode() == f"sbus: listening at {path} (Ctrl-C ends it)\n"
    with Client(path) as client:
        client.whoami()
    hub.send_signal(number)
    assert hub.wait(PATIENCE) == 0
    assert hub.stderr.read() == b""
    assert not os.path.exists(path)


def test_hub_listens_where_clients_look_first(start: Start, run: Run, folder: str) -> None:
    for environment, address in (
        ({"SBUS_ADDRESS": f"{folder}/a", "XDG_RUNTIME_DIR": folder}, f"{folder}/a"),
        ({"XDG_RUNTIME_DIR": folder}, f"{folder}/sbus/bus"),
    ):
        hub = start("sbuslib", "hub", env=environment)
        assert hub.stdout is not None
        hub.stdout.read()
        assert os.path.exists(address)
        assert run("sbuslib", "whoami", env=environment).returncode == 0
    assert stat.S_IMODE(os.stat(f"{folder}/sbus").st_mode) == 0o700


def test_hub_refuses_an_address_in_use(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "hub", "-a", path)
    assert (done.returncode, done.stderr) == (1, f"sbus: {path}: address in use\n")


def test_hub_with_close_ends_with_its_last_client(start: Start, path: str) -> None:
    hub = start("sbuslib", "hub", "-c", "-o", "-a", path)
    assert hub.stdout is not None
    hub.stdout.read()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o707
    Client(path).close()
    assert hub.wait(PATIENCE) == 0


# -- arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [(), ("nonsense",), ("pub", "key"), ("sub",), ("sub", "-n", "0", ""), ("sub", "--raw", "--json", "")]
)
def test_wrong_arguments_are_refused(run: Run, arguments: tuple[str, ...]) -> None:
    done = run("sbuslib", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: sbus")


@pytest.mark.parametrize("command", [(), ("hub",), ("pub",), ("sub",), ("whoami",)])
def test_the_help_has_examples(run: Run, command: tuple[str, ...]) -> None:
    done = run("sbuslib", *command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nexamples:\n  sbus " in done.stdout
    assert "SBUS_ADDRESS" in done.stdout


def test_version_is_printed(run: Run) -> None:
    assert run("sbuslib", "--version").stdout == f"sbus {sbuslib.__version__}\n"


def test_publishing_loads_no_gevent(run: Run, bus: HubThread, path: str) -> None:
    program = (
        "import sys; from sbuslib.cli.main import main\n"
        f"assert main(['pub', '-a', {path!r}, 'key', 'payload']) == 0\n"
        "print([name for name in sys.modules if name.startswith(('gevent', 'asyncio', 'sbuslib.hub'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_daemon_loads_gevent_after_it_listens(run: Run) -> None:
    done = run("sbuslib.cli.daemon", "--version", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert "sbuslib.cli.console" in done.stderr
    assert "gevent" not in done.stderr


def test_a_passed_socket_serves_a_client_too(run: Run, bus: HubThread, path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
        connected.connect(path)
        fd = connected.fileno()
        done = run("sbuslib", "pub", "-a", f"/dev/fd/{fd}", "key", "payload", pass_fds=[fd])
    assert (done.returncode, done.stderr) == (0, "")
