"""Events of a hub: it starts, a link ends, messages are lost, a client is disconnected.

From one :class:`HubEvent` come its line in the log, its fields in the systemd journal, the notice to clients that watch
the hub, and the row in a recording. Text that anybody may have chosen (the name of a program, a key, an address) is
escaped and cut by :func:`shown` when the event is made, and checked when one is read.
"""

from __future__ import annotations

import logging
from typing import Annotated, Final, TypeAlias

import msgspec

from ..errors import PacketError
from ..malformed import MALFORMED
from ..reasons import Reason
from ..secrets import RESERVED
from .event_kinds import TEXTS
from .packets import encode_control
from .text import printable

NOTICE_EVENT: Final = b"notice/event"

_ROW: Final = "hub "
"""How the cause of a gap row begins that records an event, and no lost messages."""

_LONGEST: Final = 80
"""Bytes of a name, a key or an address that are shown."""

_SEGMENTS: Final = 2
"""Segments of a key or a pattern that are shown."""

LONGEST_TEXT: Final = 4 * _LONGEST + 3
"""Characters of each text of an event: of as many bytes, each escaped, and three full stops."""

MOST_USERS: Final = 65_536
"""Users that are counted for one event."""

_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class HubEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened to the hub that listens at ``hub``, or to one of its clients."""

    kind: _Text
    time: Annotated[float, msgspec.Meta(ge=0, lt=2**33)]
    """Seconds since the epoch; of two events of a hub the later one has the greater."""
    hub: _Text = ""
    uid: Annotated[int, msgspec.Meta(ge=-1, le=2**32)] = -1
    """The client's user; -1: it is about no client, or about several users together."""
    user: _Text = ""
    """Its name where the hub runs."""
    pid: Annotated[int, msgspec.Meta(ge=0, le=2**32)] = 0
    """The client's process; 0: unknown."""
    program: _Text = ""
    """The kernel's name of the program of that process; the program may have chosen it."""
    cause: _Text = ""
    key: _Text = ""
    """The first segments of a key or patterns, or where the hub at the other end of a link listens."""
    count: _Count = 0
    seconds: Annotated[float, msgspec.Meta(ge=0, lt=2**33)] = 0  # no 0.0: only the default object itself is left out
    users: Annotated[int, msgspec.Meta(ge=0, le=MOST_USERS)] = 0
    """Of how many users the ``count`` is; at least so many, if it is 65,536. 0: not known."""

    @property
    def level(self) -> int:
        """How the log ranks it."""
        return TEXTS.get(self.kind, (logging.INFO, ""))[0]

    @property
    def text(self) -> str:
        """The line of the log."""
        return f"sbus hub at {self.hub}: {self.summary}"

    @property
    def summary(self) -> str:
        """The line without the hub."""
        users = "one user" if self.users == 1 else f"{self.users:,} users" if self.users else "some users"
        if self.users == MOST_USERS:
            users = f"at least {users}"
        text = TEXTS.get(self.kind, (0, self.kind))[1].format(count=self.count, seconds=self.seconds, users=users)
        cause = f": {self.cause}" if self.cause else ""
        return f"{text}{cause}{f'; {self.whose}' if self.whose else ''}"

    @property
    def whose(self) -> str:
        """The client: its user, its process, and the key or address."""
        program = f" ({self.program})" if self.program else ""
        parts = [
            *([f"user {self.user} ({self.uid})"] if self.uid >= 0 else []),
            *([f"process {self.pid}{program}"] if self.pid else []),
            *([f"at {self.key}"] if self.key else []),
        ]
        return ", ".join(parts)

    @property
    def fields(self) -> dict[str, str]:
        """Return the known fields, by their names in the systemd journal."""
        known = msgspec.to_builtins(self)
        names = {"kind": "EVENT", "pid": "PROCESS"}
        return {f"SBUS_{names.get(name, name.upper())}": str(value) for name, value in known.items() if name != "time"}

    def encode(self) -> bytes:
        """The notice, as a packet to clients that watch the hub."""
        return encode_control(NOTICE_EVENT, msgspec.json.encode(self))

    @classmethod
    def decode(cls, payload: bytes | str) -> HubEvent:
        """Read a notice. Raises :exc:`~sbuslib.errors.PacketError`, also for text that is not printable."""
        try:
            event = msgspec.json.decode(payload, type=cls)
        except MALFORMED:
            raise PacketError(Reason.MALFORMED_NOTICE) from None
        if not all(value.isprintable() for value in msgspec.to_builtins(event).values() if isinstance(value, str)):
            raise PacketError(Reason.MALFORMED_NOTICE)
        return event

    @property
    def row(self) -> str:
        """The event as the cause of a gap row, of no lost messages, which records it in a journal."""
        return _ROW + msgspec.json.encode(self).decode()


def event_of(cause: str | None, lost: int | None) -> HubEvent | None:
    """Read the event from a row of a journal; ``None``: the row is none."""
    if lost != 0 or cause is None or not cause.startswith(_ROW):
        return None
    try:
        return HubEvent.decode(cause.removeprefix(_ROW))
    except PacketError:
        return None


def shown(text: str | bytes) -> str:
    """Text or bytes that anybody may have chosen, escaped and cut."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return printable(data[:_LONGEST]) + "..." * (len(data) > _LONGEST)


def first_segments(name: bytes, separator: bytes) -> str:
    """The first segments of a key or a pattern, to be shown; a secret one is not shown."""
    if name.startswith(RESERVED) or separator + RESERVED + separator in name:
        return "a secret key"
    parts = name.split(separator, _SEGMENTS)
    return shown(separator.join([*parts[:_SEGMENTS], b"..."][: len(parts)])) or "everything"
