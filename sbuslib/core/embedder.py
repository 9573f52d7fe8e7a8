"""The embedding process as a sender: what ``hub.publish`` publishes as."""

from __future__ import annotations

import os

from ..secrets import Credentials
from ..wire import control
from .context import Context
from .protocols import Holdable, Receiver

__all__ = ["Embedder"]


class Embedder:
    """The process that serves the hub. Implements :class:`~.protocols.Sender`."""

    def __init__(self, context: Context) -> None:
        self._namespace = context.router.namespace
        self.credentials = Credentials(gid=os.getgid(), uid=os.getuid(), pid=os.getpid())

    @property
    def key(self) -> bytes:
        return self._namespace.credential_key(self.credentials)

    @property
    def wrapper(self) -> bytes:
        return control.wrapper_from(self.key)

    def holdable_by(self, receiver: Receiver) -> Holdable | None:
        return None  # publish() never blocks
