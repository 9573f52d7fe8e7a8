"""Errors of msgspec's decoders, by which every reader of foreign bytes recognizes what it cannot read."""

from __future__ import annotations

from typing import Final

import msgspec

MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""All that a decoder raises for bytes of whatever kind. msgspec's own errors are a :exc:`ValueError` only from its
version 0.21 on; text that is no UTF-8 raises Python's own error in every version, and so does deep nesting."""
