"""TLS contexts from files: for both ends of a connection, and for every library that takes one."""

from __future__ import annotations

import ssl
from typing import TypeVar

from ..errors import UsageError

C = TypeVar("C", bound=ssl.SSLContext)


def make_context(kind: type[C], protocol: int, cert: str | None, key: str | None, ca: str | None) -> C:
    """Make a context of TLS 1.2 or later that demands a certificate of the other end.

    :param kind: the class of the context, for example gevent's.
    :param protocol: ``ssl.PROTOCOL_TLS_CLIENT`` or ``ssl.PROTOCOL_TLS_SERVER``.
    :param cert, key: files with our own certificate and its private key (PEM).
    :param ca: file with the certificates of the authority that signs the other's; ``None``: those of the system.

    Raises :exc:`~sbuslib.errors.UsageError` for files that cannot be used. Nobody is asked for the password of a key.
    """
    if key and not cert:
        raise UsageError(f"{key}: a private key needs its certificate")
    context = kind(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED

    # An empty password: else OpenSSL asks at the terminal.
    try:
        if cert:
            context.load_cert_chain(cert, key, password=bytes)
        if ca:
            context.load_verify_locations(ca)
        else:
            context.load_default_certs()
    except (OSError, ValueError) as error:
        files = ", ".join(filter(None, (cert, key, ca)))
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"the TLS files cannot be used, without a password: {files}: {why}") from None
    return context
