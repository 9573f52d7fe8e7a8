"""``sbus explain`` as a program."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Run
from support import Peer

from sbuslib import Hub
from sbuslib.cli.config import read_settings

MakeHub = Callable[..., Hub]
Connect = Callable[..., Peer]

RULES = """\
separator = "/"

[[rules]]
users = ["*"]
publish = ["public/"]

[[rules]]
users = ["@root"]
publish = ["tenants/%u/"]
subscribe = ["room/*/temp"]
"""

REFUSED = "no: the hub disconnects who does this"
YES_TO_SECRETS = "yes: rules are not asked about secrets; only clients with these credentials may subscribe"
NOT_CONNECTED = "no: this user may not connect, unless it is the hub's own: it is not among the users"


@pytest.fixture
def file(folder: str) -> str:
    path = Path(folder, "sbus.toml")
    path.write_text(RULES)
    return str(path)


@pytest.mark.parametrize(
    ("asked", "status", "answer"),
    [
        (("root", "publish", "public/x"), 0, 'yes: {}:3: publish "public/"'),
        (("0", "publish", "tenants/root/x"), 0, 'yes: {}:7: publish "tenants/%u/", which is "tenants/root/" for 0'),
        (("root", "publish", "tenants/other/x"), 1, "no: no rule lets root publish this"),
        (("root", "subscribe", "room/*/temp"), 0, 'yes: {}:7: subscribe "room/*/temp"'),
        (("root", "subscribe", ""), 1, "no: no rule lets root subscribe this"),
        (("daemon", "publish", "tenants/daemon/x"), 1, "no: no rule lets daemon publish this"),
        (
            ("root", "publish", "!/cred/1/2/3/x"),
            0,
            "yes: rules are not asked about secrets, and anybody may publish them",
        ),
        (("root", "publish", "!/cred/1/2"), 1, f"{REFUSED}: truncated secret key"),
        (("root", "publish", "a/!/b"), 1, f"{REFUSED}: reserved token in a key"),
        (("root", "subscribe", "!/cred/5//7/"), 0, YES_TO_SECRETS),
        (("root", "subscribe", "!/cred//1/"), 1, f"{REFUSED}: truncated secret key"),
        (("root", "subscribe", "!/cred//1//x"), 1, f"{REFUSED}: secret pattern of another"),
        (("root", "subscribe", "x" * 5_000), 1, f"{REFUSED}: pattern too long"),
        (("root", "publish", "public.x", "--separator", "."), 1, "no: no rule lets root publish this"),
        (("root", "publish", "a.!.b", "--separator", "."), 1, f"{REFUSED}: reserved token in a key"),
        (("daemon", "publish", "public/x", "--user", "root"), 1, NOT_CONNECTED),
        (("daemon", "publish", "public/x", "--user", "daemon"), 0, 'yes: {}:3: publish "public/"'),
    ],
)
def test_the_answer_and_the_rule(run: Run, file: str, asked: tuple[str, ...], status: int, answer: str) -> None:
    done = run("sbuslib", "explain", *asked, "--config", file)
    assert (done.returncode, done.stdout, done.stderr) == (status, answer.format(file) + "\n", "")


@pytest.mark.parametrize(
    ("text", "asked", "status", "said"),
    [
        (RULES, ("nobody-at-all", "publish", "x"), 2, "sbus: there is no user 'nobody-at-all' on this machine\n"),
        ("rulez = 3", ("root", "publish", "x"), 2, "sbus: {}: rulez: there is no such key: did you mean 'rules'?\n"),
        ("", ("root", "publish", "x"), 0, "yes: {} has no rules, so everybody may do anything\n"),
        ('upstream = "/a"', ("root", "publish", "x"), 0, "yes: {} has no rules, so everybody may do anything\n"),
        ('users = ["root"]\n' + RULES, ("daemon", "publish", "public/x"), 1, NOT_CONNECTED + "\n"),
        ('users = ["root"]\n' + RULES, ("root", "publish", "public/x"), 0, 'yes: {}:4: publish "public/"\n'),
        ('users = ["root"]\n', ("daemon", "publish", "x"), 1, NOT_CONNECTED + "\n"),
    ],
)
def test_files_of_hubs_and_relays_and_errors(
    run: Run, file: str, text: str, asked: tuple[str, ...], status: int, said: str
) -> None:
    Path(file).write_text(text)
    done = run("sbuslib", "explain", *asked, "--config", file)
    assert (done.returncode, done.stdout + done.stderr) == (status, said.format(file))


@pytest.mark.parametrize("separator", ["/", "."])
@pytest.mark.parametrize("key", ["a", "public/x", "a.!.b", "!/cred/1/2", "y" * 5_000])
@pytest.mark.parametrize("verb", ["publish", "subscribe"])
def test_the_hub_says_the_same(
    run: Run, file: str, make_hub: MakeHub, connect: Connect, separator: str, key: str, verb: str
) -> None:
    Path(file).write_text('[[rules]]\nusers = ["*"]\npublish = ["public/"]\nsubscribe = ["public/"]\n')
    read = read_settings(Namespace(config=file, separator=separator.encode(), user=None), of_any=True)
    make_hub(separator=separator, authorize=read.policy)
    peer = connect()
    peer.send(b"MSG %b\0" % key.encode() if verb == "publish" else b"SUB %b" % key.encode())
    peer.send(b"CMSG hub/features")
    allowed = peer.receive() != b""
    done = run("sbuslib", "explain", str(os.getuid()), verb, key, "--config", file, "--separator", separator)
    assert (done.returncode == 0) is allowed
