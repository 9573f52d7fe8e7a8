"""Access to the queues of a service by user. Logs each refused user once."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..clients.endpoint import Endpoint
from ..clients.recipes.queue import MOST_STRANGERS
from ..kernel.users import name_of_user
from ..limits import check_users
from ..secrets import stranger
from ..wire.text import printable

logger = logging.getLogger("sbuslib.services")


class QueueAccess:
    """Users that may work, and users that may submit jobs: those of this process, root, and more.

    :param client: of the service; its credentials show which senders are of its own user.
    :param trusted: more users who may work, and who may put jobs in.
    :param users: more users who may put jobs in; ``None``: everybody.

    Raises :exc:`~sbuslib.errors.UsageError`.
    """

    def __init__(self, client: Endpoint, separator: bytes, trusted: Iterable[int], users: Iterable[int] | None) -> None:
        self._client = client
        self._separator = separator
        self._trusted = check_users(trusted, "trusted")  # may work, and put jobs in
        # May put jobs in; None: everybody.
        self._users = None if users is None else self._trusted | check_users(users, "users")
        self._no_workers: set[int] = set()  # users whose workers were refused
        self._no_jobs: set[int] = set()  # users whose jobs were refused

    def stranger(self, sender: bytes | None) -> int | None:
        """The user who is charged for a sender's messages, and who may not work; ``None`` for trusted users."""
        return stranger(sender, self._client.credentials, self._separator, self._trusted)

    def why_no_job(self, name: bytes, sender: bytes | None) -> str | None:
        """Reason why a queue takes no jobs of a sender; ``None`` if it does."""
        if self._users is None:
            return None
        user = stranger(sender, self._client.credentials, self._separator, self._users)
        if user is None:
            return None
        text = "queue %s: jobs of user %s are refused: start it with --producer %s if they may put jobs in"
        self._log_once(self._no_jobs, text, name, user)
        return f"the queue takes no jobs of user {user}: start it with --producer {user}"

    def note_worker(self, name: bytes, user: int) -> None:
        """Log that a worker of an untrusted user was refused."""
        text = "queue %s: workers of user %s get no jobs: start it with --trusted %s if they may work"
        self._log_once(self._no_workers, text, name, user)

    def refused_for(self, user: int | None) -> list[int]:
        """The users whose workers were refused, as far as this user may know: an untrusted user sees only itself."""
        return [refused for refused in self._no_workers if user in (None, refused)]

    @staticmethod
    def _log_once(refused: set[int], text: str, name: bytes, user: int) -> None:
        if user not in refused and len(refused) < MOST_STRANGERS:
            refused.add(user)
            logger.warning(text, printable(name), name_of_user(user), name_of_user(user))
