"""The page on the architecture, held against the code: the folders and the names."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType, ModuleType

import gevent
import pytest
from docs.pages import DOCS, tables, text_of
from support import ROOT, Peer, eventually
from test_imports import ENTRANCES, FLOORS, PACKAGE, modules

import sbuslib
from sbuslib import Hub

PAGE = DOCS / "architecture.md"
INSTALLED = os.path.dirname(sbuslib.__file__)


def folders() -> dict[str, set[str]]:
    """The modules of each folder; those of the top level are in ``sbuslib``."""
    found: dict[str, set[str]] = {}
    for name in modules():
        folder, dot, module = name.rpartition(".")
        if name not in ENTRANCES and (dot or not (PACKAGE / name).is_dir()):
            found.setdefault(folder or "sbuslib", set()).add(module)
    return found


def named(text: str) -> list[str]:
    """What stands in backticks, in order; blocks of code left out."""
    return re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


def test_every_module_is_listed_with_its_folder() -> None:
    (rows,) = [rows[1:] for rows in tables(PAGE) if rows[0] == ["folder", "what is in it", "modules"]]
    assert {named(folder)[0]: set(named(listed)) for folder, _, listed in rows} == folders()
    assert all(named(listed) == sorted(named(listed)) for _, _, listed in rows)


def dotted_names() -> list[str]:
    """Every ``Class.method`` and ``module.function`` of the page, without files."""
    found = {name for name in named(text_of(PAGE)) if re.fullmatch(r"[A-Za-z_]\w*\.\w+", name)}
    return sorted(name for name in found if not name.endswith((".py", ".md", ".c")))


@cache
def loaded() -> list[ModuleType]:
    return [sbuslib, *(importlib.import_module(f"sbuslib.{name}") for name in modules() if name not in ENTRANCES)]


def homes(owner: str) -> list[object]:
    """Every class, or else every module, of this name."""
    if owner[0].isupper():
        return [kind for kind in (vars(module).get(owner) for module in loaded()) if inspect.isclass(kind)]
    return [module for module in loaded() if module.__name__.rpartition(".")[2] == owner]


def has(home: object, name: str) -> bool:
    return hasattr(home, name) or (inspect.isclass(home) and f"self.{name}" in inspect.getsource(home))


@pytest.mark.parametrize("dotted", dotted_names())
def test_a_named_method_or_function_exists(dotted: str) -> None:
    owner, _, name = dotted.partition(".")
    assert any(has(home, name) for home in homes(owner)), dotted


def test_a_named_class_exists() -> None:
    told = {name for name in named(text_of(PAGE)) if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name)}
    assert {name for name in told if not homes(name)} == set()


def test_the_journey_names_many_functions() -> None:
    assert len(dotted_names()) > 50


def test_named_files_exist() -> None:
    files = {name for name in named(text_of(PAGE)) if re.fullmatch(r"[\w/]+\.(py|c|md)", name)}
    assert files
    missing = {name for name in files if not ((PACKAGE / name).exists() or (ROOT / name).exists())}
    assert missing == set()


def bus_modules() -> list[str]:
    """The modules of the bus itself: what is below the services."""
    rooms = [room for floor in FLOORS[1:7] for room in floor.split()]
    return [name for name in modules() if "." in name and name.partition(".")[0] in rooms]


@pytest.mark.parametrize("name", bus_modules())
def test_every_module_of_the_bus_is_the_place_to_change_something(name: str) -> None:
    table = text_of(PAGE).partition("## Where do I change X?")[2]
    assert f"`{name.replace('.', '/')}.py`" in table


# -- the journey ------------------------------------------------------------------------------------


def named_functions() -> dict[str, set[str]]:
    """The functions that the numbered steps of the journey name, with what Python calls each; no attributes."""
    journey = text_of(PAGE).partition("## One packet's journey")[2].partition("\n\n**")[0]
    found = {}
    for dotted in set(named(journey)) & set(dotted_names()):
        owner, _, name = dotted.partition(".")
        functions = [one for one in (getattr(home, name, None) for home in homes(owner)) if callable(one)]
        if functions:
            found[dotted] = {f"{one.__module__}.{one.__qualname__}" for one in functions}
    return found


ELSEWHERE = {
    "Uplink.deliver": "a relay",
    "Intake.deliver": "a recorder",
    "Group.deliver": "several users",
    "Members.kick_later": "a protocol, of Clients",
    "Role.violated": "a protocol, of ClientRole",
    "Role.ended": "a protocol, of ClientRole",
    "Role.after_turn": "a protocol, of ClientRole",
}
"""Names of the journey that a hub of one user with clients alone does not call, with what does."""


@contextmanager
def noted() -> Iterator[set[str]]:
    """The functions of the package that are called meanwhile, as the page names them."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(INSTALLED):
            called.add(f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}")

    loop = gevent.get_hub().loop
    loop.run_callback(sys.setprofile, note)  # of the event loop, where a hub does its work
    gevent.sleep(0)
    try:
        yield called
    finally:
        loop.run_callback(sys.setprofile, None)
        gevent.sleep(0)


def somebody_is_held(hub: Hub) -> bool:
    return any(connection.publisher.holders for connection in hub._clients.connections.values())


def test_a_packet_takes_the_journey_of_the_page(folder: str) -> None:
    """Every function of the numbered steps is called while messages go to all kinds of receivers."""
    functions = named_functions()
    with Hub(f"{folder}/bus") as hub, hub.subscribe(b"room/") as inbox, noted() as called:
        with Peer(hub.address) as quick, Peer(hub.address) as curious, Peer(hub.address) as slow:
            for receiver in (quick, curious, slow):
                receiver.subscribe(b"room/")
            curious.send(b"CMSG senders/on")
            slow.send(b"CMSG blocking/soft/block")
            for receiver in (curious, slow):
                receiver.barrier()
            with Peer(hub.address) as publisher:
                publisher.send(b"MSG room/1\0once")
                assert quick.receive() == b"MSG room/1\0once"
                publisher.send(b"MSG room/1\0twice")
                assert quick.receive() == b"MSG room/1\0twice"
                publisher.send(*[b"MSG room/1\0again"] * 16)  # which the hub receives at once
                assert {quick.receive() for _ in range(16)} == {b"MSG room/1\0again"}
                while not somebody_is_held(hub):  # by the slow one
                    publisher.send(b"MSG room/1\0" + bytes(4_000))
                    assert quick.receive()
                while somebody_is_held(hub):
                    slow.receive()
            eventually(lambda: functions["Connection._without_end"] & called)
        assert len(inbox) > 2
    missing = {dotted for dotted, names in functions.items() if not names & called}
    assert missing - {"Connection._resume_reading"} == {*ELSEWHERE}  # which runs where a turn had to wait
