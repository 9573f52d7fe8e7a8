"""``help()`` of what programs use: it tells each parameter, its examples run, and it names no internals."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap

import pytest
from docs.pages import Desk
from support import PATIENCE, HubThread

import sbuslib

TAUGHT = {
    "Client": sbuslib.Client,
    "blocking.Client": sbuslib.blocking.Client,
    "aio.Client": sbuslib.aio.Client,
    "Hub": sbuslib.Hub,
}


@pytest.mark.parametrize("name", ["Client", "Hub"])
def test_every_parameter_is_told(name: str) -> None:
    told = re.findall(r":param (\w+):", inspect.getdoc(TAUGHT[name]) or "")
    assert told == [*inspect.signature(TAUGHT[name]).parameters]


@pytest.mark.parametrize("name", TAUGHT)
def test_help_begins_with_what_it_is_and_an_example(name: str) -> None:
    text = inspect.getdoc(TAUGHT[name]) or ""
    assert "::\n\n" in text.partition(":param")[0]
    if name.endswith("Client"):
        assert all(word in text for word in ("timeout", "reconnect", "hub_user"))


@pytest.mark.parametrize("module", ["sbuslib", "sbuslib.blocking"])
def test_the_example_of_a_client_runs(module: str, desk: Desk) -> None:
    text = inspect.getdoc(TAUGHT["Client" if module == "sbuslib" else "blocking.Client"]) or ""
    example = textwrap.dedent(text.partition("::\n\n")[2].partition("\n\n")[0]).replace("/tmp/bus", desk.address)
    program = f"from {module} import Client\n{example}"
    with HubThread(desk.address):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            env=desk.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert (done.stderr, done.stdout) == ("", "b'room/1/temp' b'21.5'\n")


def test_a_hub_shows_nothing_that_only_its_parts_need() -> None:
    assert not {"context", "tree"} & {*dir(sbuslib.Hub("/tmp/bus"))}
