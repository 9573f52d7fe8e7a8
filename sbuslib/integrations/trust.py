"""Trusted users: those whose messages the Django Channels, Celery and Socket.IO backends accept."""

from __future__ import annotations

import logging

from ..clients.recipes.queue import MOST_STRANGERS
from ..kernel.users import name_of_user
from ..secrets import stranger

logger = logging.getLogger("sbuslib.integrations")


class TrustedUsers:
    """The users whose messages are accepted: the own one, root, and some more. Others are logged, each once.

    The kernel proves the user of a message. A hub without the extension for senders names nobody: all are accepted.

    :param what: the messages, for the log.
    :param separator: of keys on this hub.
    """

    def __init__(self, what: str, users: frozenset[int], separator: bytes) -> None:
        self._what = what
        self._users = users
        self._separator = separator
        self._refused: set[int] = set()  # users, as far as they were logged

    def why_refused(self, sender: bytes | None, own: bytes) -> str | None:
        """Return the reason for which the process ``own`` takes no messages of a sender; *None* if it takes them."""
        user = stranger(sender, own, self._separator, self._users)
        if user is None:
            return None
        why = f"{self._what} of user {name_of_user(user)} are refused: name the user in users="
        if user not in self._refused and len(self._refused) < MOST_STRANGERS:
            self._refused.add(user)
            logger.warning("%s", why)
        return why
