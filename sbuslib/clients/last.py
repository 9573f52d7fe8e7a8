"""The seam between the last values and what comes, in one client."""

from __future__ import annotations

from threading import Lock

from ..matcher import matches
from ..patterns.last import CaughtUp, Seam
from ..wire.packets import Message
from .session import Session

__all__ = ["ClientSeam"]


class ClientSeam(Seam):
    """Hands over to the inbox of a session, while another thread may be receiving."""

    def __init__(self, session: Session, *patterns: bytes) -> None:
        super().__init__(*patterns)
        self._session = session
        self._lock = Lock()  # nobody waits while holding it
        self._also_wanted: list[bytes] | None = None  # once it is handed over: what the application held besides

    def put(self, message: Message) -> None:
        with self._lock:
            if self._also_wanted is None:
                super().put(message)
            else:
                self._pass_on(message)

    def _pass_on(self, message: Message) -> None:
        """Put a message into the inbox, unless it is there already."""
        separator = self._session.separator
        if not any(matches(pattern, message.key, separator) for pattern in self._also_wanted or ()):
            self._session.inbox.append(message)

    def hand_over(self, kept: dict[bytes, bytes]) -> None:
        session = self._session
        assert session.mailboxes is not None
        with self._lock:
            self._also_wanted = session.mailboxes.wanted()
            came = {message.key for message in self.messages}
            session.inbox.extend(Message(key, payload) for key, payload in kept.items() if key not in came)
            while (message := self.take()) is not None:
                self._pass_on(message)
            session.inbox.extend(CaughtUp(pattern, b"") for pattern in self.patterns)
        # What another thread is about to put here goes on into the inbox.
        session.divert_no_more(self)
