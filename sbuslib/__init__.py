"""A message bus for gevent applications and the Linux hosts they run on.

Names are loaded when they are first used (:pep:`562`), so that ``sbuslib.blocking`` does not pull in
gevent and a program that only matches patterns does not pull in sockets.
"""

from __future__ import annotations

from .lazy import load_lazily

TYPE_CHECKING = False  # the typing module takes longer to load than all that this needs
if TYPE_CHECKING:
    from . import aio as aio
    from . import blocking as blocking
    from .client import Client as Client
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
    "Client": "client",
    "Credentials": "secrets",
    "Hub": "hub",
    "Limits": "limits",
    "Message": "wire.packets",
    "Relay": "relay",
    "Topic": "topic",
    "matches": "matcher",
    "read": "reading",
}
_MODULES = ("aio", "blocking", "errors")

__all__ = [*_HOMES, *_MODULES, "__version__"]

__getattr__, __dir__ = load_lazily(__name__, _HOMES, _MODULES)
