"""Users of a NATS server: pairs of keys, and accounts whose tokens an operator signs."""

from __future__ import annotations

import base64
import os
import time
from typing import Any

import nkeys
from msgspec import json

UNLIMITED = dict.fromkeys(("subs", "data", "payload"), -1)
ALLOWED = UNLIMITED | dict.fromkeys(("conn", "leaf", "imports", "exports"), -1) | {"wildcards": True}


def make_pair(prefix: int = nkeys.PREFIX_BYTE_USER) -> tuple[str, str]:
    """A public key, and its seed."""
    seed = nkeys.encode_seed(os.urandom(32), prefix)
    return nkeys.from_seed(bytearray(seed)).public_key.decode(), seed.decode()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _token(issuer: tuple[str, str], subject: str, kind: str, **claims: Any) -> str:
    said = {"iss": issuer[0], "sub": subject, "iat": int(time.time()), "jti": subject, "name": kind}
    said["nats"] = {"type": kind, "version": 2, **claims}
    signed = ".".join(_encode(json.encode(part)) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, said))
    return f"{signed}.{_encode(nkeys.from_seed(bytearray(issuer[1].encode())).sign(signed.encode()))}"


class Operator:
    """An operator with one account. ``configuration`` is for a server that trusts it."""

    def __init__(self) -> None:
        own, self._account = make_pair(nkeys.PREFIX_BYTE_OPERATOR), make_pair(nkeys.PREFIX_BYTE_ACCOUNT)
        account = _token(own, self._account[0], "account", limits=ALLOWED)
        preload = f"resolver_preload: {{ {self._account[0]}: {account} }}"
        self.configuration = f"operator: {_token(own, own[0], 'operator')}\nresolver: MEMORY\n{preload}\n"

    def credentials(self, seed: str | None = None) -> str:
        """The text of a credentials file for a new user; with a ``seed`` that is not the user's, for none."""
        user = make_pair()
        token = _token(self._account, user[0], "user", **UNLIMITED)
        return "".join(
            f"-----BEGIN {what}-----\n{text}\n------END {what}------\n\n"
            for what, text in (("NATS USER JWT", token), ("USER NKEY SEED", seed or user[1]))
        )
