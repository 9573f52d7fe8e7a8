"""Tables that the site makes from the code, where a page has a line such as ``<!-- table: sbuslib.limits.Limits -->``.

It names a class whose attributes each have a docstring, or is ``options``, those of all commands, ``modules``, or
``errors``.
"""

from __future__ import annotations

import ast
import inspect
import pydoc
import re
import textwrap
from argparse import SUPPRESS
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from pathlib import Path

from sbuslib import errors
from sbuslib.cli import main

PACKAGE = Path(main.__file__).parent.parent
_MARKER = re.compile(r"^<!-- table: ([\w.]+) -->$", re.MULTILINE)


def with_tables(text: str) -> str:
    """The text of a page with its tables."""
    made = {"options": options, "modules": modules, "errors": tree_of_errors}
    return _MARKER.sub(lambda marker: made[marker[1]]() if marker[1] in made else fields(marker[1]), text)


def fields(name: str) -> str:
    """The table of a class: its attributes, their defaults where they are limits, and their docstrings."""
    kind = pydoc.locate(name)
    assert isinstance(kind, type), name
    if name.endswith("Limits"):
        rows = ["| limit, and its default | why |", "| --- | --- |"]  # two columns fit a phone
        rows += [f"| `{limit}` {number(kind, limit)} | {why} |" for limit, why in described(kind)]
    else:
        rows = ["| | what it is |", "| --- | --- |"]
        rows += [f"| `{shown(kind, field)}` | {what} |" for field, what in described(kind)]
    return "\n".join(rows)


def described(kind: type) -> Iterator[tuple[str, str]]:
    """The attributes of a class with their docstrings, of which each must have one."""
    (body,) = (node.body for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body if hasattr(node, "body"))
    for statement, text in pairwise([*body, ast.Pass()]):
        if isinstance(statement, ast.AnnAssign | ast.Assign):
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            name = ast.unparse(target)
            assert isinstance(text, ast.Expr), f"{kind.__name__}.{name} has no docstring"
            yield name, " ".join(ast.literal_eval(text.value).replace("``", "`").split())


def number(kind: type, name: str) -> str:
    """The default of a limit."""
    default = getattr(kind(), name)
    return f"{default:,}" if isinstance(default, int) else str(default)


def shown(kind: type, name: str) -> str:
    """A field by its name, a member of an enumeration by its value."""
    return str(kind[name].value) if issubclass(kind, Enum) else name


def options() -> str:
    """The table of options: the names of each, what it means, and which commands have it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for command, parser in main.every_parser():
        for action in parser._actions:
            if action.option_strings and action.help != SUPPRESS:
                help = (action.help or "") % {**vars(action), "prog": parser.prog}
                found.setdefault(", ".join(f"`{name}`" for name in action.option_strings), (help, []))[1].append(
                    command
                )
    rows = [f"| {names} | {help} | {', '.join(commands)} |" for names, (help, commands) in sorted(found.items())]
    return "\n".join(["| option | what it means | commands |", "| --- | --- | --- |", *rows])


def modules() -> str:
    """The table of modules, each with the first line of its docstring."""
    rows = ["| module | what is in it |", "| --- | --- |"]
    for path in sorted(PACKAGE.rglob("*.py"), key=lambda path: (path.parent, path.name)):
        line = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0].replace("``", "`")
        line = re.sub(r":\w+:`[~.]?([\w.]+)`", r"`\1`", line)
        rows.append(f"| `{path.relative_to(PACKAGE)}` | {line} |")
    return "\n".join(rows)


def tree_of_errors() -> str:
    """The tree that the docstring of the errors draws."""
    drawn = [line[4:] for line in (errors.__doc__ or "").splitlines() if re.match(r"    (SbusError|[├│└])", line)]
    return "\n".join(["```text", *drawn, "```"])
