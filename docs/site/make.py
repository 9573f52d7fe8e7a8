"""Makes the documentation site: ``python docs/site/make.py FOLDER`` leaves it in ``FOLDER/html``.

The pages are those of ``docs`` and some of the top folder, with tables made from the code (``tables``). Two kinds are
made here: the commands, from the man pages that the parsers give (``manpages``), and the reference, from docstrings
(``REFERENCE``). The order of the pages is that of the links in ``docs/index.md``. All is put together in
``FOLDER/source``, so that nothing is written elsewhere. Nothing is downloaded.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import manpages
from tables import with_tables

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the top folder that the site has, too."""

REFERENCE: dict[str, tuple[str, list[str]]] = {
    "hub": ("Hub and Inbox", ["sbuslib.Hub", "sbuslib.core.inbox.Inbox", "sbuslib.clients.batch.BatchPublisher"]),
    "client": (
        "Client, for gevent",
        [
            "sbuslib.Client",
            "sbuslib.Subscription",
            "sbuslib.clients.endpoint.Service",
            "sbuslib.clients.endpoint.JobQueue",
            "sbuslib.clients.endpoint.Worker",
            "sbuslib.clients.endpoint.FrameExchange",
            "sbuslib.clients.endpoint.DescriptorExchange",
            "sbuslib.clients.endpoint.FileExchange",
            "sbuslib.clients.endpoint.HubView",
        ],
    ),
    "blocking": ("blocking.Client, for threads", ["sbuslib.blocking.Client"]),
    "aio": ("aio.Client, for asyncio", ["sbuslib.aio.Client"]),
    "values": (
        "Messages, topics, credentials",
        ["sbuslib.Message", "sbuslib.Topic", "sbuslib.Credentials", "sbuslib.matches"],
    ),
    "relay": ("Relay", ["sbuslib.Relay", "sbuslib.monitor.survey.survey", "sbuslib.monitor.survey.SeenHub"]),
    "patterns": (
        "Questions, jobs, frames",
        [
            "sbuslib.Question",
            "sbuslib.Answer",
            "sbuslib.Job",
            "sbuslib.Frame",
            "sbuslib.Descriptor",
            "sbuslib.doors.transfers.ReceivedFile",
            "sbuslib.CaughtUp",
        ],
    ),
    "testing": ("Testing", ["sbuslib.testing"]),
    "journal": (
        "Recorder, Follower, Consumer, replay, read",
        [
            "sbuslib.read",
            "sbuslib.journal.recorder.Recorder",
            "sbuslib.journal.follower.Follower",
            "sbuslib.journal.black_box.BlackBox",
            "sbuslib.journal.consume.consume",
            "sbuslib.journal.consume.Consumer",
            "sbuslib.journal.replay.replay",
            "sbuslib.journal.replay.from_journal",
            "sbuslib.journal.replay.Selection",
        ],
    ),
    "bridge": (
        "Bridges",
        ["sbuslib.bridge.Bridge", "sbuslib.bridge.AioBridge", "sbuslib.bridge.broker.BrokerOptions"],
    ),
    "reports": (
        "Spark and reports",
        [
            "sbuslib.spark.session",
            "sbuslib.spark.read",
            "sbuslib.spark.unseal",
            "sbuslib.reports.sql.in_duckdb",
            "sbuslib.reports.sql.in_spark",
            "sbuslib.reports.traffic.traffic",
            "sbuslib.reports.subscriptions.subscriptions",
            "sbuslib.reports.by_key.by_key",
        ],
    ),
    "tcp": ("Peer and Gateway", ["sbuslib.tcp.peer.Peer", "sbuslib.tcp.gateway.Gateway"]),
    "statistics": ("Statistics", ["sbuslib.statistics"]),
    "errors": ("Errors", ["sbuslib.errors"]),
}
"""The pages of the reference: the file of each, its title, and what its docstrings are taken of."""

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
                    names += [f"commands/{name}" for name in sorted(manpages.pages())]
        lines = ["```{toctree}", ":hidden:", f":caption: {caption}", "", *dict.fromkeys(names), "```"]
        found.append("\n".join(lines))
    return "\n\n".join(found)


def reference_page(title: str, names: list[str]) -> str:
    """A page of the reference in reStructuredText."""
    lines = [title, "=" * len(title), ""]
    for name in names:
        is_module = (ROOT / name.replace(".", "/")).with_suffix(".py").exists()  # not imported: it may need Spark
        kind = "module" if is_module else "class" if name.rpartition(".")[2][0].isupper() else "function"
        lines.append(f".. auto{kind}:: {name}")
        lines += ["   :members:"] if kind != "function" else []
        lines += ["   :inherited-members: Struct, Generic", ""] if kind == "class" else [""]
    return "\n".join(lines)


def assemble(source: Path) -> None:
    """Put the sources of the site together."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in TOP if (ROOT / name).exists())]
    for page in pages:
        target = source / (site_path(page) or "")
        target.parent.mkdir(parents=True, exist_ok=True)
        text = with_links(with_tables(page.read_text("utf-8")), page)
        if page == ROOT / "docs" / "index.md":
            text += "\n" + contents(page)
        target.write_text(text, "utf-8")
        for file in linked_files(page):
            copy = source / "files" / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
    for picture in [*(ROOT / "docs").rglob("*.png"), *(ROOT / "docs").rglob("*.svg")]:
        target = source / (site_path(picture) or "")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, target)
    (source / "commands").mkdir()
    for name, text in manpages.pages().items():
        (source / "commands" / f"{name}.md").write_text(text, "utf-8")
    (source / "reference").mkdir()
    for name, (title, values) in REFERENCE.items():
        (source / "reference" / f"{name}.rst").write_text(reference_page(title, values), "utf-8")
    lines = ["The reference, from docstrings", "=" * 30, "", ".. toctree::", "", *(f"   {name}" for name in REFERENCE)]
    (source / "reference" / "index.rst").write_text("\n".join(lines) + "\n", "utf-8")


def build(folder: Path) -> int:
    """Make the site; the exit status of Sphinx, for which a warning is an error."""
    from sphinx.cmd.build import main

    source = folder / "source"
    shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    assemble(source)
    status: int = main(
        ["-q", "-W", "--keep-going", "-c", str(HERE), "-d", f"{folder}/doctrees", str(source), f"{folder}/html"]
    )
    return status


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python docs/site/make.py FOLDER")
    sys.exit(build(Path(sys.argv[1])))
