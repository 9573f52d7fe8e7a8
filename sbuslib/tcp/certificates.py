"""TLS with certificates at both ends."""

from __future__ import annotations

import os
import ssl

from ..errors import UsageError
from ..kernel.tls import make_context

__all__ = ["TLS"]


class TLS:
    """A certificate of one's own, and the authority whose certificates one trusts, for both ends of TLS.

    Each end of a connection has to show a certificate of that authority. That of the end that listens must
    moreover name the host.

    :param cert: file with the certificate, and those between it and the authority (PEM).
    :param key: file with its private key (PEM).
    :param ca: file with the certificates of the authority (PEM).
    :param hostname: the name that the certificates of others are checked for, instead of the host connected to.

    Raises :exc:`~sbuslib.errors.UsageError` when a file cannot be used.
    """

    def __init__(
        self,
        cert: str | os.PathLike[str],
        key: str | os.PathLike[str],
        ca: str | os.PathLike[str],
        *,
        hostname: str | None = None,
    ) -> None:
        for what, path in (("certificate", cert), ("key", key), ("authority", ca)):
            if not os.access(path, os.R_OK):
                raise UsageError(f"{os.fspath(path)}: the TLS {what} cannot be read")
        self.hostname = hostname
        self.files = os.fspath(cert), os.fspath(key), os.fspath(ca)  # certificate, key and authority

    def contexts(self, kind: type[ssl.SSLContext]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """The context for accepting and the one for connecting, of the given class, such as gevent's."""
        accepting, connecting = (
            make_context(kind, protocol, *self.files) for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        )
        return accepting, connecting
