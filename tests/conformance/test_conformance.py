"""The scripts beside this module, case by case, against a hub of this library or the daemon at ``--address``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.script import Case, read_cases, run
from support import WHOAMI, Peer

from sbuslib import Hub

CASES = [case for path in sorted(Path(__file__).parent.glob("*.sbus")) for case in read_cases(path)]


@pytest.fixture
def daemon(request: pytest.FixtureRequest, folder: str) -> Iterator[str]:
    """The address of a daemon that listens."""
    given = request.config.getoption("--address")
    if given:
        yield str(given)
        return
    with Hub(folder + "/bus") as hub:
        yield hub.address


def is_c_daemon(address: str) -> bool:
    """The C daemon stays silent about features."""
    with Peer(address) as peer:
        peer.send(b"CMSG hub/features", WHOAMI)
        return peer.receive().startswith(WHOAMI)


def parameter(case: Case) -> object:
    marks = [pytest.mark.fails_on_c_daemon(case.known)] if case.known else []
    return pytest.param(case, id=f"{case.file.removesuffix('.sbus')}: {case.title}", marks=marks)


@pytest.mark.parametrize("case", [parameter(case) for case in CASES])
def test_conformance(case: Case, daemon: str, request: pytest.FixtureRequest) -> None:
    if case.known and request.config.getoption("--address") and is_c_daemon(daemon):
        request.applymarker(pytest.mark.xfail(reason=case.known, strict=False))
    run(case, daemon)


def test_every_case_has_a_title_of_its_own() -> None:
    names = [(case.file, case.title) for case in CASES]
    assert len(names) == len(set(names)) > 50


@pytest.mark.parametrize(
    "text", ["a > SUB x", "== t\nnonsense", "== t\na > x{...}", "== t\na . x", "== t\na ? x", "!! reason", "== t\na< x"]
)
def test_a_script_that_cannot_be_parsed_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.sbus"
    path.write_text(text, "ascii")
    with pytest.raises(SyntaxError, match=r"means nothing|must be said"):
        read_cases(path)


@pytest.mark.parametrize(
    "steps",
    [
        "b > SUB a\na > MSG a%00x\nb < MSG a%00y",  # another payload
        "b > SUB a\na > MSG a%00x\nb .",  # something came
        "b > SUB a\na > MSG b%00x\nb < MSG a%00x",  # nothing came
        "b > SUB a\nb x",  # no reason to disconnect
        "a > bad\na .",  # disconnected, and so not silent
        "a > CMSG !/cred/whoami\na .",  # an answer that was not read
    ],
)
def test_a_case_that_the_hub_does_not_meet_fails(
    tmp_path: Path, steps: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner itself must be able to fail."""
    path = tmp_path / "bad.sbus"
    path.write_text("== not so\n" + steps, "ascii")
    monkeypatch.setattr("support.PATIENCE", 0.05)
    with Hub(folder + "/bus") as hub, pytest.raises((AssertionError, TimeoutError)):
        run(read_cases(path)[0], hub.address)
