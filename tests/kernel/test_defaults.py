"""Default places: which address, and which folders, are meant when none is given."""

from __future__ import annotations

import os
import pwd
import tempfile
from argparse import Namespace
from collections.abc import Callable

import pytest

from sbuslib import Client, aio, blocking
from sbuslib.cli.hub import own_address
from sbuslib.cli.pub import publish_plainly
from sbuslib.errors import UsageError
from sbuslib.kernel import defaults
from sbuslib.kernel.defaults import (
    SYSTEM_ADDRESS,
    config_folder,
    default_addresses,
    home_folder,
    state_folder,
    temporary_folder,
)

ANOTHER = 65_533
"""A user whom this process may become for the time of a test; or only says that it has, where it is not root."""


@pytest.fixture
def become_another(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make the effective user another one, as ``su`` does, which leaves the environment as it is."""

    def become() -> None:
        monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
        monkeypatch.setattr(tempfile, "tempdir", None)

    return become


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


def test_the_runtime_folder_of_another_user_does_not_count(folder: str, become_another: Callable[[], None]) -> None:
    environ, missing = {"XDG_RUNTIME_DIR": folder}, {"XDG_RUNTIME_DIR": f"{folder}/missing"}
    assert len(default_addresses(environ)) == len(default_addresses(missing)) == 2
    become_another()
    assert default_addresses(environ) == [SYSTEM_ADDRESS]
    if os.getuid():  # a folder in one of root's might become ours
        assert default_addresses(missing) == [SYSTEM_ADDRESS]


def test_a_hub_makes_no_folder_at_another_user(
    folder: str, become_another: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SBUS_ADDRESS", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    become_another()
    assert own_address(Namespace(address=None)) == SYSTEM_ADDRESS
    assert os.listdir(folder) == []


# -- SBUS_ADDRESS under sudo


def test_an_address_of_the_user_who_called_sudo_is_no_default(
    folder: str, address: str, monkeypatch: pytest.MonkeyPatch, become_another: Callable[[], None]
) -> None:
    own = os.getuid()
    if not own:  # for whom no user is a stranger
        own = ANOTHER + 1
        os.chown(folder, own, own)
    monkeypatch.setenv("SBUS_ADDRESS", address)
    monkeypatch.setenv("SUDO_UID", str(own))
    monkeypatch.setattr(os, "geteuid", lambda: own)
    assert default_addresses() == [address], "sudo -u of the same user"

    become_another()
    for connect in (Client, blocking.Client, aio.Client):
        with pytest.raises(UsageError, match=f"belongs to user {own}, who called sudo"):
            connect()
    with pytest.raises(UsageError, match="-a"):
        own_address(Namespace(address=None))
    assert own_address(Namespace(address=address)) == address
    assert not publish_plainly(["key", "payload"])
    monkeypatch.setenv("SBUS_ADDRESS", "/run/sbus.socket")
    assert default_addresses() == ["/run/sbus.socket"], "of the machine"


# -- Folders of files


@pytest.mark.parametrize(
    ("find", "variable"),
    [
        (state_folder, "STATE_DIRECTORY"),
        (state_folder, "XDG_STATE_HOME"),
        (state_folder, "HOME"),
        (config_folder, "XDG_CONFIG_HOME"),
        (config_folder, "HOME"),
        (home_folder, "HOME"),
        (temporary_folder, "TMPDIR"),
    ],
)
def test_a_folder_of_another_user_does_not_count(
    find: Callable[[], str],
    variable: str,
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
    become_another: Callable[[], None],
) -> None:
    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv(variable, folder)
    assert find().startswith(folder)

    if not os.getuid():
        os.chown(folder, ANOTHER + 1, ANOTHER + 1)  # root's own would count
    become_another()
    assert not find().startswith(folder)


def test_the_home_of_a_user_whose_environment_is_anothers_is_the_one_of_the_user_database(
    folder: str, monkeypatch: pytest.MonkeyPatch, become_another: Callable[[], None]
) -> None:
    monkeypatch.setenv("HOME", folder)
    if not os.getuid():
        os.chown(folder, ANOTHER + 1, ANOTHER + 1)
    become_another()
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("a", "x", uid, uid, "", "/home/a", "")))
    assert home_folder() == "/home/a"
    assert defaults.state_folder() == "/home/a/.local/state/sbus"
