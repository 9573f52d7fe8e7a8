"""What commands refuse: one table for all, so that errors read as errors of a program wherever they come from."""

from __future__ import annotations

import os
import re
import socket

import pytest
from cli.conftest import Run
from support import HubThread

NOBODY = "nobody-of-this-name"

REFUSED = [  # the words, the exit status, a part of what is said; {} is a folder with an empty folder "empty" in it
    ("", 2, "usage: sbus"),
    ("nonsense", 2, "there is no command nonsense"),
    ("jornal record x", 2, "there is no command jornal: did you mean journal record?"),
    ("help journal nonsense", 2, "there is no verb nonsense"),
    ("pub", 2, "KEY is missing"),
    ("pub key", 2, "give one PAYLOAD, or one of -, -l, --stdin, --file and --json"),
    ("pub key payload --stdin", 2, "give one PAYLOAD, or one of"),
    ("pub key --json", 2, "takes KEY from the lines"),
    ("pub a/!/b x", 2, "nobody may publish under a/!/b: reserved token in a key"),
    ("pub a --file {}/none", 1, "{}/none: No such file or directory"),
    ("pub a --file /", 1, "/"),
    ("sub", 2, "PATTERN"),
    ("sub !/cred/1/2/3", 1, "the hub refused the subscription"),
    ("sub !/cred/{gid}/{uid}/1/", 1, "the hub refused the subscription: secret pattern of another"),
    ("sub --hard queue a", 2, "argument --hard: invalid choice: 'queue'"),
    ("sub --format {{kye}} a", 2, "--format fills in {{key}}, {{payload}}, {{size}}, {{sender}}, {{time}} alone"),
    ("request svc x --stdin", 2, "--stdin"),
    ("request svc", 1, "nobody serves svc"),
    ("request --all --wait 0.01 svc", 1, "nobody replied"),
    ("serve svc", 2, "COMMAND"),
    ("serve svc -- /no/command", 2, "/no/command: there is no such command"),
    ("whoami -a /dev/fd/99", 2, "/dev/fd/99"),
    ("hub -a /nowhere/bus", 1, "/nowhere/bus"),
    ("hub -a /", 1, "/"),
    (f"hub -u {NOBODY}", 2, NOBODY),
    ("hub --separator 0", 2, "separator"),
    ("hub --config /nope", 2, "/nope: No such file or directory"),
    ("config check /nope", 2, "/nope: No such file or directory"),
    ("units nonsense", 2, "nonsense"),
    (f"explain {NOBODY} publish x --config /dev/null", 2, f"there is no user '{NOBODY}' on this machine"),
    ("web --listen 0.0.0.0:0", 2, "0.0.0.0:0"),
    ("web --listen 127.0.0.1:x", 2, "127.0.0.1:x"),
    ("web --listen /nowhere/at/all", 1, "/nowhere/at/all"),
    ("doctor --warn lots=0", 2, "a limit is NAME=N, not lots=0; there are clients, waiting,"),
    ("doctor --critical lost=-1", 2, "a limit is NAME=N, not lost=-1"),
    ("bench nonsense", 2, "nonsense"),
    ("journal record /dev/null", 1, "/dev/null"),
    ("journal record --max-bytes much {}/j", 2, "'much' is no size"),
    ("journal record --on alarm/ {}/j", 2, "--on is for --last"),
    ("journal cat /etc/passwd", 1, "/etc/passwd"),
    ("journal info /", 1, "/"),
    ("journal replay {}/none -a {}/bus", 1, "none"),
    ("journal replay {}/empty -a {}/bus", 1, "empty"),
    ("journal consume a", 2, "DIR"),
    ("journal consume a/b /tmp", 2, "the name of a consumer is letters"),
    ("journal consume a /nowhere", 1, "/nowhere: no such directory"),
    ("journal consume a /tmp --format {{oh}}", 2, "--format fills in"),
    ("journal seal /nowhere", 1, "/nowhere: no such directory"),
    ("journal seal s3://bucket/journal", 2, "in a local directory"),
    ("journal ingest /nowhere {}/lake", 1, "/nowhere: no such directory"),
    ("journal ingest {}/empty /proc/lake", 1, "/proc/lake"),
    ("journal ingest {}/empty", 2, "LAKE"),
    ("report", 2, "a verb is missing"),
    ("report traffic /nowhere --separator !", 2, "separator"),
    ("report traffic /nowhere", 1, "/nowhere"),
    ("report traffic {}/empty", 1, "nothing was recorded"),
    ("report traffic {}/empty --output -", 2, "there would be no output"),
    ("report subscriptions {}/empty /nowhere", 1, "/nowhere: No such file or directory"),
    ("report subscriptions {}/empty /dev/null", 2, "/dev/null: no patterns"),
    ("queue --memory a/b mail/", 2, "one segment"),
    ("queue --memory mail !/cred////x", 2, "no secrets"),
    (f"queue --memory --trusted {NOBODY} mail mail/", 2, "no user"),
    ("queue --store {}/nothing/q mail mail/", 1, "nothing/q"),
    ("peer", 2, "--listen or --connect"),
    ("peer --listen nowhere", 2, "HOST:PORT"),
    ("peer --listen :99999", 2, ":99999"),
    ("peer --listen 127.0.0.1", 2, "127.0.0.1"),
    ("peer --listen 0.0.0.0:0", 2, "give certificates for TLS, or allow it to be insecure\n"),
    ("peer --listen :0 --who me", 2, "--discover"),
    ("peer --listen :0 --tls-cert x", 2, "--tls-key"),
    ("peer --listen :0 --tls-cert /x --tls-key /x --tls-ca /x", 2, "/x, /x, /x: No such file or directory"),
    ("peer --listen 192.0.2.1:1 --insecure", 1, "192.0.2.1:1"),
    ("peer --listen :0 --timeout 0.01 --pub //a x", 1, "no peer wants //a within 0.01 s"),
    ("gateway --listen :0 --export a/!/b", 2, "a/!/b"),
    ("bridge nats://127.0.0.1:1", 2, "a bridge needs patterns to export or to import"),
    ("bridge http://127.0.0.1:1 --export a", 2, "schemes: nats, tls, mqtt"),
    ("bridge nats://127.0.0.1:1 --export a/!/b", 2, "a/!/b"),
    ("bridge mqtt://127.0.0.1:1 --mqtt-version 3.1.1 --export a/ --import */b", 2, "overlap"),
    ("bridge nats://127.0.0.1:1 --export a --password-file /does/not/exist", 1, "/does/not/exist: "),
    ("bridge rediss://127.0.0.1:1 --export a --tls-ca /does/not/exist", 2, "/does/not/exist: "),
    ("bridge nats://127.0.0.1:1 --export a --nkey /dev/null", 2, "/dev/null: "),
]


@pytest.mark.parametrize(("words", "status", "said"), REFUSED, ids=[words for words, _, _ in REFUSED])
def test_what_is_refused_is_reported_in_one_line_or_with_the_usage(
    run_here: Run, bus: HubThread, path: str, folder: str, words: str, status: int, said: str
) -> None:
    os.mkdir(f"{folder}/empty")
    names = {"uid": os.getuid(), "gid": os.getgid()}
    arguments = [word.format(folder, **names) for word in words.split()]
    done = run_here("sbuslib", *(["-q"] * bool(arguments)), *arguments, env={"SBUS_ADDRESS": path})
    assert (done.returncode, done.stdout) == (status, "")
    assert said.format(folder) in done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.endswith(" ...")]  # signs of life after a second
    assert len(lines) == 1 or lines[0].startswith("usage: "), lines
    assert not re.search(r"(^|[ (])b'|\[Errno|Traceback|=None|\bNone\b|<class|starting Spark", done.stderr), done.stderr


ASKING = [
    "whoami",
    "pub key payload",
    "pub key -",
    "sub a",
    "request a",
    "stat",
    "clients",
    "tree",
    "top",
    "hz a",
    "ping",
    "get a",
    "send a /dev/null",
    "receive a",
    "serve a cat",
]
OTHERS = ["web", "gateway --listen :0 --export a", "journal replay {}/journal", "bench one"]


@pytest.mark.parametrize("words", [*ASKING, *OTHERS])
def test_a_hub_that_is_not_there_is_reported_in_one_line(
    run_here: Run, path: str, journal: str, folder: str, words: str
) -> None:
    command, *rest = words.format(folder).replace("journal replay", "replay").split()
    done = run_here("sbuslib", command, "-a", path, *rest)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith((f"sbus: no hub at {path}: No such file or directory", f"sbus: {path}: No such file"))


@pytest.mark.parametrize("words", ["sub a", "hz a", "ping"])
def test_a_hub_that_does_not_answer_is_waited_for_no_longer_than_is_said(run: Run, path: str, words: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
        mute.bind(path)
        mute.listen()
        done = run("sbuslib", *words.split(), "-a", path, "--timeout", "10ms")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


@pytest.mark.parametrize("command", ["stat", "clients", "tree", "top", "web", "events"])
def test_a_user_that_is_not_trusted_learns_what_to_ask_for(
    run_here: Run, bus: HubThread, path: str, command: str
) -> None:
    bus.call(lambda: setattr(bus.hub.context, "trusted", frozenset()))  # as another user would find it
    done = run_here("sbuslib", command, "-a", path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "not trusted with statistics: ask for --trusted" in done.stderr
