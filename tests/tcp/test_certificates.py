"""TLS with certificates at both ends."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from gevent.ssl import SSLContext
from support import eventually

from sbuslib.errors import UsageError
from sbuslib.tcp import TLS, Peer, Publish, TcpLimits

from .conftest import Connect, Make

pytest_plugins = ["certificate_fixtures"]

Certificates = Callable[..., dict[str, str]]


def test_messages_go_both_ways_over_tls(make_peer: Make, certificates: Certificates) -> None:
    tls = TLS(**certificates())
    one, two = make_peer(tls=tls), make_peer(tls=tls)
    inboxes = [one.subscribe("a"), two.subscribe("a")]
    two.connect(one.address)
    for peer in (one, two):
        peer.wait_for_subscriber("a", timeout=20)
    payload = bytes(range(256)) * 2_000
    for peer in (one, two):
        peer.publish_many([("a", payload)] * 5 + [("a", b"end")])
    for inbox in inboxes:
        assert [inbox.receive(timeout=20) for _ in range(6)] == [Publish("a", payload)] * 5 + [Publish("a", b"end")]


def test_a_peer_without_a_certificate_of_the_authority_gets_nothing(
    make_peer: Make, raw: Connect, certificates: Certificates
) -> None:
    ours, theirs = certificates("ours"), certificates("theirs")
    peer = make_peer(tls=TLS(**ours))
    inbox = peer.subscribe("a")
    # Plain text, no certificate, and one of another authority.
    plain = raw(peer)
    plain.send(b"pub a 1 x\n")
    eventually(lambda: peer.statistics().violations == {"TLS handshake failed": 1})
    contexts = [SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(2)]
    contexts[1].load_cert_chain(theirs["cert"], theirs["key"])
    for context in contexts:
        context.load_verify_locations(ours["ca"])
        connection = raw(peer)
        got = b""
        # With TLS 1.3 this end is done before the other looks at its certificate.
        with suppress(OSError):
            connection.socket = context.wrap_socket(connection.socket, server_hostname="127.0.0.1")
            got = connection.socket.recv(1)
        connection.socket.close()
        assert got == b""
    eventually(lambda: peer.statistics().violations == {"TLS handshake failed": 3})
    assert len(inbox) == 0
    assert not peer.links


def test_a_peer_refuses_certificates_of_another_authority_or_name(make_peer: Make, certificates: Certificates) -> None:
    ours, theirs = certificates("ours"), certificates("theirs")
    peer = make_peer(tls=TLS(**ours))
    stranger = make_peer(None, tls=TLS(**theirs))
    with pytest.raises(ssl.SSLCertVerificationError):
        stranger.connect(peer.address)
    misled = make_peer(None, tls=TLS(**ours, hostname="another.example"))
    with pytest.raises(ssl.SSLCertVerificationError):
        misled.connect(peer.address)
    assert not stranger.is_dialling(peer.address)
    assert not misled.links


def test_a_handshake_has_a_time_limit(
    make_peer: Make, raw: Connect, certificates: Certificates, limits: TcpLimits
) -> None:
    quick = msgspec.structs.replace(limits, connect_seconds=0.05)
    peer = make_peer("0.0.0.0:0", tls=TLS(**certificates()), limits=quick)  # other machines may reach it
    raw(peer).expect_end()
    assert peer.statistics().violations == {"TLS handshake failed": 1}


def test_wrong_certificate_files_are_refused(
    certificates: Certificates, lock: Callable[[str], str], folder: str
) -> None:
    files = certificates()
    with pytest.raises(UsageError, match=f"cannot be used.*{folder}/none"):
        Peer(tls=TLS(files["cert"], folder + "/none", files["ca"]))
    with pytest.raises(UsageError, match="cannot be used"):
        Peer(tls=TLS(files["cert"], files["cert"], files["ca"]))
    with pytest.raises(UsageError, match="cannot be used"):  # and nobody is asked for its password
        Peer(tls=TLS(files["cert"], lock(files["key"]), files["ca"]))
