"""Fixtures: a folder for a journal, and journals that are made straight from the format."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def journal(folder: str) -> str:
    """Where a journal may be; nothing is there yet."""
    return os.path.join(folder, "journal")
