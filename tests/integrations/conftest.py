"""What the tests of backends share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support import HubThread


@pytest.fixture
def hub(folder: str) -> Iterator[HubThread]:
    """A hub for everybody."""
    os.chmod(folder, 0o755)
    with HubThread(f"{folder}/bus", mode=0o777) as hub:
        yield hub
