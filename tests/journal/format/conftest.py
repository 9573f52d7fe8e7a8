"""Fixtures: a folder for a journal."""

from __future__ import annotations

from journal.conftest import journal as journal
