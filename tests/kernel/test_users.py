"""Users by name or id."""

from __future__ import annotations

import pytest

from sbuslib.errors import UsageError
from sbuslib.kernel.users import resolve_user


def test_a_user_is_found_by_name_and_by_id() -> None:
    assert resolve_user("root") == resolve_user(0) == resolve_user("0") == 0
    assert resolve_user(12345) == resolve_user("12345") == 12345  # need not exist


@pytest.mark.parametrize(
    "user",
    ["no such user", "", " ", "-1", "²", "ro\0ot", -1, 2**32 - 1, 2**32, True, False, None, 1.5, b"root", [0]],
)
def test_an_unknown_user_is_refused(user: object) -> None:
    with pytest.raises(UsageError):
        resolve_user(user)  # type: ignore[arg-type]
