"""Addresses, and what they are resolved to."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import pytest
from support import eventually

from sbuslib.errors import AddressError, UsageError
from sbuslib.tcp import Peer
from sbuslib.tcp.transport import is_loopback

Make = Callable[..., Peer]


def test_an_impossible_host_name_is_refused(make_peer: Make) -> None:
    peer = make_peer(None, insecure=True)
    with pytest.raises(OSError, match="cannot be the name of a host"):
        peer.connect("a..b:9")
    peer.connect("a..b:9", wait=False)
    gevent.sleep(0)
    assert peer.is_dialling("a..b:9")
    peer.greenlets.check()
    with pytest.raises(AddressError, match="cannot be the name of a host"):
        is_loopback("a..b")


@pytest.mark.parametrize(
    "address", ["", "host", "1.2.3.4", "h:x", "h:65536", "::1:80", "[::1]", "a b:1", "h:-1", "h:+1"]
)
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(AddressError):
        Peer(address)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_listening_for_other_machines_needs_tls_or_insecure(address: str) -> None:
    with pytest.raises(UsageError, match="other machines"):
        Peer(address)
    Peer(address, insecure=True)


def test_listening_without_a_host_is_loopback(make_peer: Make) -> None:
    assert make_peer(":0").address.startswith("127.0.0.1:")


def test_a_peer_listens_on_ipv6(make_peer: Make) -> None:
    try:
        peer = make_peer("[::1]:0")
    except OSError:
        pytest.skip("there is no IPv6 here")
    other = make_peer()
    other.connect(peer.address)
    eventually(lambda: peer.links and other.links)
    assert peer.address.startswith("[::1]:")
