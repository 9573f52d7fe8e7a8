"""Fixtures for the verbs that the gevent and the blocking client share: each test runs with both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from clients.makers import Make

import sbuslib
from sbuslib import blocking
from sbuslib.clients.endpoint import Endpoint


@pytest.fixture(params=[sbuslib.Client, blocking.Client], ids=["gevent", "blocking"])
def kind(request: pytest.FixtureRequest) -> type[Endpoint]:
    found: type[Endpoint] = request.param
    return found


@pytest.fixture
def make(kind: type[Endpoint], address: str) -> Iterator[Make]:
    made: list[Endpoint] = []

    def make(to: str | None = address, **options: Any) -> Endpoint:
        made.append(kind(to, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()
