"""TLS with certificates at both ends."""

from __future__ import annotations

import ssl

import msgspec

from ..kernel.tls import make_context


class TLS(msgspec.Struct, frozen=True):
    """Own certificate, and the authority whose certificates are trusted, for both ends of TLS.

    Each end of a connection has to show a certificate of that authority. The certificate of the end that listens must
    also name the host.

    :param cert: file with the certificate and the intermediate ones (PEM).
    :param key: file with its private key (PEM).
    :param ca: file with the certificates of the authority (PEM).
    :param hostname: the name that the certificates of others are checked for, instead of the host connected to.
    """

    cert: str
    key: str
    ca: str
    hostname: str | None = None

    def contexts(self, kind: type[ssl.SSLContext]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Make the contexts for accepting and for connecting, of the given class, for example gevent's.

        Raises :exc:`~sbuslib.errors.UsageError` when a file cannot be used.
        """
        files = self.cert, self.key, self.ca
        accepting, connecting = (
            make_context(kind, protocol, *files) for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        )
        return accepting, connecting
