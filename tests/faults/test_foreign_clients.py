"""Clients that do not use this library, in C and Perl: they send and receive raw packets."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import gevent.subprocess
import pytest
from support import PATIENCE, Connect

from sbuslib import Hub

C_CLIENT = r"""
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int say(int fd, const char *packet, size_t size) { return send(fd, packet, size, 0) == (ssize_t)size; }

int main(int argc, char **argv)
{
    static char packet[409600];
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), buffer = 500000;
    ssize_t size;
    if (argc != 2 || fd < 0) return 1;
    strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) return 2;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    if (!say(fd, "CMSG !/cred/whoami", 18)) return 3;
    size = recv(fd, packet, sizeof packet, 0);
    if (size < 20 || memcmp(packet, "CMSG !/cred/whoami", 19)) return 4;
    printf("%.*s\n", (int)size - 19, packet + 19);
    if (!say(fd, "SUB to/c/*", 11)) return 5;                 /* with its NUL, as C programs send it */
    if (!say(fd, "MSG from/c\0ready", 16)) return 6;
    size = recv(fd, packet, sizeof packet, 0);
    printf("%s %.*s\n", packet, (int)(size - strlen(packet) - 1), packet + strlen(packet) + 1);
    if (!say(fd, "UNSUB to/c/*", 13)) return 7;
    memset(packet, 'x', sizeof packet);
    memcpy(packet, "MSG from/c", 11);
    if (!say(fd, packet, sizeof packet)) return 8;
    close(fd);
    return 0;
}
"""

PERL_CLIENT = r"""
use Socket;
socket(my $bus, AF_UNIX, SOCK_SEQPACKET, 0) or die; connect($bus, pack_sockaddr_un($ARGV[0])) or die;
setsockopt($bus, SOL_SOCKET, SO_SNDBUF, 500000);
send($bus, "CMSG !/cred/whoami", 0); recv($bus, my $packet, 1000, 0);
print((split /\0/, $packet)[1], "\n");
send($bus, "SUB to/c/*", 0); send($bus, "MSG from/c\0ready", 0);
recv($bus, $packet, 409600, 0); $packet =~ s/\0/ /; print "$packet\n";
send($bus, "UNSUB to/c/*", 0); send($bus, "MSG from/c\0" . "x" x (409600 - 11), 0);
"""


@pytest.fixture(scope="module")
def c_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler: install gcc, or set CC")
    program = tmp_path_factory.mktemp("c") / "client"
    source = program.with_suffix(".c")
    source.write_text(C_CLIENT, "ascii")
    subprocess.run([compiler, "-Wall", "-Werror", "-o", program, source], check=True, timeout=PATIENCE)
    return program


def converse(hub: Hub, connect: Connect, command: list[str]) -> None:
    """The same conversation with each client."""
    peer = connect()
    peer.subscribe(b"from/c")
    process = gevent.subprocess.Popen([*command, hub.address], stdout=subprocess.PIPE)
    try:
        assert peer.receive() == b"MSG from/c\0ready"
        peer.publish(b"to/c/1", b"hello")
        assert peer.receive() == b"MSG from/c\0".ljust(409_600, b"x")
        printed, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    identity, message = printed.decode().splitlines()
    assert identity == f"!/cred/{os.getgid()}/{os.getuid()}/{process.pid}"
    assert message == "MSG to/c/1 hello"
    assert process.returncode == 0
    assert hub.statistics().violations == {}


def test_a_client_in_c(hub: Hub, connect: Connect, c_client: Path) -> None:
    converse(hub, connect, [str(c_client)])


def test_a_client_in_perl(hub: Hub, connect: Connect) -> None:
    if shutil.which("perl") is None:
        pytest.skip("there is no perl")
    converse(hub, connect, ["perl", "-e", PERL_CLIENT, "--"])
