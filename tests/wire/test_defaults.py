"""Default addresses."""

from __future__ import annotations

import pytest

from sbuslib.wire.defaults import SYSTEM_ADDRESS, default_addresses

# -- Which address is meant when none is given


@pytest.mark.parametrize(
    ("environ", "addresses"),
    [
        ({}, ["/run/sbus.socket"]),
        ({"XDG_RUNTIME_DIR": "/run/user/1"}, ["/run/user/1/sbus/bus", SYSTEM_ADDRESS]),
        ({"XDG_RUNTIME_DIR": ""}, [SYSTEM_ADDRESS]),
        ({"SBUS_ADDRESS": "/x", "XDG_RUNTIME_DIR": "/run/user/1"}, ["/x"]),
        ({"SBUS_ADDRESS": "", "XDG_RUNTIME_DIR": "/r"}, ["/r/sbus/bus", SYSTEM_ADDRESS]),
    ],
)
def test_the_default_addresses_come_from_the_environment(environ: dict[str, str], addresses: list[str]) -> None:
    assert default_addresses(environ) == addresses
