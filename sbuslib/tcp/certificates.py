"""TLS with certificates at both ends."""

from __future__ import annotations

import ssl

import msgspec

from ..kernel.tls import make_context


class TLS(msgspec.Struct, frozen=True):
    """A certificate of one's own, and the authority whose certificates one trusts, for both ends of TLS.

    Each end of a connection has to show a certificate of that authority. That of the end that listens must
    moreover name the host.

    :param cert: file with the certificate, and those between it and the authority (PEM).
    :param key: file with its private key (PEM).
    :param ca: file with the certificates of the authority (PEM).
    :param hostname: the name that the certificates of others are checked for, instead of the host connected to.
    """

    cert: str
    key: str
    ca: str
    hostname: str | None = None

    def contexts(self, kind: type[ssl.SSLContext]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """The context for accepting and the one for connecting, of the given class, such as gevent's.

        Raises :exc:`~sbuslib.errors.UsageError` when a file cannot be used.
        """
        files = self.cert, self.key, self.ca
        accepting, connecting = (
            make_context(kind, protocol, *files) for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        )
        return accepting, connecting
