"""Tables of the pages that repeat what the code says, held against the code; and help()."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import tables as site_tables
from docs.pages import DOCS, PAGES, Desk, named, tables, text_of
from support import PATIENCE, ROOT, HubThread
from test_imports import PACKAGE

import sbuslib
from sbuslib import aio, blocking, matches
from sbuslib.client import Client
from sbuslib.clients import endpoint, fd_publishers, hub_view, job_queue
from sbuslib.clients.endpoint import ClientSubscription
from sbuslib.clients.recipes.subscription import Subscription
from sbuslib.core.losses import CAUSES
from sbuslib.core.outbox import decide
from sbuslib.topic import Topic
from sbuslib.wire import control
from sbuslib.wire.modes import HARD, ORDER, SOFT

# -- Tables of the pages that repeat what the code says, held against the code


def table(page: Path, *heading: str) -> list[list[str]]:
    """The rows of the table with this heading, or beginning of one."""
    (found,) = [rows for rows in tables(page) if rows[0][: len(heading)] == list(heading)]
    return found[1:]


def words(cell: str, every: tuple[str, ...]) -> list[str]:
    return list(every) if cell == "any" else cell.split(", ")


# -- flood control ----------------------------------------------------------------------------------


def test_the_table_of_flood_control_is_the_code() -> None:
    drawn: dict[tuple[bool, str, str, bool], str] = {}
    for queue, soft, hard, may, may_not in table(DOCS / "flood-control.md", "queue", "soft", "hard"):
        assert queue in ("has room", "full")
        for one_soft, one_hard in product(words(soft, SOFT), words(hard, HARD)):
            for may_hold, action in ((True, may), (False, may_not)):
                cell = (queue == "full", one_soft, one_hard, may_hold)
                assert cell not in drawn, f"{cell} is told twice"
                drawn[cell] = action
    assert drawn == {
        (full, soft, hard, may_hold): decide(full, soft, hard, may_hold).value
        for full, soft, hard, may_hold in product((False, True), SOFT, HARD, (False, True))
    }


def test_orders_and_causes_are_told() -> None:
    page = DOCS / "flood-control.md"
    assert named([row[0] for row in table(page, "order")]) == list(ORDER)
    assert named([row[0] for row in table(page, "cause")]) == list(CAUSES)


# -- tables that the site makes ----------------------------------------------------------------------


def test_the_site_makes_a_table_for_every_marker() -> None:
    """From docstrings: a field without one is an error."""
    markers = [marker for page in PAGES for marker in re.findall(r"<!-- table: .* -->", text_of(page))]
    assert len(markers) == len({*markers}) > 5
    for marker in markers:
        assert site_tables.with_tables(marker).startswith(("| ", "```")), marker


# -- the protocol -----------------------------------------------------------------------------------


def control_keys() -> set[str]:
    """Every control key that a client may send."""
    found = {
        value.decode()
        for name, value in vars(control).items()
        if isinstance(value, bytes)
        and name.isupper()
        and (name == "INTEREST_ON" or not name.startswith(("NOTICE_", "SCOPE_", "SEPARATOR", "INTEREST_")))
    } - {
        control.FROM.decode(),
        control.WRAPPER.decode(),
        control.SOFT.decode(),
        control.HARD.decode(),
        control.ORDER.decode(),
    }
    words = {*control.SUPPORTED} - control.BETWEEN_HUBS  # of who is there, the first of their words
    found |= {word.decode() for word in words}
    for start, modes in ((control.SOFT, SOFT), (control.HARD, HARD), (control.ORDER, ORDER)):
        found |= {start.decode() + mode for mode in modes}
    return found


def test_every_packet_between_hubs_is_told() -> None:
    rows = table(DOCS / "relay.md", "packet", "from", "meaning")
    told = {name for row in rows for name in named([row[0]]) if name.startswith("interest/")}
    assert told == {value.decode() for name, value in vars(control).items() if name.startswith("INTEREST_")}


def test_every_control_message_is_told() -> None:
    told: set[str] = set()
    for rows in tables(DOCS / "protocol.md"):
        if rows[0][0] != "you send":
            continue
        for row in rows[1:]:
            start = ""
            for name in named([row[0]]):
                if name.startswith("CMSG "):
                    told.add(name.removeprefix("CMSG "))
                    start = name.removeprefix("CMSG ").rpartition("/")[0]
                elif name.startswith("…"):
                    told.add(start + name.removeprefix("…"))
    assert told == control_keys()


def test_notices_are_told() -> None:
    rows = table(DOCS / "protocol.md", "the hub sends")
    keys = {value.decode() for name, value in vars(control).items() if name.startswith("NOTICE_")}
    assert {named([row[0]])[0].removeprefix("CMSG ") for row in rows} == keys


def test_the_table_of_matching_is_true() -> None:
    rows = table(DOCS / "protocol.md", "pattern", "matches", "does not match")
    for pattern, matching, other in rows:
        (text,) = named([pattern])
        assert named([matching, other])
        for key in named([matching, other]):
            assert matches(text.encode(), key.encode()) is (key in named([matching])), (text, key)


# -- the API ----------------------------------------------------------------------------------------


def test_every_name_of_the_package_is_told_with_its_home() -> None:
    rows = table(DOCS / "api.md", "name", "lives in")
    assert {named([row[0]])[0] for row in rows} == set(sbuslib.__all__)
    for row in rows:
        (name,), (home,) = named([row[0]]), named([row[1]])
        value = getattr(sbuslib, name)
        assert value is importlib.import_module(home) or getattr(importlib.import_module(home), name) is value


def section(title: str) -> str:
    """The text of a section of the page, up to the next heading."""
    found = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", text_of(DOCS / "api.md"), re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def told_in(title: str) -> set[str]:
    """The names in the first column of the tables of a section, without their arguments."""
    rows = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("| `")]
    return {name.partition("(")[0] for name in named(rows)}


@pytest.mark.parametrize(
    ("title", "kind", "whole"),
    [
        ("`Hub`", sbuslib.Hub, False),
        ("Subscriptions", ClientSubscription, True),
        ("`Client` and `blocking.Client`", Client, True),
        ("`aio.Client`", aio.Client, False),
        ("`Topic`", Topic, True),
    ],
)
def test_what_is_told_of_a_class_is_there(title: str, kind: type, whole: bool) -> None:
    """And of a class that is told whole, every verb is."""
    source = "".join(inspect.getsource(base) for base in kind.__mro__ if base.__module__.startswith("sbuslib."))
    for name in told_in(title):
        assert hasattr(kind, name) or f"self.{name} = " in source or f"self.{name}: " in source, name
    assert not whole or public(kind) <= told_in(title)


def test_every_verb_of_what_a_client_has_is_told() -> None:
    parts = {
        "queue(name)": (endpoint.JobQueue, job_queue.AioJobQueue),
        "frames": (endpoint.FrameExchange, fd_publishers.AioFrameExchange),
        "descriptors": (endpoint.DescriptorExchange, fd_publishers.AioDescriptorExchange),
        "files": (endpoint.FileExchange, fd_publishers.AioFileExchange),
        "hub": (endpoint.HubView, hub_view.AioHubView),
    }
    rows = [line.split("|")[1] for line in section("Queues, frames, files, and the hub").splitlines() if "| `" in line]
    told = {re.sub(r"(?<!queue)\(.*", "", name) for name in named(rows)}
    for kinds in zip(*parts.values(), strict=True):
        assert {f"{part}.{name}" for part, kind in zip(parts, kinds, strict=True) for name in public(kind)} == told


def test_a_hub_and_a_client_hand_out_the_same_kind_of_object(address: str) -> None:
    with sbuslib.Hub(address) as hub, hub.client() as client:
        both: list[Subscription] = [hub.subscribe("a"), client.subscribe("a")]  # the checker of types sees it, too
        for one in both:
            hub.publish("a", b"x")
            assert one.receive(timeout=PATIENCE).payload == b"x"
            assert (one.patterns, one.lost, one.closed) == ((b"a",), {}, False)
            one.unsubscribe()
            assert one.closed


def test_the_clients_have_the_same_verbs() -> None:
    assert public(Client) == public(blocking.Client) == public(aio.Client)


@pytest.mark.parametrize(("title", "kind"), [("`Hub`", sbuslib.Hub), ("`Client` and `blocking.Client`", Client)])
def test_the_parameters_are_told(title: str, kind: type) -> None:
    text = " ".join(section(title).split())
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is inspect.Parameter.empty:
            assert name in text
        elif name == "mode":
            assert "mode=0o700" in text
        else:
            assert f"{name}={parameter.default!r}".replace("'", '"') in text


# -- the rest ---------------------------------------------------------------------------------------


def test_the_change_log_tells_of_this_version() -> None:
    assert re.search(rf"^## {re.escape(sbuslib.__version__)} - ", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)


# -- The page on troubleshooting has an entry for each text of an error that circumstances bring about

PAGE = DOCS / "how-to" / "troubleshooting.md"

KINDS = {"AddressInUseError", "DisconnectedError", "HubIdentityError", "NoHubError", "ServiceError"}
"""Errors that circumstances bring about. Those of arguments, and of calls at the wrong time, say what to do."""

PLACES = ["hub.py", "relay.py", "statistics.py", "aio.py", "core", "clients", "kernel", "tree", "journal/recorder.py"]
"""The bus itself; what services and commands say names what to do."""


def words_of(node: ast.expr) -> str | None:
    """A text of the code, with ``…`` for what is put into it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


def texts() -> Iterator[str]:
    for place in PLACES:
        path = PACKAGE / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", None) in KINDS and node.args:
                    text = words_of(node.args[-1])
                    if text is not None and text != "…":
                        yield text


def entries() -> list[str]:
    rows = [row for rows in tables(PAGE) for row in rows if rows[0][0] == "what it says"]
    return [row[0].strip("`").strip() for row in rows]


def test_every_text_has_an_entry() -> None:
    """With ``…`` for what differs; else add a row: what it says, why, and what to do."""
    assert {*texts()} - {*entries()} == set()


def test_no_entry_is_of_a_text_that_is_gone() -> None:
    """Every entry is found in the code, in pieces where something is put into it."""
    code = re.sub(r'"\s*f?"', "", "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py")))
    for entry in entries():
        for piece in re.split("[…`]", entry):
            assert entry == "what it says" or piece.strip(" :") in code, entry


# -- ``help()`` of what programs use: it tells each parameter, its examples run, and it names no internals


@pytest.mark.parametrize("kind", [sbuslib.Client, sbuslib.Hub])
def test_every_parameter_is_told(kind: type) -> None:
    told = re.findall(r":param (\w+):", inspect.getdoc(kind) or "")
    assert told == [*inspect.signature(kind).parameters]


@pytest.mark.parametrize("module", ["sbuslib", "sbuslib.blocking"])
def test_the_example_of_a_client_runs(module: str, desk: Desk) -> None:
    text = inspect.getdoc(sbuslib.Client if module == "sbuslib" else blocking.Client) or ""
    example = textwrap.dedent(text.partition("::\n\n")[2].partition("\n\n")[0]).replace("/tmp/bus", desk.address)
    with HubThread(desk.address):
        assert desk.run(f"from {module} import Client\n{example}") == "b'room/1/temp' b'21.5'\n"


def test_a_hub_shows_nothing_that_only_its_parts_need() -> None:
    assert not {"context", "tree"} & {*dir(sbuslib.Hub("/tmp/bus"))}
