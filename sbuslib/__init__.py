"""A message bus for the processes of one Linux machine.

::

    from sbuslib.blocking import Client         # threads; gevent: sbuslib.Client; asyncio: sbuslib.aio.Client

    with Client("/tmp/bus") as client:          # where a hub listens: sbus hub -a /tmp/bus, or Hub("/tmp/bus")
        with client.subscribe("room/*/temp") as rooms:
            client.publish("room/1/temp", b"21.5")
            print(rooms.receive(timeout=5).payload)

``Hub`` serves a bus in this process, ``Relay`` joins it to the parent, ``Topic`` gives payloads a type, and the
errors are in ``sbuslib.errors``. ``docs/index.md`` lists what there is to read.

Names are loaded when they are first used (:pep:`562`), so that ``sbuslib.blocking`` does not pull in
gevent and a program that only matches patterns does not pull in sockets.
"""

from __future__ import annotations

from ._lazy import load_lazily

TYPE_CHECKING = False  # the typing module takes longer to load than all that this needs
if TYPE_CHECKING:
    from . import aio as aio
    from . import blocking as blocking
    from .client import Client as Client
    from .clients.fd_subscriptions import Descriptor as Descriptor
    from .clients.fds.memory import Frame as Frame
    from .clients.recipes.last import CaughtUp as CaughtUp
    from .clients.recipes.queue import Job as Job
    from .clients.recipes.request import Reply as Reply
    from .clients.recipes.request import Request as Request
    from .clients.recipes.subscription import Subscription as Subscription
    from .connecting import Connector as Connector
    from .connecting import connect as connect
    from .hub import Hub as Hub
    from .limits import Limits as Limits
    from .matcher import matches as matches
    from .reading import read as read
    from .relay import Relay as Relay
    from .secrets import Credentials as Credentials
    from .topic import Topic as Topic
    from .wire.packets import Message as Message

__version__ = "0.1.0"

_HOMES = {
    "Reply": "clients.recipes.request",
    "CaughtUp": "clients.recipes.last",
    "Client": "client",
    "Connector": "connecting",
    "Credentials": "secrets",
    "Descriptor": "clients.fd_subscriptions",
    "Frame": "clients.fds.memory",
    "Hub": "hub",
    "Job": "clients.recipes.queue",
    "Limits": "limits",
    "Message": "wire.packets",
    "Request": "clients.recipes.request",
    "Relay": "relay",
    "Subscription": "clients.recipes.subscription",
    "Topic": "topic",
    "connect": "connecting",
    "matches": "matcher",
    "read": "reading",
}
_MODULES = ("aio", "blocking", "errors")

__all__ = [*_HOMES, *_MODULES, "__version__"]

__getattr__, __dir__ = load_lazily(__name__, _HOMES, _MODULES)
