"""``authorize=``: what the embedder's own function says of keys and patterns, asked in one place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, TypeAlias

from ..secrets import Credentials
from .callbacks import log, tell_event_loop

__all__ = ["Authorization", "Authorize"]

Authorize: TypeAlias = Callable[[Credentials, Literal["publish", "subscribe"], bytes], bool]
"""``authorize(credentials, verb, key_or_pattern)``: asked for each ``SUB``, and for a client's first ``MSG`` under
a key; its yes is remembered, within :attr:`~sbuslib.limits.Limits.allowed_bytes`."""


class Authorization:
    """The function that decides, if there is one. A stranger's code: not to be called while the area is in use."""

    def __init__(self, function: Authorize | None) -> None:
        self.function = function
        self.failures = 0

    @property
    def is_asked(self) -> bool:
        return self.function is not None

    def allows(self, credentials: Credentials, verb: Literal["publish", "subscribe"], key: bytes) -> bool:
        """What the function says. Whatever it raises counts as a no, and is logged once."""
        if self.function is None:
            return True
        try:
            return bool(self.function(credentials, verb, key))
        except BaseException as error:
            self.failures += 1
            if self.failures == 1:
                log(logging.ERROR, "authorize= failed, which counts as a no", exc_info=True)
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                tell_event_loop(error)
            return False
