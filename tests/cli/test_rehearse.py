"""``sbus config check``: a file, and its rules on what a journal holds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Run
from journal.format.journals import START_NS, Row, flip, segment
from support import HubThread, Peer

from sbuslib.kernel.users import name_of_user

pytest.importorskip("duckdb")

Connect = Callable[..., Peer]

RULES = """\
[[rules]]
users = [4000]
publish = ["log/", "old/"]

[[rules]]
users = ["*"]
publish = ["late/"]
"""
TIME = r"2025-06-15T\S+"


def row(key: bytes, uid: int = 4000, second: int = 0) -> Row:
    sender = b"!/cred/100/%d/7" % uid
    return Row(key, b"x", START_NS + second * 1_000_000_000, sender, (100, uid, 7))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of two segments, the second with two blocks, and with gaps."""
    place = tmp_path / "journal"
    segment(place, 1, [row(b"log/1"), row(b"secret\x1b\xff", second=1), row(b"log/1", uid=4001, second=2)])
    segment(place, 4, [row(b"secret\x1b\xff", second=60)], (START_NS, "outage", None), [row(b"late/1", second=61)])
    return place


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "new.toml"
    path.write_text(RULES)
    return path


def test_a_file_alone_is_checked(run: Run, rules: Path) -> None:
    done = run("sbuslib", "config", "check", str(rules))
    first, second = done.stdout.splitlines()
    assert (done.returncode, first) == (0, f"{rules}: correct, 2 rules")
    assert second.startswith("subscriptions: no hub was asked: no hub at /run/sbus.socket")
    rules.write_text(RULES + "publsh = []")
    done = run("sbuslib", "config", "check", str(rules))
    assert (done.returncode, done.stdout) == (2, "")
    assert "rules[1].publsh: there is no such key: did you mean 'publish'?" in done.stderr


def test_what_would_have_been_refused_is_shown(run: Run, rules: Path, journal: Path) -> None:
    done = run("sbuslib", "config", "check", str(rules), "--journal", str(journal))
    lines = done.stdout.splitlines()
    assert re.fullmatch(f"{journal}: 5 messages of 2 users under 3 keys, from {TIME} to {TIME}", lines[1])
    assert lines[2] == "not recorded: 1 times nobody knows how many: outage"
    assert lines[3].startswith("refused: 3 messages")
    table = [re.sub(TIME, "T", line).split() for line in lines[5:7]]
    assert table == [
        ["4000", "secret\\x1b\\xff", "T", "T", "1", "2", "not", "by", f"{rules}:1,", f"{rules}:5"],
        ["4001", "log/1", "T", "T", "1", "1", "not", "by", f"{rules}:5"],
    ]
    assert lines[-1].split() == [f"{rules}:1", "publish", '"old/"']
    assert done.returncode == 1

    done = run("sbuslib", "config", "check", str(rules), "--journal", str(journal), "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["rules"], found["ending"]) == (1, 2, None)
    assert [(one["uid"], one["messages"]) for one in found["recorded"]["refusals"]] == [(4000, 2), (4001, 1)]
    assert found["recorded"]["lost"] == [{"cause": "outage", "messages": 0, "unknown": 1}]
    assert found["unmatched"] == [{"rule": f"{rules}:1", "verb": "publish", "pattern": "old/"}]

    # A part of it: of a time, and the first rows of each table.
    done = run("sbuslib", "config", "check", str(rules), "--journal", str(journal), "--since", "2025-06-15T15:07:41Z")
    assert "5 messages" not in done.stdout
    assert "refused: none" in done.stdout
    assert done.returncode == 0
    done = run("sbuslib", "config", "check", str(rules), "--journal", str(journal), "--rows", "1")
    assert "and 1 more: --rows 2\n" in done.stdout
    assert "4001" not in done.stdout


@pytest.mark.parametrize("at", [40, 400])
def test_what_is_damaged_is_unknown(run: Run, rules: Path, journal: Path, at: int) -> None:
    """A damaged header, and a damaged block."""
    flip(journal / f"{4:020d}.sbj", at)
    done = run("sbuslib", "config", "check", str(rules), "--journal", str(journal))
    assert re.search("^not recorded: .*: damaged$", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert done.returncode == 1


def test_proposed_rules_refuse_nothing_of_the_journal(run: Run, rules: Path, journal: Path) -> None:
    unknown = Row(b"nobody", b"", START_NS, None, (-1, -1, -1))
    segment(journal, 7, [row(b"secret/%u", uid=os.getuid()), unknown])
    done = run("sbuslib", "config", "check", "--journal", str(journal), "--propose")
    assert done.returncode == 0, done.stderr
    assert "# But for 1 messages whose sender nobody knows." in done.stdout
    assert 'users = [4000]\npublish = [\n    "late/1",\n    "log/1",\n    "secret\\U0000001b*",\n]\n' in done.stdout
    assert '    "secret/%%u",\n' in done.stdout

    rules.write_text(done.stdout)
    done = run("sbuslib", "config", "check", str(rules), "--journal", str(journal))
    assert (done.returncode, "unmatched" in done.stdout) == (0, False), done.stdout
    assert "unknown: 1 messages whose sender nobody knows\n" in done.stdout


def test_rules_and_journal_have_one_separator(run: Run, rules: Path, tmp_path: Path) -> None:
    segment(tmp_path / "dotted", 1, [row(b"log.1")._replace(sender=b"!.cred.100.4000.7")], separator=b".")
    place = str(tmp_path / "dotted")
    done = run("sbuslib", "config", "check", str(rules), "--journal", place)
    assert done.returncode == 2
    assert done.stderr.endswith("dotted: its keys have the separator ., and the rules /\n")
    assert run("sbuslib", "config", "check", str(rules), "--journal", place, "--separator", ".").returncode == 1
    done = run("sbuslib", "config", "check", "--journal", place, "--propose")
    assert '\nseparator = "."\n\n[[rules]]\nusers = [4000]\npublish = [\n    "log.1",\n]\n' in done.stdout


def test_subscriptions_of_a_running_hub_that_would_end_are_shown(
    run: Run, rules: Path, journal: Path, bus: HubThread, path: str, connect: Connect
) -> None:
    peer, link = connect(path), connect(path)
    peer.send(b"SUB log/1", b"SUB late/*/x\x1b", b"SUB !/cred////x", b"SUB \xff")
    link.send(b"CMSG interest/on", b"SUB far/")
    for one in (peer, link):
        one.barrier()
    rules.write_text(f"{RULES}subscribe = ['late/', 'never/']\n\n[[rules]]\nusers = ['@daemon']\npublish = ['x']\n")
    done = run("sbuslib", "config", "check", str(rules), "-a", path)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[1]) == (
        1,
        f"subscriptions: of 4 at {path}, 3 would end; links keep what their user may read",
    )
    name = name_of_user(os.getuid())
    assert sorted(" ".join(line.split()) for line in lines[3:6]) == sorted(
        f"{name} {pattern} {of} {os.getpid()} not by {rules}:5"
        for pattern, of in (("log/1", "client"), ("\\xff", "client"), ("far/", "link"))
    )
    assert [line.split()[1:] for line in lines[8:9]] == [["subscribe", '"never/"']]

    # With a journal, the whole rule is needless; and rules that are made have what is subscribed to.
    done = run("sbuslib", "config", "check", str(rules), "-a", path, "--journal", str(journal))
    assert done.stdout.splitlines()[-1] == f"whole rules that may go, as far as that shows: {rules}:10"
    done = run("sbuslib", "config", "check", "-a", path, "--journal", str(journal), "--propose")
    assert "# But for 1 subscriptions that are not UTF-8" in done.stdout
    assert 'subscribe = [\n    "far/",\n    "late/*/x\\U0000001b",\n    "log/1",\n]\n' in done.stdout
    rules.write_text(done.stdout)
    done = run("sbuslib", "config", "check", str(rules), "-a", path, "--journal", str(journal))
    assert f"of 4 at {path}, 1 would end" in done.stdout


def test_a_hub_that_does_not_answer_is_an_error_only_if_it_was_asked_for(run: Run, rules: Path, path: str) -> None:
    assert run("sbuslib", "config", "check", str(rules), "-a", path).returncode == 1
    assert run("sbuslib", "config", "check", str(rules)).returncode == 0


def test_rules_are_made_of_a_journal(run: Run) -> None:
    done = run("sbuslib", "config", "check", "--propose")
    assert (done.returncode, done.stderr) == (
        2,
        "sbus: --propose needs --journal: rules are made of what was recorded\n",
    )
