"""Makes the documentation site: ``python docs/site/make.py FOLDER`` leaves it in ``FOLDER/html``.

The pages are those of ``docs`` and some of the top folder, with tables made from the code (``tables``). Two kinds are
made here: the commands, from ``--help``, and the reference, from docstrings (``REFERENCE``). The order of the pages is
that of the links in ``docs/index.md``. All is put together in ``FOLDER/source``, so that nothing is written elsewhere.
Nothing is downloaded.
"""

from __future__ import annotations

import gc
import re
import shutil
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from tables import with_tables

from sbuslib.cli import daemon, main, relay
from sbuslib.cli.arguments import Formatter, Parser

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md")
"""Pages of the top folder that the site has, too."""

REFERENCE = {
    "hub": ("Hub and Inbox", "Hub core.embedder.Inbox"),
    "client": (
        "Client, for gevent",
        "Client connect Connector connecting.BusUrl Subscription clients.endpoint.Service clients.endpoint.JobQueue "
        "clients.endpoint.FrameExchange clients.endpoint.DescriptorExchange clients.endpoint.FileExchange "
        "clients.endpoint.HubView clients.endpoint.HeldPresence clients.endpoint.PresentMembers "
        "clients.endpoint.WatchedInterest clients.watching.Present clients.watching.PresenceEvent",
    ),
    "blocking": ("blocking.Client, for threads", "blocking.Client"),
    "aio": ("aio.Client, for asyncio", "aio.Client"),
    "values": ("Messages, topics, credentials", "Message Topic Credentials matches"),
    "relay": ("Relay", "Relay monitor.survey.survey monitor.survey.SeenHub"),
    "patterns": (
        "Questions, jobs, frames",
        "Request Reply Job Frame Descriptor clients.fds.transfers.ReceivedFile CaughtUp",
    ),
    "testing": ("Testing", "testing"),
    "journal": (
        "Recorder, ClientRecorder, Consumer, replay, read",
        "read journal.recorder.Recorder journal.client_recorder.ClientRecorder "
        "journal.black_box.BlackBox journal.consume.consume "
        "journal.consume.Consumer journal.replay.replay journal.replay.from_journal journal.replay.Selection",
    ),
    "bridge": ("Bridges", "bridge.Bridge bridge.AioBridge bridge.broker.BrokerOptions"),
    "reports": (
        "Spark and reports",
        "spark.session reports.sql.in_duckdb reports.sql.in_spark reports.traffic.traffic "
        "reports.subscriptions.subscriptions reports.by_key.by_key",
    ),
    "tcp": ("Peer and Gateway", "tcp.peer.Peer tcp.gateway.Gateway"),
    "statistics": ("Statistics", "statistics"),
    "errors": ("Errors", "errors"),
}
"""The pages of the reference: the file of each, its title, and what its docstrings are taken of, in ``sbuslib``."""

_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
_SECTION = re.compile(r"^\*\*(.+?):\*\*", re.MULTILINE)


def site_path(page: Path) -> str | None:
    """Where the site has a file of the checkout, from the folder of its sources; ``None`` for what it has not."""
    if page.parent == ROOT and page.name in TOP:
        return page.name
    if ROOT / "docs" in page.parents and page.suffix in (".md", ".png", ".svg"):
        return str(page.relative_to(ROOT / "docs"))
    return None


def with_links(text: str, page: Path) -> str:
    """The text of a page with links that lead to where the site has what they lead to in a checkout."""
    here = Path(site_path(page) or "").parent

    def lead(link: re.Match[str]) -> str:
        words, target = link.groups()
        path, hash_, anchor = target.partition("#")
        if not path or re.match(r"\w+:", path):
            return link[0]
        file = (page.parent / path).resolve()
        place = site_path(file)
        if place is None and not file.is_file():
            return words[1:-1]  # a folder: its name is enough
        if place is None:
            place = f"files/{file.relative_to(ROOT)}"
        ups = "../" * len(here.parts)
        return f"{words}({ups}{place}{hash_}{anchor})"

    return _LINK.sub(lead, text)


def linked_files(page: Path) -> list[Path]:
    """The files that a page links to and that are no pages: sources, the licence."""
    targets = [(page.parent / path.partition("#")[0]).resolve() for _, path in _LINK.findall(page.read_text("utf-8"))]
    return [file for file in targets if file.is_file() and site_path(file) is None]


def contents(index: Path) -> str:
    """The tables of contents of the site: one for each part of the index, in the order of its links."""
    text = index.read_text("utf-8")
    parts = _SECTION.split(text)
    found = []
    for caption, part in zip(parts[1::2], parts[2::2], strict=True):
        names = []
        for _, path in _LINK.findall(part):
            place = site_path((index.parent / path.partition("#")[0]).resolve())
            if place is not None and place.endswith(".md"):
                names.append(place.removesuffix(".md"))
                if place == "api.md":
                    names.append("reference/index")
                if place == "shell.md":
                    names += ["commands/sbus", "commands/sbusd", "commands/sbus-relay"]
        found.append(_toctree(caption, dict.fromkeys(names)))
    return "\n".join(found)


def command_pages() -> dict[str, str]:
    """What ``--help`` shows, by page: the three programs, and each family of commands below ``sbus``."""
    commands = dict(main.every_parser())
    families = {
        f"sbus-{family}": (title, [name for name, row in main.COMMANDS.items() if row[0] == family])
        for family, title in main.GROUPS.items()
    }
    pages = {
        parser.prog: f"# {parser.prog}\n\n{_help(parser)}"
        for parser in (main.build_parser(), daemon.build_parser(), relay.build_parser())
    }
    pages["sbus"] += "\n" + _toctree("", sorted(families))
    for page, (title, names) in families.items():
        sections = (f"## sbus {name}\n\n{_help(commands[name])}" for name in names)
        pages[page] = "\n".join([f"# sbus: {title}\n", *sections])
    return pages


def _help(parser: Parser) -> str:
    parser.formatter_class = partial(Formatter, width=76)
    return f"```text\n{parser.format_help()}```\n"


def _toctree(caption: str, names: Iterable[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}" if caption else "", "", *names, "```", ""])


def reference_page(title: str, names: str) -> str:
    """A page of the reference in reStructuredText."""
    lines = [title, "=" * len(title), ""]
    for name in names.split():
        # By the path: a module is not imported, as it may need Spark.
        is_module = (ROOT / "sbuslib" / name.replace(".", "/")).with_suffix(".py").exists()
        kind = "module" if is_module else "class" if name.rpartition(".")[2][0].isupper() else "function"
        lines.append(f".. auto{kind}:: sbuslib.{name}")
        lines += ["   :members:"] if kind != "function" else []
        lines += ["   :inherited-members: Struct, Generic", ""] if kind == "class" else [""]
    return "\n".join(lines)


def assemble(source: Path) -> None:
    """Put the sources of the site together."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in TOP if (ROOT / name).exists())]
    for page in pages:
        text = with_links(with_tables(page.read_text("utf-8")), page)
        if page == ROOT / "docs" / "index.md":
            text += "\n" + contents(page)
        _write(source / (site_path(page) or ""), text)
        for file in linked_files(page):
            copy = source / "files" / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
    shutil.copytree(ROOT / "docs" / "images", source / "images")

    for name, text in command_pages().items():
        _write(source / "commands" / f"{name}.md", text)
    for name, (title, values) in REFERENCE.items():
        _write(source / "reference" / f"{name}.rst", reference_page(title, values))
    lines = ["Reference", "=" * 9, "", ".. toctree::", "", *(f"   {name}" for name in REFERENCE)]
    _write(source / "reference" / "index.rst", "\n".join(lines) + "\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def build(folder: Path) -> int:
    """Make the site; the exit status of Sphinx, for which a warning is an error."""
    from sphinx.cmd.build import main as sphinx

    source = folder / "source"
    shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    assemble(source)
    gc.disable()  # the trees of all pages stay until the end: to look through them is a third of the time
    status: int = sphinx(
        ["-q", "-W", "--keep-going", "-c", str(HERE), "-d", f"{folder}/doctrees", str(source), f"{folder}/html"]
    )
    return status


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python docs/site/make.py FOLDER")
    sys.exit(build(Path(sys.argv[1])))
