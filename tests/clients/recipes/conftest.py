"""Patterns are tested with the clients that block, as the clients' own verbs are."""

from clients.conftest import kind as kind
from clients.conftest import make as make
