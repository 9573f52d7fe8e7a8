"""The exception tree."""

from __future__ import annotations

import builtins
import re

import pytest

from sbuslib import errors


def test_all_is_what_the_module_defines() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert set(errors.__all__) == defined


def test_the_docstring_prints_the_tree() -> None:
    assert errors.__doc__ is not None
    path: list[str] = []
    seen = set()
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ((?:[│ ]   )*(?:[├└]── )?)(\w+Error)(?: \((\w+)\))?", line)
        if not found:
            continue
        depth = len(found[1]) // 4
        path[depth:] = [found[2]]
        kind = getattr(errors, found[2])
        parents = {base.__name__ for base in kind.__bases__}
        expected = {path[depth - 1]} if depth else {"Exception"}
        assert parents == expected | ({found[3]} if found[3] else set()), found[2]
        seen.add(found[2])
    assert seen == set(errors.__all__)


@pytest.mark.parametrize("name", errors.__all__)
def test_each_is_one_of_ours_and_says_what_it_means(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, errors.SbusError)
    assert kind.__doc__
    assert not hasattr(builtins, name)


def test_a_packet_error_keeps_its_reason() -> None:
    error = errors.ReservedKeyError("secret pattern of another")
    assert (error.reason, str(error)) == ("secret pattern of another",) * 2


def test_a_timeout_is_the_builtin_one() -> None:
    assert not any(issubclass(getattr(errors, name), TimeoutError) for name in errors.__all__)
