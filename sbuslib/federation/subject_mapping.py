"""Mapping of keys of the bus to names of another place, and back, with filters and echo suppression. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from ..errors import NameFormatError
from ..wire.offers import needs_descriptor_store
from ..wire.packets import Message
from .import_export import DropReason, ImportExportFilter, fits_a_packet
from .membership import Membership
from .name_format import NameFormat

_REMEMBERED_BYTES: Final = 512
"""Longest key or name that is cached. Longer ones are rare, and many of them would take much memory."""


class SubjectMapping:
    """Maps exported keys to names, and imported names to keys. Caches both.

    :param fits: whether the other place can carry a name.
    :param refused: counts messages that do not cross, by reason.
    :param most: entries of each cache.
    :param membership: recognizes messages that another gateway imported.
    """

    def __init__(
        self,
        name_format: NameFormat,
        exported: ImportExportFilter,
        imported: ImportExportFilter,
        fits: Callable[[str], bool],
        refused: Counter[str],
        most: int,
        membership: Membership,
    ) -> None:
        self.exported = exported
        self.imported = imported
        self._name_format = name_format
        self._fits = fits
        self._refused = refused
        self._membership = membership
        self._known_name = lru_cache(most)(self._name_of)  # not drops: an exception is not cached
        self._known_key = lru_cache(most)(self._key_of)

    def is_echo(self, message: Message) -> bool:
        """Whether another gateway imported this message. Counts it if so."""
        if not self._membership.has_brought(message):
            return False
        self._refused[DropReason.BROUGHT] += 1
        return True

    def name_for(self, message: Message) -> str | None:
        """Name under which a message is exported; ``None``, and one more count, if it is dropped."""
        if needs_descriptor_store(message.payload) is not None:
            self._refused[DropReason.HOST_ONLY] += 1
            return None
        key = message.key
        try:
            return self._known_name(key) if len(key) <= _REMEMBERED_BYTES else self._name_of(key)
        except NameFormatError as error:
            self._refused[str(error)] += 1
            return None

    def key_for(self, name: str, payload: bytes) -> bytes | None:
        """Key under which a message is imported; ``None``, and one more count, if it is dropped."""
        if needs_descriptor_store(payload) is not None:
            self._refused[DropReason.HOST_ONLY] += 1
            return None
        try:
            key = self._known_key(name) if len(name) <= _REMEMBERED_BYTES else self._key_of(name)
        except NameFormatError as error:
            self._refused[str(error)] += 1
            return None
        if not fits_a_packet(key, payload):
            self._refused[DropReason.MESSAGE_TOO_LONG] += 1
            return None
        return key

    def _name_of(self, key: bytes) -> str:
        if (reason := self.exported.refusal(key)) is not None:
            raise NameFormatError(reason)
        name = self._name_format.name_of(key)
        if not self._fits(name):
            raise NameFormatError(DropReason.NAME_TOO_LONG)
        return name

    def _key_of(self, name: str) -> bytes:
        key = self._name_format.key_of(name)
        if (reason := self.imported.refusal(key)) is not None:
            raise NameFormatError(reason)
        return key
