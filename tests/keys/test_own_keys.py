"""Nobody elsewhere speaks under a key of this package: each of them is in one list, and no import lets it in."""

from __future__ import annotations

import pytest

from sbuslib.clients.recipes.last import question_key
from sbuslib.clients.recipes.queue import queue_key, services_key
from sbuslib.errors import UsageError
from sbuslib.federation.import_export import DropReason, ImportExportFilter
from sbuslib.integrations.kombu_names import exchange_key
from sbuslib.integrations.kombu_names import queue_key as kombu_queue_key
from sbuslib.keys.own_keys import ASGI, CONTROL, JOURNAL, LOST, SOCKETIO
from sbuslib.reports.watch import RateRule


def said_keys(separator: bytes) -> list[bytes]:
    """A key of each kind under which something of this package publishes."""
    rules = [RateRule("above", b"room/", 1), RateRule("below", b"x", 1), RateRule("lost", b"", 0)]
    return [
        CONTROL,
        LOST,
        *(question_key(pattern, separator) for pattern in (b"", b"room", separator)),
        *(queue_key(b"jobs", separator, word) for word in (b"work", b"submit")),
        services_key(separator),
        separator.join((JOURNAL, b"stopped")),
        *(rule.key(separator, cleared=cleared) for rule in rules for cleared in (False, True)),
        kombu_queue_key("celery", separator),
        exchange_key("celeryev", "worker.heartbeat", separator),
        f"{SOCKETIO}/chat".encode(),
        f"{ASGI}/group/chat".encode(),
    ]


@pytest.mark.promise("how-to/cluster.md", "Nobody elsewhere speaks as a program of this package")
@pytest.mark.parametrize("separator", [b"/", b"."])
@pytest.mark.parametrize("certain", [True, False])
def test_no_key_of_this_package_is_imported_and_all_but_the_gateways_are_exported(
    separator: bytes, certain: bool
) -> None:
    imported, exported = (
        ImportExportFilter([b""], separator=separator, certain=certain, strict=True, imports=imports)
        for imports in (True, False)
    )
    for key in said_keys(separator):
        assert imported.refusal(key) == (DropReason.OF_GATEWAYS if key == CONTROL else DropReason.OF_PROGRAMS), key
        assert exported.refusal(key) == (DropReason.OF_GATEWAYS if key == CONTROL else None), key
    for key in (b"room/1/temp", b"queue/1/length", b"journal/1", b"alert", b"sbus", b"kombu", b"alarm/x"):
        assert imported.refusal(key) is None, key


@pytest.mark.parametrize("separator", [b"/", b"."])
def test_an_import_that_could_only_let_such_keys_in_is_refused(separator: bytes) -> None:
    for key in (*said_keys(separator), separator.join((b"alerts", b"above", b"")), b"sbus/"):
        with pytest.raises(UsageError, match="never imported"):
            ImportExportFilter([key], separator=separator, certain=True, strict=True, imports=True)
    for pattern in (separator.join((b"queue", b"")), b"*", b""):
        ImportExportFilter([pattern], separator=separator, certain=True, strict=True, imports=True)
