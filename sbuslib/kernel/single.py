"""Publishes a single message without a client. For a program that lives for a moment, such as ``sbus pub``.

The modules of a client, and msgspec, take longer to load than Python itself takes to start. So this imports next to
nothing, and leaves everything that is out of the ordinary to a client, errors included.
"""

from __future__ import annotations

from _socket import AF_UNIX, MSG_NOSIGNAL, SOCK_SEQPACKET, socket

from ..errors import DisconnectedError

__all__ = ["publish_once"]

_SHORT = 65_536
"""Bytes of a packet for which the send buffer of any socket has room."""

_ANSWER = b"CMSG !/cred/whoami\0"
_KICKED = b"CMSG notice/kicked\0"


def publish_once(address: str, key: bytes, payload: bytes, timeout: float = 10.0) -> bool:
    """Publish one message at the hub that listens at a path, and return once the hub has it.

    ``False``: nothing was sent. A client can publish it, or say why that cannot be. Raises
    :exc:`~sbuslib.errors.DisconnectedError` and :exc:`TimeoutError`.
    """
    packet = b"MSG %b\0%b" % (key, payload)
    if len(packet) > _SHORT or b"\0" in key or b"!" in key or address.startswith("/dev/"):
        return False
    sock = socket(AF_UNIX, SOCK_SEQPACKET)
    try:
        sock.settimeout(timeout)
        try:
            sock.connect(address)
        except OSError:
            return False
        reason = b""
        try:
            for one in (b"CMSG notices/on\0", packet, _ANSWER):
                sock.send(one, MSG_NOSIGNAL)
        except ConnectionError:
            pass  # what the hub has sent says why
        except TimeoutError:
            raise TimeoutError(f"{address}: the hub takes no more for now") from None
        while True:
            try:
                answer: bytes = sock.recv(_SHORT)
            except ConnectionError:
                continue  # the kernel tells it once, before the packets that the hub has sent
            except TimeoutError:
                raise TimeoutError(f"{address}: the hub did not answer in time") from None
            if answer.startswith(_ANSWER):
                return True
            if answer.startswith(_KICKED):
                reason = answer[len(_KICKED) :]
            if not answer:
                why = f" ({reason.decode(errors='replace')})" if reason else ""
                raise DisconnectedError(f"{address}: the hub closed the connection{why}")
    finally:
        sock.close()
