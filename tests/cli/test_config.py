"""The configuration file: what it may hold, how its errors read, and which options win over it."""

from __future__ import annotations

import os
import re
import tomllib
from argparse import Namespace
from pathlib import Path

import pytest
from cli.conftest import Run, Start
from conformance.script import read_cases
from conformance.script import run as play
from docs.pages import blocks
from support import PATIENCE, ROOT, TESTS, choose

from sbuslib.blocking import Client
from sbuslib.cli import daemon, relay
from sbuslib.cli.config import HubTable, RuleTable, read_settings
from sbuslib.errors import UsageError
from sbuslib.limits import Limits

SBUSD = "sbuslib.cli.daemon"
RELAY = "sbuslib.cli.relay"


@pytest.fixture
def file(folder: str) -> Path:
    return Path(folder, "sbus.toml")


def of_hub(*arguments: str) -> Namespace:
    return daemon.build_parser().parse_args(arguments)


def of_relay(*arguments: str) -> Namespace:
    return relay.build_parser().parse_args(arguments)


def test_the_file_says_what_no_option_says(file: Path) -> None:
    file.write_text(
        'address = "/tmp/some/bus"\nmode = 0o770\nusers = ["root", 1]\ntrusted = [2]\nrelays = ["@root", 3]\n'
        'separator = "."\nlimits = {queued_packets = 7, settle = 1}\n'
    )
    told = read_settings(of_hub("--config", str(file)))
    assert (told.address, told.mode, told.users, told.trusted) == ("/tmp/some/bus", 0o770, [0, 1], [2])
    assert (told.relays, told.separator, told.policy) == (["@root", 3], b".", None)
    assert told.limits == Limits(queued_packets=7, settle=1)


def test_options_win_over_the_file(file: Path) -> None:
    file.write_text(
        'address = "/tmp/some/bus"\nmode = 0o770\nusers = ["root"]\ntrusted = [2]\nrelays = [3]\nseparator = "."\n'
        'upstream = "/tmp/a"\nupstream_user = 5\nexport = ["é"]\nimport = []\n'
    )
    options = ("-o", "-u", "1", "--trusted", "4", "--relay", "@root", "--separator", "|", "--listen", "/tmp/x")
    above = ("--upstream", "/tmp/b", "--upstream", "/tmp/c", "--upstream-user", "0", "--export", "e", "--import", "i")
    told = read_settings(of_relay("--config", str(file)), None)
    assert (told.upstream, told.export, told.import_) == (["/tmp/a"], ["é".encode()], [])
    told = read_settings(of_relay("--config", str(file), *options, *above), None)
    assert (told.address, told.mode, told.users, told.trusted) == ("/tmp/x", 0o777, [1], [4])
    assert (told.relays, told.separator) == (["@root"], b"|")
    assert (told.upstream, told.upstream_user) == (["/tmp/b", "/tmp/c"], 0)
    assert (told.export, told.import_) == ([b"e"], [b"i"])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('limits = {queued_packets = "x"}', "limits.queued_packets: expected int, got str"),
        ("limits = {queue_packets = 1}", "limits.queue_packets: there is no such key: did you mean 'queued_packets'?"),
        ("limits = {queued_packets = -1}", "limits: Limits.queued_packets is positive and finite, not -1"),
        ("adress = 3", "adress: there is no such key: did you mean 'address'?"),
        ('mode = "0770"', "mode: expected int, got str"),
        ("mode = 0o1777", "mode: expected permission bits such as 0o770, got 1023"),
        ('upstream = "/tmp/a"', "upstream: there is no such key: that is for sbus-relay"),
        ('address = ""', "address: an address is not empty and holds no NUL"),
        ('separator = "ab"', "separator: a separator is one byte of ASCII"),
        ('separator = "7"', "separator: a separator is one byte of ASCII"),
        ('users = ["root", "nobody-at-all"]', "users[1]: there is no user 'nobody-at-all' on this machine"),
        ('relays = ["@no-such-group"]', "relays[0]: there is no group 'no-such-group' on this machine"),
        ("trusted = [1.5]", "trusted[0]: expected int | str, got float"),
        ("[[rules]]\npublish = []", "rules[0].users: missing"),
        ('[[rules]]\nusers = ["*"]\n[[rules]]\nusers = 3', "rules[1].users: expected list, got int"),
        ('[[rules]]\nusers = ["*"]\npublsh = []', "rules[0].publsh: there is no such key: did you mean 'publish'?"),
        ('[[rules]]\nusers = ["*"]\npublish = ["a", "%g"]', "rules[0].publish[1]: '%u' is the user's name"),
        ('[[rules]]\nusers = ["*"]\nsubscribe = ["a\\u0000"]', "rules[0].subscribe[0]: a pattern cannot hold a NUL"),
        (
            'limits = {pattern_segments = 2}\n[[rules]]\nusers = ["*"]\npublish = ["a/b/c"]\nsubscribe = ["a/b/"]',
            "rules[0].subscribe[0]: pattern of too many segments: no client may hold it (limits.pattern_segments",
        ),
        (
            'limits = {pattern_bytes = 2}\n[[rules]]\nusers = ["*"]\npublish = ["abc"]\nsubscribe = ["ab", "abc"]',
            "rules[0].subscribe[1]: pattern too long: no client may hold it (limits.pattern_segments",
        ),
        ('[[rules]]\nusers = ["@no-such-group"]', "rules[0].users[0]: there is no group 'no-such-group'"),
        ("rules = 3", "rules: expected list, got int"),
        ('address = "ÿ"', "this is no TOML: 'utf-8' codec can't decode byte 0xff"),
        ("mode = ", "this is no TOML: Invalid value (at end of document)"),
        pytest.param(f"mode = {'9' * 5_000}", "this is no TOML: Exceeds the limit", id="many digits"),
        pytest.param(f"mode = 0x{'9' * 5_000}", "mode: Exceeds the limit", id="many hexadecimal digits"),
        pytest.param(f"mode = {'[' * 100_000}", "this is no TOML: maximum recursion depth", id="deep"),
    ],
)
def test_an_error_names_file_and_key_and_what_was_expected(file: Path, text: str, error: str) -> None:
    file.write_text(text, "latin-1")
    with pytest.raises(UsageError) as raised:
        read_settings(of_hub("--config", str(file)))
    assert str(raised.value).startswith(f"{file}: {error}")


def test_rules_know_their_lines(file: Path) -> None:
    file.write_text('separator = "."\n\n[[rules]]\nusers = ["*"]\npublish = ["a."]\n\n[[ rules ]]\nusers = [0]\n')
    policy = read_settings(of_hub("--config", str(file))).policy
    assert policy is not None
    assert [rule.label for rule in policy.rules] == [f"{file}:3", f"{file}:7"]
    file.write_text('rules = [{users = ["*"]}, {users = ["root", "@root"], subscribe = [""]}]')
    policy = read_settings(of_hub("--config", str(file))).policy
    assert policy is not None
    assert [rule.label for rule in policy.rules] == [f"{file}: rule 1", f"{file}: rule 2"]
    assert (policy.rules[1].users, policy.rules[1].groups) == (frozenset({0}), frozenset({0}))


def test_the_page_shows_every_key_and_is_correct(file: Path) -> None:
    hub, above = (block.text for block in blocks(ROOT / "docs" / "configuration.md") if block.language == "toml")
    for name in ("alice", "bob", "operator", "tenants", "sbus"):
        hub, above = (re.sub(rf'"(@?){name}"', r'"\1root"', text) for text in (hub, above))
    told = tomllib.loads(above + hub)
    assert set(told) == set(HubTable.__struct_encode_fields__)
    assert set(told["rules"][0]) == set(RuleTable.__struct_encode_fields__)
    file.write_text(hub)
    assert read_settings(of_hub("--config", str(file))).policy is not None
    file.write_text(above + hub)
    assert read_settings(of_relay("--config", str(file)), None).export == [b"tenants/alice/"]


# -- the programs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [SBUSD, RELAY])
def test_a_file_can_be_checked_without_a_hub(run_here: Run, file: Path, program: str) -> None:
    file.write_text('address = "/no/such/folder/bus"\n' + ('upstream = "/tmp/x"\n' if program == RELAY else ""))
    done = run_here(program, "--config", str(file), "--check-config")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}: correct\n", "")
    file.write_text("mode = true")
    done = run_here(program, "--config", str(file), "--check-config")
    name = "sbusd" if program == SBUSD else "sbus-relay"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{name}: {file}: mode: expected int, got bool\n"


def test_a_file_that_is_not_there_is_an_error(run_here: Run, file: Path) -> None:
    done = run_here(SBUSD, "-f", "--config", str(file))
    assert (done.returncode, done.stderr) == (2, f"sbusd: {file}: No such file or directory\n")
    assert run_here(SBUSD, "--check-config").stderr == "sbusd: --check-config needs --config\n"


def test_a_relay_needs_to_know_where(run_here: Run, file: Path) -> None:
    assert run_here(RELAY).returncode == 2
    file.write_text('upstream = "/tmp/a"')
    assert "address: missing" in run_here(RELAY, "--config", str(file)).stderr
    file.write_text('address = "/tmp/a"')
    assert "upstream: missing" in run_here(RELAY, "--config", str(file)).stderr


def test_a_hub_serves_by_its_file(start: Start, run: Run, file: Path, path: str) -> None:
    own = os.getuid()
    file.write_text(f'address = "{path}"\nmode = 0o750\n[[rules]]\nusers = [{own}]\npublish = ["a/"]\n')
    start(SBUSD, "-f", "--config", str(file)).stdout.read()
    assert os.stat(path).st_mode & 0o777 == 0o750
    with Client(path) as client:
        choose(client, b"notices/on")
        client.publish(b"a/x")
        client.sync()
        client.publish(b"b")
        with pytest.raises(ConnectionError, match="publishing refused"):
            client.receive(timeout=PATIENCE)
    advice = f"; sbus hub explain {own} publish 'b c' shows the rule, with --config FILE unless its hub reads "
    advice += "/etc/sbus.toml\n"
    assert run("sbuslib", "pub", "-a", path, "b c", "x").stderr.endswith(advice)


# -- the edition of 2017 --------------------------------------------------------------------------------


def test_clients_of_the_edition_of_2017_are_served(serve: Start, file: Path, path: str) -> None:
    file.write_text('separator = "."')
    serve("--config", str(file))
    cases = read_cases(TESTS / "conformance" / "edition_2017" / "stops.sbus")
    assert len(cases) == 8
    for case in cases:
        play(case, path)
