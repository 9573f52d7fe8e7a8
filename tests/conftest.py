"""Fixtures: temporary addresses, started hubs, raw connections, and guards around each test.

Tests run with ``recvmmsg`` and ``sendmmsg``. Those whose subject differs without these calls are marked with
:data:`support.both_ways`, and run once more with a call for each packet.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Generator, Iterator
from typing import Any

import gevent
import hypothesis
import pytest
from accounting import acting_as, balance
from descriptors import Closers
from programs import Programs
from support import LONGEST, ROOT, FakeHub, HubThread, Peer, eventually, open_descriptors
from worlds import World

import sbuslib
from sbuslib.core import acceptor
from sbuslib.hub import Hub
from sbuslib.kernel import descriptors
from sbuslib.kernel.sockets import grow_send_buffer
from sbuslib.limits import Limits
from sbuslib.tree import parent_link, uplink

TEST_SECONDS = 120
"""A test that takes longer hangs: the slowest takes five seconds of a processor, of which it may have a twelfth."""


OPTIONAL = {"cryptography", "duckdb", "jinja2", "nats", "nkeys", "numpy", "paho", "pandas", "polars"} | {
    "prometheus_client", "pyarrow", "pyspark", "redis", "selenium"
}  # fmt: skip
"""Packages that only some tests need."""
_skipped: list[str] = []
"""Files that need one which is not installed."""


class TestHangs(SystemExit):
    """Raised into a test that hangs. A ``SystemExit``, which gevent passes from its event loop to the main greenlet."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--address",
        help="run tests/conformance against the daemon that listens at this path, instead of against hubs of ours",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a Spark session run last: it opens and closes sockets in threads of its own until the end."""
    items.sort(key=lambda item: "spark" in item.path.relative_to(ROOT / "tests").parts)


def skip_without(report: Any, where: str) -> None:
    """Make a skip of a failure for want of a package that is not installed, unless all tests are to run."""
    if not report.failed or os.environ.get("SBUS_ALL_TESTS"):
        return
    text = str(report.longrepr)
    missing = next(
        (name for name in OPTIONAL if f"No module named '{name}" in text or f"{name} is missing" in text), ""
    )
    if missing or any(path in text for path in _skipped):  # a file imports what is in another
        if report.nodeid == where:
            _skipped.append(where)
        reason = f"Skipped: needs {missing or 'what another file needs'}: pip install -e '.[everything]'"
        report.outcome, report.longrepr = "skipped", (where, 1, reason)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report: Any = yield
    skip_without(report, collector.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report: Any = yield
    skip_without(report, item.nodeid.partition("::")[0])
    return report


def pytest_configure(config: pytest.Config) -> None:
    # A deadline for each example would be an assertion about the machine; the fixtures bound each test. A run of all
    # tests does not look for the shortest example that fails: with hubs that are waited for, that takes minutes.
    shortest = [] if os.environ.get("SBUS_ALL_TESTS") else [hypothesis.Phase.shrink]
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate, *shortest]
    hypothesis.settings.register_profile("sbuslib", deadline=None, phases=phases, print_blob=True)
    hypothesis.settings.load_profile("sbuslib")
    config.addinivalue_line("markers", "seconds(most): how long this test may take before it is said to hang")
    config.addinivalue_line("markers", "promise(page, sentence): what a page promises in bold, held by this test")
    config.addinivalue_line("markers", "fails_on_c_daemon(reason): the C daemon is known to fail this case")


def _hangs(signum: int, frame: object) -> None:
    raise TestHangs("the test took longer than it may")


@pytest.fixture(scope="session", autouse=True)
def _signals_count() -> None:
    """Let programs that tests start hear Ctrl-C and a hangup, which they ignore where their parent does.

    A background job of a shell ignores the one, and what nohup(1) runs the other. A handler is for this process alone.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def _event_loop() -> None:
    """Open the descriptors of gevent's event loop before anybody counts descriptors."""
    gevent.sleep(0)


@pytest.fixture(autouse=True)
def _no_hang(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that hangs. If not even that helps, ``faulthandler_timeout`` of ``tox.ini`` ends the run."""
    marker = request.node.get_closest_marker("seconds")
    seconds = marker.args[0] if marker is not None else TEST_SECONDS
    before = signal.signal(signal.SIGALRM, _hangs)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)  # again, where what tidies up after the test hangs too
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def _no_sigchld_handler() -> Iterator[None]:
    """Take back the handler that a process of :mod:`gevent.subprocess` installs: it reaps the children of later tests.

    gevent installs it again for its next process.
    """
    yield
    gevent.sleep(0)  # the handler runs once more after the last child
    loop: Any = gevent.get_hub().loop
    loop.reset_sigchld()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptor stores of this process close with their clients."""
    monkeypatch.setattr("sbuslib.clients.fds.descriptor_store.LINGER", 0.0)


@pytest.fixture(autouse=True)
def _no_leaks(_no_hang: None) -> Iterator[None]:
    """Fail a test after which more files and sockets are open than before."""
    before = open_descriptors()
    yield
    if open_descriptors() != before:
        gc.collect()
        gevent.sleep(0)  # watchers that were closed in the loop
        with contextlib.suppress(AssertionError):
            eventually(lambda: not open_descriptors() - before)  # descriptors of others are closed in threads
        leaked = open_descriptors() - before
        assert not leaked, f"left open: {sorted(leaked)}"


@pytest.fixture
def syscalls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which system calls receive buffers that are made from now on use; also in subprocesses."""
    name: str = getattr(request, "param", "batched")
    if name == "plain":
        monkeypatch.setenv("SBUS_SYSCALLS", "plain")
    else:
        monkeypatch.delenv("SBUS_SYSCALLS", raising=False)
    return name


@pytest.fixture
def pair(syscalls: str) -> Iterator[tuple[socket.SocketType, socket.SocketType]]:
    """Two connected sockets, through which packets of full length go."""
    ends = [socket.SocketType(fileno=end.detach()) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
    for end in ends:
        end.setblocking(False)
        grow_send_buffer(end, LONGEST + 12_288)
    yield ends[0], ends[1]
    for end in ends:
        end.close()


@pytest.fixture
def folder() -> Iterator[str]:
    """A temporary folder with a path short enough for a socket in it, unlike pytest's own."""
    path = tempfile.mkdtemp(prefix="sbus-")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def address(syscalls: str, folder: str) -> str:
    """A path where a hub may listen."""
    return os.path.join(folder, "bus")


@pytest.fixture
def make_hub(address: str) -> Iterator[Callable[..., Hub]]:
    """Make and start a hub, at :func:`address` unless another is given; stopped after the test."""
    hubs: list[Hub] = []

    def make(listener: Any = None, **options: Any) -> Hub:
        hub = Hub(address if listener is None else listener, **options)
        hubs.append(hub)
        hub.start()
        return hub

    yield make
    for hub in hubs:
        hub.stop(0)


@pytest.fixture
def hub(make_hub: Callable[..., Hub]) -> Hub:
    """A hub that listens at :func:`address`, in this thread."""
    return make_hub()


@pytest.fixture
def connect(address: str) -> Iterator[Callable[..., Peer]]:
    """Connect a raw socket, to :func:`address` unless another is given; closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda to=address: stack.enter_context(Peer(to))


@pytest.fixture
def bus(make_hub: Callable[..., Hub]) -> Iterator[Callable[..., Hub]]:
    """Make a hub with these limits (``options`` are those of :class:`Hub`).

    Ask for it before ``connect``. When its clients have left, nothing may be charged to anybody.
    """
    made: list[Hub] = []

    def make(options: dict[str, Any] | None = None, **limits: Any) -> Hub:
        made.append(make_hub(limits=Limits(**{"turn_time": 1e6} | limits), **options or {}))
        return made[-1]

    yield make
    for hub in made:
        if hub.closed:
            continue
        balance(hub)
        eventually(lambda hub=hub: not hub.statistics().clients)  # type: ignore[misc]
        balance(hub)
        for inbox in list(hub.clients.inboxes):
            inbox.unsubscribe()
        eventually(hub.context.quotas.is_clear)
        assert hub.statistics().waiting == 0
        balance(hub)


@pytest.fixture
def connect_as(folder: str, connect: Callable[..., Peer]) -> Callable[..., Peer]:
    """Connect as the user with this id. The hub's ``mode`` has to let it in."""
    os.chmod(folder, 0o755)

    def make(uid: int, *arguments: Any) -> Peer:
        with acting_as(uid):
            return connect(*arguments)

    return make


@pytest.fixture
def client(address: str) -> Iterator[Callable[..., sbuslib.Client]]:
    """Connect a gevent client, to :func:`address` unless another is given; closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(to: str = address, **options: Any) -> sbuslib.Client:
            return stack.enter_context(sbuslib.Client(to, **options))

        yield make


@pytest.fixture
def server(address: str) -> Iterator[HubThread]:
    """A hub that listens at :func:`address`, in a thread of its own."""
    with HubThread(address) as server:
        yield server


@pytest.fixture
def fake(address: str) -> Iterator[FakeHub]:
    """What listens at :func:`address` and says what the test says."""
    with FakeHub(address) as fake:
        yield fake


@pytest.fixture
def world(syscalls: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Hubs by name, which form trees and have clients of several users. All end with the test."""
    made = World(folder)
    monkeypatch.setattr(uplink, "ACK_PAUSE", 0.001)
    monkeypatch.setattr(parent_link, "ALIVE_PAUSE", 60.0)  # tests that play the parent are not asked that in between
    monkeypatch.setattr(acceptor, "peer_credentials", made.credentials)
    yield made
    made.close()


@pytest.fixture
def programs(folder: str) -> Iterator[Programs]:
    """Hubs by name that are processes, and end with the test."""
    with contextlib.closing(Programs(folder)) as programs:
        yield programs


@pytest.fixture
def closers(monkeypatch: pytest.MonkeyPatch) -> Closers:
    """Watch which thread closes what peers have sent."""
    closers = Closers()
    original = descriptors._close

    def close(descriptor: int) -> None:
        original(descriptor)
        closers.note(descriptor)

    monkeypatch.setattr(descriptors, "_close", close)
    return closers


@pytest.fixture
def old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets that are made from now on cannot refuse descriptors."""
    monkeypatch.setattr(descriptors, "_SO_PASSRIGHTS", 0x7FFF)
