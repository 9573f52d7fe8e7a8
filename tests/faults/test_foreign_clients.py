"""A client in Perl, which sends and receives raw packets. The one in C is an example."""

from __future__ import annotations

import os
import shutil
import subprocess

import gevent.subprocess
import pytest
from support import Connect

from sbuslib import Hub

PERL_CLIENT = r"""
use Socket;
socket(my $bus, AF_UNIX, SOCK_SEQPACKET, 0) or die; connect($bus, pack_sockaddr_un($ARGV[0])) or die;
setsockopt($bus, SOL_SOCKET, SO_SNDBUF, 500000);
send($bus, "CMSG !/cred/whoami", 0); recv($bus, my $packet, 1000, 0);
print((split /\0/, $packet)[1], "\n");
send($bus, "SUB to/c/*\0", 0); send($bus, "MSG from/c\0ready", 0);  # with its NUL, as C programs send it
recv($bus, $packet, 409600, 0); $packet =~ s/\0/ /; print "$packet\n";
send($bus, "UNSUB to/c/*", 0); send($bus, "MSG from/c\0" . "x" x (409600 - 11), 0);
"""


def test_a_client_in_perl(hub: Hub, connect: Connect) -> None:
    if shutil.which("perl") is None:
        pytest.skip("there is no perl")
    peer = connect()
    peer.subscribe(b"from/c")
    process = gevent.subprocess.Popen(["perl", "-e", PERL_CLIENT, "--", hub.address], stdout=subprocess.PIPE)
    try:
        assert peer.receive() == b"MSG from/c\0ready"
        peer.publish(b"to/c/1", b"hello")
        assert peer.receive() == b"MSG from/c\0".ljust(409_600, b"x")
        printed, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    identity, message = printed.decode().splitlines()
    assert identity == f"!/cred/{os.getgid()}/{os.getuid()}/{process.pid}"
    assert message == "MSG to/c/1 hello"
    assert process.returncode == 0
    assert hub.statistics().violations == {}
