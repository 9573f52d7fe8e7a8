"""The blocking client: threads, and no gevent."""

from __future__ import annotations

from support import HubThread, python


def test_the_blocking_client_never_imports_gevent(server: HubThread, address: str) -> None:
    code = f"""
import sys
from sbuslib import blocking
with blocking.Client({address!r}, reconnect=True) as client:
    subscription = client.subscribe(b"a")
    client.publish(b"a", b"x")
    client.publish_many([(b"b", b"y")])
    client.sync()
    print(subscription.receive(timeout=10).payload)
print([name for name in sys.modules if name.partition(".")[0] in ("gevent", "greenlet", "zope")])
"""
    assert python("-c", code) == "b'x'\n[]\n"
