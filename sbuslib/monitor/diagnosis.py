"""Diagnosis of a hub, and of the way to it: the findings of ``sbus doctor``.

All checks are made by a client. A hub sends its statistics only to trusted users, so others get fewer findings.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic, sleep, time
from typing import Final, Literal

import msgspec

from ..blocking import Client
from ..clients.recipes.queue import ANNOUNCE_SECONDS, QueueState, decode, queue_key
from ..errors import AddressError, SbusError, StateError, UsageError
from ..federation.membership import ASK, BridgeStatistics
from ..kernel.defaults import default_addresses, runtime_folder
from ..kernel.peers import peer_credentials
from ..kernel.sockets import connect
from ..kernel.users import name_of_user
from ..keys.own_keys import CONTROL
from ..limits import PACKET_BYTES, ClientLimits
from ..matcher import SEPARATOR
from ..reasons import Reason
from ..secrets import OVERFLOW_ID
from ..statistics import ClientStatistics, HubStatistics, LinkStatistics
from ..wire.addresses import PathAddress, parse_address
from ..wire.control import STATISTICS, SUPPORTED
from ..wire.text import printable
from .bridges import bridges_heard
from .rates import Rates, Row, ids_of, is_local
from .survey import DEEPEST, client_at

_FULL: Final = 0.8
"""A hub that has this share of its descriptors open is warned about."""

_LOOK_SECONDS: Final = 0.5
"""Between two looks at queues: long enough for a batch that came at once to be read."""

_HALF: Final = 0.5
"""A queue that is fuller is warned about. The receiver of one that holds publishers back lets go of them at half."""

_MOST_NAMED: Final = 3
"""Receivers that are named because their queues fill. A flood to many would fill the screen."""

_EARLIEST: Final = 1_577_836_800
"""No clock that is right stands before 2020."""

_QUEUES_SECONDS: Final = 1.1 * ANNOUNCE_SECONDS
"""How long workers of shared queues are listened for."""

_ANSWER_SECONDS: Final = 0.3
"""How long the services of one queue have to answer."""

_MOST_QUEUES: Final = 16
"""Shared queues whose state is requested. Each may take a moment."""

_CAUSES: Final = {
    "overflow": "their receivers read too slowly: sbus stat --clients --sort lost shows which, sbus why KEY why",
    "quota": "what waits for one user, or comes from one, is bounded by limits",
    "oversize": "the packet is longer than the receiver's connection takes: raise net.core.wmem_max",
    "upstream": "the parent was away or slow for too long: sbus doctor there says why",
}
"""Advice about lost messages, by cause. Other causes were chosen by the receivers, or are receivers that left."""

_STATES: Final = {
    "loop": "the parent is below this one: give its relay another --upstream",
    "deep": "the parent is too deep in its tree: join a hub nearer to the root",
    "stopped": "start its relay again",
}
"""Advice about a link that is not joined, by state; for other states, to look at the parent."""


class Finding(msgspec.Struct, frozen=True):
    """Finding about one subject; with ``advice``, if it is a ``warning`` or a ``problem``."""

    level: Literal["ok", "warning", "problem"]
    about: str
    text: str
    advice: str = ""


def examine(address: str | None = None, *, timeout: float = 5.0) -> Iterator[Finding]:
    """Yield findings about a hub and the way to it. No answer is waited for longer than ``timeout``."""
    offset = time() - monotonic()
    if time() < _EARLIEST:
        yield Finding("problem", "clock", "the clock of this machine is not set", "set it; journals and notices use it")

    # 1. This process.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = soft < 1_024
    yield Finding(
        "warning" if low else "ok",
        "descriptors",
        f"this process may open {soft:,} files and sockets, and raise that to {hard:,}",
        "ulimit -n 1024, before a program that has many clients" if low else "",
    )

    # 2. The hub, at the first address where one listens.
    why = "given" if address is not None else "SBUS_ADDRESS" if os.environ.get("SBUS_ADDRESS") else "default"
    missed: list[tuple[str, str]] = []
    try:
        candidates = default_addresses() if address is None else [address]
    except UsageError as error:
        candidates = []
        missed.append((str(error), "if it is the bus that you mean: sbus doctor -a ADDRESS"))
    if why == "default" and (folder := os.environ.get("XDG_RUNTIME_DIR")) and runtime_folder() is None:
        yield Finding(
            "warning",
            "address",
            f"XDG_RUNTIME_DIR is {folder}, which is not of user {name_of_user(os.geteuid())}, and is not looked into",
            "begin a session as this user, such as with su -; or name the bus: sbus doctor -a ADDRESS",
        )
    for number, candidate in enumerate(candidates, 1):
        where = f"{candidate} ({why}, {number} of {len(candidates)})"
        text, advice = _reach(candidate)
        if not text:
            yield from (Finding("ok", "address", f"{one}, so the next was tried") for one, _ in missed)
            yield Finding("ok", "address", f"{where}: something listens")
            yield from _folder(candidate)
            yield from _ask(candidate, timeout)
            break
        missed.append((f"{where}: {text}", advice))
    else:
        yield from (Finding("problem", "address", one, advice) for one, advice in missed)

    # 3. The clock, while this ran.
    if abs(time() - monotonic() - offset) > 0.05:
        yield Finding("warning", "clock", "the clock was set while this ran", "times in journals and notices jump")
    else:
        yield Finding("ok", "clock", "it did not jump while this ran")


def _reach(address: str) -> tuple[str, str]:
    """Try an address. Returns why nothing can be reached there, and what to do; empty if a connection is made."""
    try:
        parsed = parse_address(address)
        connect(parsed, 0).close()
    except AddressError as error:
        return str(error), "the forms of an address are in sbusd(1)"
    except BlockingIOError:
        return "", ""  # it listens; that it does not answer is found later
    except FileNotFoundError:
        return "it does not exist", f"start a hub: sbus hub -a {address}; or name another: export SBUS_ADDRESS=PATH"
    except ConnectionRefusedError:
        if isinstance(parsed, PathAddress) and not stat.S_ISSOCK(os.stat(parsed.path).st_mode):
            return "it is no socket", f"name another address, or remove it and start a hub: sbus hub -a {address}"
        return "nobody listens there", f"start its hub again: sbusd -a {address}"
    except PermissionError:
        return _forbidden(address), "ask its owner: sbusd -o lets everybody in, sbusd -o -u NAME one user"
    except OSError as error:
        if error.errno == errno.EPROTOTYPE:
            return "another kind of socket listens there: no hub", "name the address of a hub"
        return error.strerror or str(error), ""
    return "", ""


def _forbidden(path: str) -> str:
    """Describe the folder or socket whose permissions refuse this process."""
    steps = [path]
    while (parent := os.path.dirname(steps[0])) not in ("", steps[0]):
        steps.insert(0, parent)
    closed = next((one for one in steps[:-1] if not os.access(one, os.X_OK, effective_ids=True)), path)
    try:
        found = os.stat(closed)
    except OSError:
        return f"permission denied at {closed}"
    return (
        f"permission denied at {closed}, which is {stat.filemode(found.st_mode)} of user {name_of_user(found.st_uid)}"
    )


def _folder(address: str) -> Iterator[Finding]:
    parsed = parse_address(address)
    if not isinstance(parsed, PathAddress):
        return
    place = os.path.dirname(os.path.abspath(parsed.path))
    mode, folder = os.stat(parsed.path).st_mode, os.stat(place).st_mode
    text = f"the socket is {stat.filemode(mode)}, its folder {stat.filemode(folder)}"
    if folder & stat.S_IWOTH and not folder & stat.S_ISVTX:
        yield Finding("warning", "permissions", f"{text}: anybody may replace the socket", f"chmod o-w {place}")
    else:
        yield Finding("ok", "permissions", text)


def _ask(address: str, timeout: float) -> Iterator[Finding]:
    try:
        with Client(address, timeout=timeout) as client:
            yield from _process(client)
            yield from _names(client)
            yield from _statistics(client)
            yield from _links(client, timeout, set())
            yield from _bridges(client)
            yield from _queues(client)
    except TimeoutError:
        yield Finding("problem", "hub", "it does not answer in time", "it is stopped or busy: look at its process")
    except (SbusError, OSError) as error:
        yield Finding("problem", "hub", str(error), "if it says no more, its log does")


def _process(client: Client) -> Iterator[Finding]:
    """Examine the hub's process, its descriptors, and the buffer between it and this process."""
    peer = peer_credentials(client.socket)
    if not peer.pid:
        yield Finding("ok", "hub", "in another pid namespace: its process cannot be seen from here")
    else:
        yield Finding("ok", "hub", f"process {peer.pid} of user {name_of_user(peer.uid)}")
        yield from _descriptors(peer.pid)
    size, needed = client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), ClientLimits().send_buffer
    if size < needed:
        text = f"send buffers have {size:,} bytes: messages of up to {PACKET_BYTES:,} bytes do not fit"
        yield Finding("problem", "buffers", text, f"sysctl -w net.core.wmem_max={needed // 2}")
    else:
        yield Finding("ok", "buffers", f"net.core.wmem_max lets messages of {PACKET_BYTES:,} bytes through")


def _descriptors(pid: int) -> Iterator[Finding]:
    try:
        used = len(os.listdir(f"/proc/{pid}/fd"))
        with open(f"/proc/{pid}/limits") as file:
            most = next(line.split()[3] for line in file if line.startswith("Max open files"))
    except (OSError, StopIteration):
        return  # only its user and root may read these
    full = most.isdigit() and used >= _FULL * int(most)
    advice = "raise LimitNOFILE= in its unit, or ulimit -n before it starts" if full else ""
    yield Finding("warning" if full else "ok", "descriptors", f"the hub has {used:,} of its {most} open", advice)


def _names(client: Client) -> Iterator[Finding]:
    """Examine the hub's features, and the ids under which it knows this process."""
    shown, features = printable(client.credentials), client.hub.features
    if features is None:
        text = "a plain daemon: no statistics, no notices of lost messages, no senders"
        yield Finding("warning", "features", text, "use sbusd, if you need them")
    elif missing := sorted({*SUPPORTED} - features.words):
        text = f"an older hub, without {printable(b', '.join(missing))}"
        yield Finding("warning", "features", text, "update it")
    else:
        yield Finding("ok", "features", f"all {len(SUPPORTED)} of them")

    separator = SEPARATOR if features is None else features.separator
    uid, pid = [b"", b"", *client.credentials.split(separator)][-2:]
    if uid == b"%d" % OVERFLOW_ID and os.geteuid() != OVERFLOW_ID:
        text = f"your user is unknown to this hub, which runs in another user namespace: {shown}"
        yield Finding(
            "warning", "namespaces", text, "run the hub without a user namespace of its own, or map your user there"
        )
    elif features is not None and pid == b"0":
        text = f"your process id is unknown to this hub, which runs in another pid namespace: {shown}"
        yield Finding(
            "warning", "namespaces", text, "leave the process id in secret keys empty, or run the hub with --pid=host"
        )
    else:
        yield Finding("ok", "namespaces", f"the hub knows this process as {shown}")


def _statistics(client: Client) -> Iterator[Finding]:
    """Examine the hub's statistics, which it sends only to trusted users."""
    if client.hub.features is None or STATISTICS not in client.hub.features.words:
        return
    try:
        hub = client.hub.statistics()
    except StateError:
        text = "this user is not trusted, so the hub shows neither losses nor links"
        yield Finding("warning", "trust", text, f"ask for --trusted {os.geteuid()} where the hub runs, or be its user")
        return

    yield Finding("ok", "trust", f"trusted; {hub.clients:,} clients, {hub.waiting:,} messages wait")
    yield from _losses("lost", hub)
    yield from _over_quota(hub)
    if hub.waiting or any(hub.lost.values()):
        yield from _culprits(client, hub)
    for reason, count in hub.violations.items():
        advice = "the hub's log names their users"
        if reason in (Reason.PUBLISHING_REFUSED, Reason.SUBSCRIPTION_REFUSED):
            advice += ", and sbus hub explain shows the rule"
        yield Finding("warning", "kicked", f"{count:,} clients: {reason}", advice)


def _over_quota(hub: HubStatistics) -> Iterator[Finding]:
    """Find users for whom more messages wait than one user may have."""
    for user in hub.per_user:
        if count := user.lost.get("quota"):
            text = f"user {name_of_user(user.uid)}: {count:,} messages lost, {user.waiting_bytes:,} bytes wait"
            yield Finding("warning", "over quota", text, "sbus top --by users shows the others")


def _culprits(client: Client, hub: HubStatistics) -> Iterator[Finding]:
    """Find the clients that read too slowly or publish most, by two looks, a moment apart."""
    rates = Rates(local=is_local(client))
    first = _each_client(client, hub)
    rates.look(monotonic(), client.address, hub, first, ())
    sleep(_LOOK_SECONDS)
    hub = client.hub.statistics()
    now = _each_client(client, hub)
    rows = rates.look(monotonic(), client.address, hub, now, ()).clients or []

    # 1. Those whose queue is filling, while nothing may be lost yet.
    before = {one.number: one.waiting for one in first if one.number}  # inboxes of the hub's program have none
    filling = []
    for one, row in zip(now, rows, strict=True):
        more = one.waiting - before.get(one.number, one.waiting)
        text = f"{_who(row)}: {one.waiting:,} messages wait"
        if one.full > _HALF:
            filling.append((one.full, f"{text}, its queue is {one.full:.0%} full"))
        elif 0 < more < one.waiting:  # there were some before
            filling.append((one.full, f"{text}, {more:,} more than {_LOOK_SECONDS:g} s before"))
    for _, text in sorted(filling, reverse=True)[:_MOST_NAMED]:
        yield Finding("warning", "slow receiver", text, "sbus stat --clients --sort waiting shows the others")

    # 2. The one that has lost most, and the one that publishes most now, or did.
    slow = max(rows, key=lambda row: (row["lost"], row["waiting"]), default=None)
    if slow is not None and slow["lost"]:
        text = f"{_who(slow)}: {slow['lost']:,} messages lost, {slow['waiting']:,} wait"
        yield Finding("warning", "slowest receiver", text, "sbus stat --clients --sort lost shows the others")
    busy = max(rows, key=lambda row: (row["published_rate"], row["published"]), default=None)
    if busy is not None and busy["published"]:
        text = f"{_who(busy)}: {busy['published']:,} messages published, {busy['published_rate']:,.0f}/s now"
        yield Finding("ok", "busiest publisher", text, "sbus top shows who publishes now")


def _each_client(client: Client, hub: HubStatistics) -> list[ClientStatistics]:
    """Return all clients of a hub. If they are few, its statistics hold them already."""
    return list(hub.per_client) if len(hub.per_client) >= hub.clients else client.hub.clients()


def _who(row: Row) -> str:
    """Describe a client: user, program and process, and its credential key."""
    _, pid = ids_of(row["who"])
    return f"user {row['user']}, {row['program'] or 'program'} {pid or '?'} ({row['who']})"


def _bridges(client: Client) -> Iterator[Finding]:
    """Examine the bridges of the bus, which answer a request with a heartbeat."""
    client.subscribe(CONTROL)
    client.publish(CONTROL, ASK)
    for here, _ in bridges_heard(client.receive):
        counts = here.counts or BridgeStatistics()
        wrong = not counts.connected or any(counts.lost.values())
        advice = "its own log says why" if wrong else ""
        yield Finding("warning" if wrong else "ok", "bridge", printable(here.text.encode()), advice)


def _queues(client: Client) -> Iterator[Finding]:
    """Examine the shared queues with workers, by the workers' announcements and the answers of their services."""
    # 1. Their names.
    separator = client.hub.separator
    names: set[bytes] = set()
    until = monotonic() + _QUEUES_SECONDS
    with client.subscribe(queue_key(b"*", separator, b"work")) as announced:
        while (left := until - monotonic()) > 0 and len(names) < _MOST_QUEUES:
            with suppress(TimeoutError):
                names.add(announced.receive(timeout=left).key.split(separator)[1])

    # 2. The state of each.
    for name in sorted(names):
        about = f"queue {printable(name)}"
        answers = client.request_many(queue_key(name, separator, b"work"), wait=_ANSWER_SECONDS)
        states = [(decode(QueueState, one.value), one.sender) for one in answers if one.error is None]
        if not states:
            yield Finding("warning", about, "workers wait, and no service says that it has it", f"start sbus {about}")
        for state, sender in states:
            if state is None:
                continue
            service = printable(sender) if sender is not None else "process unknown"
            yield Finding(
                *("ok", about),
                f"{state.waiting + state.held:,} jobs and {state.workers:,} workers, says its service ({service})",
            )
            for user in state.refused:
                text = f"workers of user {name_of_user(user)} get no jobs: its service ({service}) does not trust them"
                yield Finding("warning", about, text, f"start it with --trusted {name_of_user(user)}, if they may work")


def _losses(about: str, counted: HubStatistics | LinkStatistics) -> Iterator[Finding]:
    for cause, count in counted.lost.items():
        if count:
            advice = _CAUSES.get(cause, "")
            yield Finding("warning" if advice else "ok", about, f"{count:,} messages: {cause}", advice)


def _dropped(name: str, link: LinkStatistics) -> Iterator[Finding]:
    """Find packets of the hub at the other end that had no effect."""
    for reason, count in link.dropped.items():
        is_refused = reason in (Reason.PUBLISHING_REFUSED, Reason.SUBSCRIPTION_REFUSED)
        advice = (
            f"sbus hub explain {name_of_user(link.uid)} shows the rule" if is_refused else "look at its hub's version"
        )
        yield Finding("warning", f"dropped {name}", f"{count:,} packets: {reason}", advice)


def _links(client: Client, timeout: float, seen: set[bytes]) -> Iterator[Finding]:
    """Examine the links of a hub and of its parents up to the root, as far as they trust this user."""
    features = client.hub.features
    if features is None or features.hub_id in seen or len(seen) >= DEEPEST:
        return

    seen.add(features.hub_id)
    about, parent = f"links of {client.address}", features.path[1:]
    path = f"below {printable(b', '.join(parent))}" if parent else "the root of its tree"
    yield Finding("ok", about, f"hub {printable(features.hub_id)} is {path}")

    try:
        links = client.hub.links()
    except StateError:
        if len(seen) > 1:
            yield Finding("warning", about, "this user is not trusted there", "ask for --trusted where it runs")
        return

    for link in links:
        name = f"to {link.address}" if link.direction == "parent" else f"from {link.address or link.credentials}"
        if link.state == "joined":
            yield Finding("ok", about, f"{name}: joined")
        elif link.state == "lagging":
            yield Finding("warning", about, f"{name}: it owes an answer for {link.lag:.0f} s", "look at its process")
        else:
            advice = _STATES.get(link.state, f"sbus doctor -a {link.address}")
            yield Finding("problem", about, f"{name}: {link.state}", advice)
        yield from _losses(f"lost {name}", link)
        yield from _dropped(name, link)
        if link.direction == "parent" and link.state == "joined":
            try:
                with client_at(link, timeout) as upper:
                    yield from _links(upper, timeout, seen)
            except (SbusError, OSError) as error:
                yield Finding("warning", about, f"{name}: {error}", "run sbus doctor where that address is reached")
