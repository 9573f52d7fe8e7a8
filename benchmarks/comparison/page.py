"""Results as one page of HTML that needs nothing beside it: plots, tables, and how it was measured."""

from __future__ import annotations

from html import escape

from sbuslib.bench.results import Results
from sbuslib.bench.scenarios import find
from sbuslib.bench.tables import HEADING, describe, everything, rows, scenarios_of

from . import plots
from .runner import BESIDE, COMPARED
from .tables import title_of

__all__ = ["render"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; max-width: 74rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.4rem; }
p.machine { color: #555; }
figure { margin: 1.4rem 0 2.2rem; max-width: 58rem; } figure svg { width: 100%; height: auto; }
figcaption { color: #555; font-size: .92rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #e2e2e2; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { vertical-align: bottom; white-space: normal; }
tr.ours td { background: #eef4fb; }
"""

_METHOD = """
<p>All figures are of one run on one machine. Every hub, forwarder and broker was started first and stayed; then all
cases took turns, round by round. Shown is the median of the rounds, with the quartiles in parentheses. A ratio was
taken within each round, then its median over the rounds.</p>
<p>The load is a program in C: publishers send as fast as they are let, 64 packets a call; receivers read likewise, and
chose to hold their publisher back rather than to lose messages, unless a case says otherwise. Other brokers get their
own protocol in writes of 64 KiB. CPU time is that of the daemon's processes, from the scheduler's account. Python
clients are two processes that publish in a loop and iterate, as a user would write it.</p>
<p>The forwarder is the limit: a C program that makes the hub's system calls and passes everything on without a look at
it.</p>
"""


def _figure(picture: plots.Picture | None) -> list[str]:
    if picture is None:
        return []
    caption = escape(picture.caption)
    return [f'<figure role="img" aria-label="{caption}"><figcaption>{caption}</figcaption>', picture.svg, "</figure>"]


def _table(heading: list[str], body: list[list[str]], ours: int | None = None) -> list[str]:
    """A table; rows whose cell number ``ours`` names us stand out."""
    lines = ['<div class="wide"><table>', "<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in heading) + "</tr>"]
    for row in body:
        mark = ' class="ours"' if ours is not None and row[ours].startswith("sbuslib") else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    return [*lines, "</table></div>"]


def render(results: Results) -> str:
    """The page. Raises :exc:`~sbuslib.errors.StateError` where matplotlib is missing."""
    there = scenarios_of(results)
    names = {scenario.name for scenario in there}
    body = [
        "<h1>sbuslib: what a message costs</h1>",
        f'<p class="machine">{escape(describe(results))}</p>',
        "<h2>Beside the limit</h2>",
        *_figure(plots.against_the_forwarder(results)),
        "<h2>What else goes on, and what it costs</h2>",
        *_figure(plots.what_it_costs(results)),
    ]
    if any(record.target not in ("hub", "forwarder") for record in results.records):
        body += ["<h2>Beside others</h2>"]
    for scenario in there:
        if scenario.name in COMPARED:
            also = [find(name) for name in BESIDE.get(scenario.name, ()) if name in names]
            body += _figure(plots.beside_others(results, scenario, also))
    body += ["<h2>The hub</h2>", *_table(list(HEADING), rows(results))]
    heading, *all_rows = everything(results, title_of)
    body += ["<h2>Every case</h2>", *_table(heading, all_rows, ours=1)]
    if results.omitted:
        body += ["<h2>Left out</h2>", "<ul>", *(f"<li>{escape(line)}</li>" for line in results.omitted), "</ul>"]
    body += ["<h2>How it was measured</h2>", _METHOD]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>sbuslib: what a message costs</title><style>{_STYLE}</style></head><body>",
            *body,
            "</body></html>\n",
        ]
    )
