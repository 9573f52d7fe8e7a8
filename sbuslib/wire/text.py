"""Text for a terminal of untrusted bytes, and of errors."""

from __future__ import annotations

_SHORT = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def printable(data: bytes) -> str:
    r"""Convert ``data`` to text without control characters for a terminal, from which ``data`` can be read back.

    UTF-8 is shown as it is; backslash, control characters and other unprintable ones become
    ``\\``, ``\t``, ``\n``, ``\r`` or ``\xNN`` for each byte.
    """
    text = data.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(escape(character) for character in text)


def escape(character: str) -> str:
    """Escape one character as :func:`printable` does."""
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def plainly(error: BaseException) -> str:
    """Convert an error to words: an :exc:`OSError` without its number, and without quotes around a file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error)
