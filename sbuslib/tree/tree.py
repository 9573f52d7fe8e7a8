"""A hub's place in a tree: the hubs below it, the one above, and what all of them have to know of each other.

Who owns what:

* :mod:`sbuslib.tree.interest` decides, without I/O, which patterns a link has to hold.
* :class:`sbuslib.tree.downlink.Link` is what a hub knows of one relay below.
* :class:`Tree` is the rest: the prefix and who waits for it, the path to the root, questions that go round the
  whole tree. It feeds each change of what is wanted to all who have to hear of it.
* :class:`sbuslib.relay.Relay` joins the hub to the one above, and is known here as :class:`Above`.

Changes of interest are noted at once and told from a callback of the event loop, a bounded number in each round.
"""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from ..core.client_role import ClientRole
from ..core.context import Context
from ..core.members import Clients
from ..core.outgoing import Outgoing
from ..core.protocols import Receiver
from ..core.turn import Turn
from ..errors import PacketError, StateError
from ..wire import control
from ..wire.packets import encode_control
from .downlink import Link, Mode

__all__ = ["Above", "Tree"]


class Above(Protocol):
    """The relay of this hub, as the tree knows it."""

    settled: bool
    """Whether it has joined, or failed to: not in between."""

    def pump(self, steps: int) -> bool:
        """Tell the hub above some of what has changed, after up to ``steps`` steps; whether there is more."""
        ...

    def watch(self, pattern: bytes, wanted: bool) -> None:
        """Somebody here began (``True``) or ceased to want a pattern."""
        ...

    def ask(self, token: bytes) -> bool:
        """Ask the hub above to sync the rest of the tree; ``False`` when it cannot be asked."""
        ...

    @property
    def stands_apart(self) -> bool:
        """Whether it found that this hub is above the one that it was to join."""
        ...

    def wanted_above(self) -> list[bytes]:
        """The patterns that the hub above is taken to want now."""
        ...

    def is_sending(self) -> bool:
        """Whether something waits that can still be sent."""
        ...

    def close(self) -> None:
        """End it."""
        ...

    def abandon(self) -> None:
        """In the child of a fork: end it without a word to anybody."""
        ...


Asked: TypeAlias = "Link | Above"
Reply: TypeAlias = Callable[[bytes], None]


class _Round:
    """One question that goes round the tree, on behalf of several who asked: who has not answered yet."""

    def __init__(self, token: bytes, requests: list[tuple[object, Reply]]) -> None:
        self.token = token
        self.requests = requests
        self.waiting: set[Asked] = set()
        self.partial: set[Asked] = set()
        self.timer: Any = None

    def reply(self, anyway: bool = False) -> bool:
        """Answer those whose question is answered; whether that were all."""
        left = []
        for origin, reply in self.requests:
            if (missing := self.waiting - {origin}) and not anyway:
                left.append((origin, reply))
            else:
                reply(b"partial" if missing or self.partial - {origin} else b"tree")
        self.requests = left
        return not left


class Tree:
    """What one hub knows of the tree that it stands in. Belongs to the hub and its thread."""

    client_role: ClientRole
    """What a link is beside a link: set by the hub."""

    def __init__(self, context: Context, clients: Clients, relays: tuple[frozenset[int], frozenset[int]]) -> None:
        self.context = context
        self.clients = clients
        self._relay_users, self._relay_groups = relays
        self.hub_id = secrets.token_hex(8).encode()
        self.above: Above | None = None
        self.links: dict[Outgoing, Link] = {}
        self.dropped: Counter[str] = Counter()
        """Packets of links that were not theirs to send, by reason."""
        self.path: tuple[bytes, ...] = (self.hub_id,)
        context.on_senders = self._on_senders
        self.has_settled = False
        self._asking: deque[Outgoing] = deque()
        self._prefix_pending = False
        self._pumping: Any = None
        self._started = False
        self._joining: list[tuple[Outgoing, bytes]] = []
        self._rounds: dict[bytes, _Round] = {}
        self._requests: list[tuple[object, Reply]] = []
        self._open: Counter[object] = Counter()
        self._round_up: _Round | None = None
        self._tokens = 0

    # -- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> None:
        """The hub listens."""
        self._started = True
        self.has_settled = False
        self.path = (self.hub_id,)
        self.context.router.namespace.prefix = b""
        self.context.after(self.context.limits.settle, self._settle)

    def _settle(self) -> None:
        self.has_settled = True
        self.wake()

    def stop(self) -> None:
        """The hub stops."""
        self._started = False
        if self.above is not None:
            self.above.close()
        self._forget_all()

    def abandon(self) -> None:
        """In the child of a fork."""
        self._started = False
        if self.above is not None:
            self.above.abandon()
            self.above = None
        self._forget_all()

    def _forget_all(self) -> None:
        if self._pumping is not None:
            self._pumping.stop()
            self._pumping = None
        self._rounds.clear()
        self._round_up = None
        self._requests.clear()
        self._open.clear()
        self._joining.clear()
        self._asking.clear()

    def is_sending(self) -> bool:
        """Whether something waits on its way up that can still be sent."""
        return self.above is not None and self.above.is_sending()

    # -- links below --------------------------------------------------------------------------------

    def add_link(self, turn: Turn) -> None:
        """A client said ``interest/on``: answer how it is served, and begin."""
        connection = turn.outgoing
        if connection in self.links:
            return
        mode: Mode = "plain"
        if connection.credentials.uid in self.context.trusted:
            mode = "announce"
        elif self._may_relay(connection):
            mode = "prune"
        connection.answer(encode_control(control.INTEREST_ON, mode.encode()))
        if mode == "plain":
            return
        link = self.links[connection] = Link(self, turn, mode)
        turn.become(link)
        connection.set_echo(turn.sender)
        connection.is_link = True
        self.context.fan_out.forget()
        self.context.buffers.grow(connection, for_good=True)  # a whole hub is behind it, and what must not be lost
        self._watch()
        self.wake()

    def forget(self, connection: Outgoing) -> None:
        """A client has gone."""
        link = self.links.pop(connection, None)
        if link is not None:
            self._watch()
            for round_ in list(self._rounds.values()):
                round_.waiting.discard(link)
                self._check(round_)
        if self._open.pop(connection, None):
            self._requests = [request for request in self._requests if request[0] is not connection]

    # -- the hub above ------------------------------------------------------------------------------

    def attach(self, above: Above) -> None:
        """A relay begins. Raises :exc:`~sbuslib.errors.StateError` where there is one."""
        if self.above is not None:
            raise StateError(f"the hub at {self.context.address()} has a relay already: one relay a hub")
        self.above = above
        self._prefix_pending = True
        self._watch()
        self.context.after(self.context.limits.prefix_wait, self._give_up_prefix)

    def detach(self) -> None:
        """The relay has ended for good: this hub is a root again."""
        self.above = None
        self._watch()
        self.set_path(())
        if self._started:
            self.set_prefix(b"")

    def _watch(self) -> None:
        self.context.router.watch = self._on_want if self.links or self.above is not None else None

    def _on_want(self, subscriber: Receiver, pattern: bytes, wanted: bool) -> None:
        """Somebody here began or ceased to hold a pattern: all others may have to know."""
        if self.above is not None:
            self.above.watch(pattern, wanted)
        for connection, link in self.links.items():
            if connection is not subscriber:
                self._tell(link, pattern, wanted)
        self.wake()

    def on_above(self, pattern: bytes, wanted: bool) -> None:
        """The hub above began or ceased to want a pattern."""
        for link in self.links.values():
            self._tell(link, pattern, wanted)
        self.wake()

    @staticmethod
    def _tell(link: Link, pattern: bytes, wanted: bool) -> None:
        if link.interest is not None:
            if wanted:
                link.interest.add(pattern)
            else:
                link.interest.remove(pattern)
        elif wanted:
            link.graft_for(pattern)

    def wanted_above(self) -> list[bytes]:
        """The patterns that the hub above is taken to want."""
        return self.above.wanted_above() if self.above is not None else []

    def wake(self) -> None:
        """Something is to be told: in the next round of the event loop."""
        if self._pumping is None and self._started:
            self._pumping = self.context.loop.run_callback(self._pump)

    def _pump(self) -> None:
        self._pumping = None
        # Shared out, so that a round of the event loop takes no longer where there are many.
        steps = max(1, self.context.limits.interest_steps // (len(self.links) + 1))
        more = [link.pump(steps) for link in list(self.links.values())]
        if self.above is not None:
            more.append(self.above.pump(steps))
        self.context.members.end_turn()
        if any(more) and self._started and self._pumping is None:
            # After a pause, a longer one where a slow link has to make room first.
            waits = any(link.is_full for link in self.links.values())
            pause = self.context.limits.send_retry if waits else self.context.limits.interest_pause
            self._pumping = self.context.after(pause, self._pump)

    # -- senders ------------------------------------------------------------------------------------

    def _on_senders(self) -> None:
        """The first receiver here wants to know who sent what it gets, or the last ceased to."""
        if self._started:
            self.wake()  # to tell it only as often as there is room: whoever changes their mind floods no link

    def features(self) -> bytes:
        """What this hub answers to ``hub/features``."""
        separator = self.context.router.namespace.separator
        return control.Features(frozenset(control.SUPPORTED), self.hub_id, self.path, separator).encode()

    def _may_relay(self, client: Outgoing) -> bool:
        """Whether a client's user may join hubs to this one without seeing what concerns everybody."""
        if client.credentials.uid in self._relay_users:
            return True
        return bool(self._relay_groups) and not self._relay_groups.isdisjoint(self.clients.groups_of(client))

    # -- path ---------------------------------------------------------------------------------------

    def set_path(self, above: tuple[bytes, ...]) -> None:
        """The path to the root goes on with ``above`` after this hub: those below have to know."""
        path = (self.hub_id, *above)
        if path == self.path:
            return
        self.path = path
        packet = encode_control(control.FEATURES, self.features())
        for link in list(self.links.values()):
            link.connection.answer(packet)
        self.context.members.end_turn()

    def joined(self) -> None:
        """The relay has joined, or failed to: whoever asked about the path can be told."""
        joining, self._joining = self._joining, []
        for connection, token in joining:
            self._discharge(connection)
            if not connection.closed:
                connection.answer(control.encode_sync(token, b"root"))

    # -- prefix -------------------------------------------------------------------------------------

    def whoami(self, connection: Outgoing) -> None:
        """Answer a whoami, once the first prefix is known."""
        if not self._prefix_pending:
            connection.answer(encode_control(control.WHOAMI, self.key_of(connection)))
            return
        self._charge(connection)
        self._asking.append(connection)

    def key_of(self, client: Outgoing) -> bytes:
        """The credential key of a client."""
        return self.context.router.namespace.credential_key(client.credentials)

    def _charge(self, connection: object) -> None:
        self._open[connection] += 1
        if self._open[connection] > self.context.limits.queued_answers:
            raise PacketError("too many unread answers")

    def _discharge(self, connection: object) -> None:
        self._open[connection] -= 1
        if self._open[connection] <= 0:
            del self._open[connection]

    def _give_up_prefix(self) -> None:
        self._prefix_pending = False
        asking, self._asking = self._asking, deque()
        for connection in asking:
            self._discharge(connection)
            if not connection.closed:
                connection.answer(encode_control(control.WHOAMI, self.key_of(connection)))
        self.context.members.end_turn()

    @property
    def knows_prefix(self) -> bool:
        """Whether the hub knows under which prefix its credentials stand, or has given up asking."""
        return not self._prefix_pending

    def set_prefix(self, prefix: bytes) -> None:
        """Credentials here stand under ``prefix`` from now on.

        Secrets held under another name others now, so they are taken back: those who asked for notices are
        told, and can ask for their new ones; others are disconnected.
        """
        changed = self.context.router.namespace.prefix != prefix
        self.context.router.namespace.prefix = prefix
        if changed:
            for link in self.links.values():
                link.prefix_changed()
            self.context.router.reconsider_all()
            for connection in [client.outgoing for client in self.clients.connections.values()]:
                held = self.context.router.forget_secrets(connection, connection.account)
                if connection.wants_notices:
                    connection.answer(control.NewCredentials(self.key_of(connection)).encode())
                elif held:
                    self.context.members.close(connection, "the prefix of its secrets changed")
            for inbox in list(self.clients.inboxes):
                if self.context.router.forget_secrets(inbox, inbox.account):
                    inbox.close()
        self._give_up_prefix()

    # -- questions that go round the tree -----------------------------------------------------------

    def sync(self, connection: Outgoing, token: bytes, scope: bytes) -> None:
        """Answer a ``hub/sync``, at once or when the rest of the tree has answered."""
        if scope == b"root" and self.above is not None and not self.above.settled:
            self._charge(connection)
            self._joining.append((connection, token))
        elif scope == b"root":
            connection.answer(control.encode_sync(token, b"root"))
        elif scope == b"passed":
            self._sync_passed(connection, token)
        elif scope != b"tree":
            connection.answer(control.encode_sync(token, b"local"))
        elif self.above is None and not self.links:
            connection.answer(control.encode_sync(token, b"tree"))
        else:
            self._charge(connection)

            def reply(answer: bytes) -> None:
                self._discharge(connection)
                if not connection.closed:
                    connection.answer(control.encode_sync(token, answer))

            self._requests.append((self.links.get(connection, connection), reply))
            if self._round_up is None:
                self._start_round_up()

    def _sync_passed(self, connection: Outgoing, token: bytes) -> None:
        """Answer once all that was published before has left this hub."""
        self._charge(connection)

        def answer() -> None:
            self._discharge(connection)
            if not connection.closed:
                connection.answer(control.encode_sync(token, b"passed"))

        self.context.unsent.when_passed(answer)

    def _start_round_up(self) -> None:
        requests, self._requests = self._requests, []
        self._round_up = round_ = self._make_round(requests)
        if self.above is not None and not self.above.stands_apart:
            if self.above.ask(round_.token):
                round_.waiting.add(self.above)
            else:
                round_.partial.add(self.above)
        self.wake()
        self._check(round_)

    def sync_below(self, reply: Reply) -> None:
        """The hub above asks when all it told is in force below."""
        self._check(self._make_round([(None, reply)]))
        self.wake()

    def _make_round(self, requests: list[tuple[object, Reply]]) -> _Round:
        self._tokens += 1
        round_ = _Round(b"%x" % self._tokens, requests)
        self._rounds[round_.token] = round_
        for link in self.links.values():
            if link.lagging:
                round_.partial.add(link)
            elif link.is_served:
                link.ask(round_.token)
                round_.waiting.add(link)
        round_.timer = self.context.after(self.context.limits.sync_wait, lambda: self._time_out(round_))
        return round_

    def answered(self, token: bytes, who: Asked, partial: bool) -> None:
        """A hub beside this one answered a question."""
        round_ = self._rounds.get(token)
        if round_ is not None and who in round_.waiting:
            round_.waiting.discard(who)
            if partial:
                round_.partial.add(who)
            self._check(round_)

    def _time_out(self, round_: _Round) -> None:
        for who in round_.waiting:
            if isinstance(who, Link):
                who.lagging = True  # it keeps nobody waiting again until it has answered
        self._check(round_, anyway=True)

    def _check(self, round_: _Round, anyway: bool = False) -> None:
        if round_.reply(anyway) and self._rounds.pop(round_.token, None) is not None:
            self.context.cancel(round_.timer)
            if round_ is self._round_up:
                self._round_up = None
                if self._requests:
                    self._start_round_up()
        self.context.members.end_turn()

    # -- notices ------------------------------------------------------------------------------------

    def pass_notice(self, notice: control.Lost, origin: Link | None) -> None:
        """Messages were lost between two hubs: tell everybody here who asked for notices."""
        for connection in [client.outgoing for client in self.clients.connections.values()]:
            if origin is None or connection is not origin.connection:
                connection.notify(notice.encode())
        for inbox in list(self.clients.inboxes):
            inbox.notify(notice)
