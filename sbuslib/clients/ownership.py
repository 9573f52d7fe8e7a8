"""Who may use a client: the process that made it, and in that process the caller that its kind allows.

A fork copies a client. If the child used the copy, parent and child would each lose what the other one reads. So in the
child every verb raises :exc:`~sbuslib.errors.StateError`.
"""

from __future__ import annotations

import os

from ..errors import StateError

__all__ = ["Ownership"]


class Ownership:
    """The owner of one client."""

    def __init__(self, owner: str, caller: object = None) -> None:
        """``owner`` is how an error names the caller that may use the client; ``caller`` is ``None`` for any."""
        self.caller = caller
        self.is_copy = False
        """Whether this is the child of a fork, and the client belongs to the parent."""
        self._owner = owner
        self._process = os.getpid()

    def check(self, address: str, caller: object) -> None:
        """Raise :exc:`~sbuslib.errors.StateError` unless ``caller`` may use the client of this address."""
        if self.is_copy:
            owner = f"process {self._process}, of which this is a fork"
        elif self.caller is not None and caller is not self.caller:
            owner = self._owner
        else:
            return
        raise StateError(f"{address}: this client belongs to {owner}: make another one here")
