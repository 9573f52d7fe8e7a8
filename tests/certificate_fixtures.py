"""Certificates for tests of TLS. A module that wants them says ``pytest_plugins = ["certificate_fixtures"]``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def lock() -> Callable[[str], str]:
    """Write a private key once more, with a password; says where."""
    from cryptography.hazmat.primitives import serialization

    def write(path: str) -> str:
        with open(path, "rb") as plain, open(f"{path}-locked", "wb") as locked:
            key = serialization.load_pem_private_key(plain.read(), None)
            password = serialization.BestAvailableEncryption(b"word")
            locked.write(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, password))
        return f"{path}-locked"

    return write


@pytest.fixture
def certificates(folder: str) -> Callable[..., dict[str, str]]:
    """Make an authority and certificates of it, in files; each call another authority."""
    pytest.importorskip("cryptography")
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def write(name: str, data: bytes) -> str:
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def make(label: str = "one") -> dict[str, str]:
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        key, authority_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        roles = f"authority {label}", f"peer {label}"
        issuer, subject = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, role)]) for role in roles)

        def certificate(name: x509.Name, key: Any, extension: x509.ExtensionType, critical: bool) -> Any:
            builder = x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number())
            builder = builder.not_valid_before(now - day).not_valid_after(now + day)
            return builder.add_extension(extension, critical).sign(authority_key, hashes.SHA256())

        authority = certificate(issuer, authority_key, x509.BasicConstraints(ca=True, path_length=None), True)
        loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        own = certificate(subject, key, loopback, False)
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return {
            "cert": write(f"{label}.pem", own.public_bytes(pem)),
            "key": write(f"{label}.key", private),
            "ca": write(f"{label}-ca.pem", authority.public_bytes(pem)),
        }

    return make
