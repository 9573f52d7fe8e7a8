"""The man pages as Markdown: what :mod:`sbuslib.cli.manual` makes of ``--help``, for the site.

Those pages use few requests of roff, each of which is one line here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from sbuslib.cli import manual


def pages() -> dict[str, str]:
    """Every man page in Markdown, by the name of its command or group."""
    found = manual.pages()
    names = [PurePath(name).stem for name in found]
    return {PurePath(name).stem: _markdown(text, names) for name, text in found.items()}


def _plain(text: str) -> str:
    """Text without the escapes of roff."""
    return text.removeprefix("\\&").replace("\\-", "-").replace("\\e", "\\")


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#$|~])", r"\\\1", text)


def _markdown(roff: str, names: list[str]) -> str:
    see, _, others = roff.partition(".SH SEE ALSO\n")
    text = "\n".join(_lines(iter(see.splitlines())))
    links = [f"[{name}(1)]({name}.md)" for name in names if f"\\fB{name}\\fR".replace("-", "\\-") in others]
    return f"{text}\n\n## See also\n\n{', '.join(links)}\n"


def _lines(roff: Iterator[str]) -> Iterator[str]:
    for line in roff:
        request, _, words = line.partition(" ")
        match request:
            case ".TH":
                yield f"# {words.split()[0].lower()}(1)"
            case ".SH":
                yield f"\n## {_heading(words)}\n"
            case ".SS":
                yield f"\n### {_heading(words)}\n"
            case ".PP":
                yield ""
            case ".nf":
                yield "\n```text"
                for raw in roff:
                    if raw == ".fi":
                        break
                    yield _plain(raw).removeprefix("  ")
                yield "```"
            case _:
                yield _escaped(_plain(line))


def _heading(words: str) -> str:
    text = _plain(words)
    return text.lower() if text.startswith("SBUS") else _escaped(text.capitalize())
