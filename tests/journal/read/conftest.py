"""Fixtures: a place for a journal."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The path for the journal of a test."""
    return tmp_path / "journal"
