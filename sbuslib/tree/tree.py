"""A hub's part of a tree: its children, its parent, and what passes between them.

The parts:

* :mod:`sbuslib.tree.interest` decides, without I/O, which patterns each link has to hold,
  :mod:`sbuslib.tree.pruning` which keys one that must not learn these need not send, and
  :mod:`sbuslib.tree.propagation` announces interest, in turns of the users.
* :class:`sbuslib.tree.child_link.ChildLink` is the link to one child, :class:`sbuslib.tree.parent_link.ParentLink`
  that to the parent, and :class:`sbuslib.tree.parent.Parent` outlives it.
* :mod:`sbuslib.tree.loss_reports` has the losses of all hubs of the tree, and reports them.
* :mod:`sbuslib.tree.hub_identities` has the identity of the hub behind a link, and retires the old link of one that
comes back.
* :mod:`sbuslib.tree.tree_sync` has the clients that wait for an answer, and the hubs that have to answer before.
* :class:`Tree` is the rest: it has the links to children and the path to the root. :class:`sbuslib.relay.Relay` gives
  it the parent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from time import monotonic
from typing import Final

import msgspec
from gevent.event import Event

from ..core.clients import Clients
from ..core.connection import Connection
from ..core.context import Context
from ..core.outbound import Outbound
from ..core.protocols import Receiver, Routes
from ..core.publisher import Publisher
from ..errors import PacketError, StateError
from ..reasons import Reason
from ..statistics import ExplainedLink, LinkPage, LinkStatistics
from ..wire import control
from ..wire.packets import encode_control
from .child_link import ChildLink, PlainLink
from .hub_identities import Hello, HubIdentities
from .link import Mode
from .link_context import LinkContext
from .link_interfaces import ParentPort
from .presences import PARENT
from .remote_senders import ChildSenders
from .tree_sync import Respond

ADDRESS_BYTES: Final = 256
"""Longest address of a child, in bytes: that of a socket in the file system has at most 108."""

LINKS_OF_A_USER: Final = 8
"""Links that a user who is not trusted may have. A user has a hub or two, and each link costs memory: it holds a
table of keys."""


class Tree(LinkContext):
    """A hub's part of the tree that it belongs to. Used in the hub's thread only."""

    def __init__(self, context: Context, clients: Clients, relays: tuple[frozenset[int], frozenset[int]]) -> None:
        self.links: dict[Outbound, ChildLink] = {}  # to children; those in mode "plain" have none
        super().__init__(context, clients, self.links)
        self.path: tuple[bytes, ...] = (self.hub_id,)
        """The hubs from this one to the root."""
        self.hub_identities = HubIdentities(context, clients, self._join)  # which hub is behind which relay
        self.addresses: dict[Outbound, str] = {}
        """Where children listen, as their relays say."""
        self._relay_users, self._relay_groups = relays  # of whom hubs may join in mode "prune"
        self._links_of: Counter[int] = Counter()  # by user
        #: The relays of children, in any mode, and the senders behind them.
        self._child_senders: dict[Outbound, ChildSenders] = {}
        self._linked_users: set[int] = set()  # who had links: all were named, by themselves or by a group
        context.events.named.append(lambda uid: uid in self._relay_users or uid in self._linked_users)
        self._all_left: Event | None = None  # set once no hub is below any more, while all have to leave

    # -- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> None:
        """The hub listens."""
        self.propagation.start()
        self.path = (self.hub_id,)
        self._all_left = None
        self.loss_reports.hurry(False)
        self.context.router.namespace.prefix = b""
        self.startup_barrier.begin()

    def stop(self) -> None:
        """The hub stops."""
        self.propagation.stop()
        if self.parent is not None:
            self.parent.relay.stop()
        self._forget_all()

    def abandon(self) -> None:
        """In the child of a fork."""
        self.propagation.stop()
        if self.parent is not None:
            self.parent.abandon()
            self.parent = None
        self._forget_all()

    def leave_all(self, timeout: float) -> bool:
        """Have all links end in good order, those below first, and let none join until :meth:`join_again`.

        Each end sends what waits for the other, and has it acknowledged: nothing is lost, and nothing uncertain. Waits
        for at most ``timeout`` seconds, in a greenlet; then it disconnects those that have not left. Returns whether
        all have.
        """
        deadline = monotonic() + timeout
        self._all_left = Event()
        self.loss_reports.hurry(True)
        for client in self._child_senders:
            client.answer(encode_control(control.INTEREST_LEAVE))
        left = not self._child_senders or self._all_left.wait(timeout)
        for client in list(self._child_senders):
            self.clients.close(client, "it did not leave in time")
        if self.parent is not None:
            left = self.parent.relay.leave(max(0.0, deadline - monotonic())) and left
        return left

    def join_again(self) -> None:
        """Links may join again after :meth:`leave_all`."""
        self._all_left = None
        self.loss_reports.hurry(False)
        if self.parent is not None:
            self.parent.relay.join_again()

    def _forget_all(self) -> None:
        self.presences.clear()
        self.questions.clear()
        self.hub_identities.clear()
        self.addresses.clear()
        self._child_senders.clear()

    def is_sending(self) -> bool:
        """Whether something for the parent waits and can still be sent."""
        return self.parent is not None and self.parent.is_sending()

    @property
    def has_relay(self) -> bool:
        """Whether a relay joins this hub to one above."""
        return self.parent is not None

    # -- links to children --------------------------------------------------------------------------------

    def add_link(self, publisher: Publisher, said: bytes) -> None:
        """Act on ``interest/on``: answer in which mode the client is served, and begin, once its old link has ended.

        Any client may send that. A client that must not learn the interest of others gets no link. The hub only sends
        it changes of the path to the root, so that loops are found. Raises :exc:`~sbuslib.errors.PacketError` where a
        user who is not trusted has as many links as it may.

        :param said: the hello of this client's hub, see :mod:`sbuslib.tree.hub_identities`.
        """
        if publisher.outbound in self._child_senders:
            return
        if self._all_left is not None:
            self.context.running.kick_later(publisher.outbound, Reason.NO_LINKS_NOW)
            return
        self._child_senders[publisher.outbound] = ChildSenders(publisher.outbound, self.context.router.namespace)
        decoded = Hello.decode(said)
        if publisher.outbound.credentials.uid in self.context.trusted:
            self.startup_barrier.note_link(decoded.links if decoded is not None else 0)
        if self.hub_identities.arrive(publisher, decoded):
            self._join(publisher)

    def _join(self, publisher: Publisher) -> None:
        client = publisher.outbound
        mode: Mode = "plain"
        if client.credentials.uid in self.context.trusted:
            mode = "announce"
        elif self._may_relay(client):
            mode = "prune"
            if self._links_of[client.account.uid] >= LINKS_OF_A_USER:
                raise PacketError(Reason.TOO_MANY_LINKS)

        # Before it sends anything, it is asked for the senders: they are never counted, and never taken back.
        client.answer(encode_control(control.SENDERS_ON), encode_control(control.INTEREST_ON, mode.encode()))
        behind = self._child_senders[client]
        if mode == "plain":
            PlainLink(publisher, behind)
            return
        self._links_of[client.account.uid] += 1
        hub = self.hub_identities.hub_of(client) or publisher
        words = self.hub_identities.words_of(client)
        self.links[client] = ChildLink(self, publisher, mode, behind, hub, words)
        self.startup_barrier.links_changed()
        self.propagation.wake(client.account.uid)

    def note_address(self, client: Outbound, address: bytes) -> None:
        """Note the address at which a child listens. It may claim any: the address is only shown to others."""
        if client in self._child_senders and len(address) <= ADDRESS_BYTES:
            self.addresses[client] = address.decode(errors="replace")

    def relays(self) -> list[Connection]:
        """The relays of children, in any mode."""
        return [self.clients.connections[client] for client in self._child_senders]

    def set_relays(self, users: frozenset[int], groups: frozenset[int]) -> None:
        """From now on the relays of these users may join. A link that may learn less now has to join anew."""
        self._relay_users, self._relay_groups = users, groups
        for client, link in list(self.links.items()):
            trusted = client.credentials.uid in self.context.trusted
            if not trusted and (link.trusted or not self._may_relay(client)):
                self.clients.kick(client, Reason.JOIN_ANEW)

    def _may_relay(self, client: Outbound) -> bool:
        """Whether a client's user may join hubs to this one in mode ``prune``."""
        if client.credentials.uid in self._relay_users:
            return True
        return bool(self._relay_groups) and not self._relay_groups.isdisjoint(self.clients.groups_of(client))

    def forget(self, client: Outbound) -> None:
        """A client has left."""
        self.watches.forget(client)
        self.presences.forget(client)
        self._child_senders.pop(client, None)
        if self._all_left is not None and not self._child_senders:
            self._all_left.set()

        # A child that has sent its hello may come back.
        is_nobody = self.hub_identities.hub_of(client) is None
        self.hub_identities.forget(client)
        self.addresses.pop(client, None)
        link = self.links.pop(client, None)
        if link is not None:
            link.questions.close()
            self._links_of -= Counter([client.account.uid])
            self.propagation.forget(link)
            self.presences.end_link(client, for_good=is_nobody)
            self.propagation.wake(client.account.uid)
            self.startup_barrier.links_changed()
        self.questions.forget(client, link, client.account.uid)

    # -- the parent ------------------------------------------------------------------------------

    def attach(self, parent: ParentPort) -> None:
        """A relay begins. Raises :exc:`~sbuslib.errors.StateError` if the hub has one already."""
        if self.parent is not None:
            raise StateError(f"the hub at {self.context.address()} has a relay already: one relay a hub")
        self.parent = parent
        self.questions.knows_prefix = False
        self.context.running.after(self.context.limits.prefix_wait, self._note_prefix)

    def detach(self) -> None:
        """The relay has ended for good: this hub is a root again."""
        self.parent = None
        self.presences.give_up(PARENT)
        self.set_path(())
        if self.propagation.started:
            self.set_prefix(b"")

    def features(self) -> bytes:
        """The answer of this hub to ``hub/features``."""
        separator = self.context.router.namespace.separator
        return control.Features(frozenset(control.SUPPORTED), self.hub_id, self.path, separator).encode()

    def set_path(self, parent: tuple[bytes, ...]) -> None:
        """Set the path from the parent to the root, and announce it to the relays of children."""
        path = (self.hub_id, *parent)
        if path == self.path:
            return
        self.path = path
        packet = encode_control(control.FEATURES, self.features())
        for client in list(self._child_senders):
            client.answer(packet)

    def set_prefix(self, prefix: bytes) -> None:
        """Credential keys of this hub's clients begin with ``prefix`` from now on.

        Keys under another prefix may be those of other clients now, so subscriptions to them end. Clients that asked
        for notices are sent their new key and can subscribe again; other clients are disconnected.
        """
        router = self.context.router
        changed = router.namespace.prefix != prefix
        router.namespace.prefix = prefix

        # The secrets of now may be those of others.
        if changed:
            for behind in self._child_senders.values():
                behind.prefix_changed()
            self.presences.names_changed()
            router.reconsider_all()
            for client in self.everybody():
                held = router.forget_secrets(client, client.account)
                if client.wants_notices:
                    client.answer(control.NewCredentials(client.key).encode())
                elif held:
                    self.clients.close(client, "the prefix of its secrets changed")
            for inbox in list(self.clients.inboxes):
                if router.forget_secrets(inbox, inbox.account):
                    inbox.unsubscribe()
        self._note_prefix()

    def _note_prefix(self) -> None:
        """The prefix is known, or nobody waits for it any more."""
        if not self.questions.knows_prefix:
            self.startup_barrier.begin_quiet()  # clients that come back have waited for this
        self.questions.note_prefix()

    # -- questions ----------------------------------------------------------------------------------

    def whoami(self, client: Outbound) -> None:
        """Answer a ``whoami``, once the first prefix is known."""
        self.questions.whoami(client)

    def sync(self, client: Outbound, token: bytes, scope: bytes) -> None:
        """Answer a ``hub/sync``, at once or when the rest of the tree has answered."""
        self.questions.sync(client, self.links.get(client), client.account.uid, token, scope)

    def sync_children(self, reply: Respond) -> None:
        """The parent asks when its announcements are in force below."""
        self.questions.sync_children(reply, self.propagation.own)

    # -- statistics ---------------------------------------------------------------------------------

    def link_page(self, start: int, most: int | None) -> LinkPage:
        """Up to ``most`` links from a number on; the link to the parent has the number 0."""
        parent = [self.parent.statistics()] if self.parent is not None and not start else []
        connections = [connection for connection in self.relays() if connection.number >= start]
        connections.sort(key=lambda connection: connection.number)
        count = len(connections) if most is None else most
        children = [self._statistics_of(connection) for connection in connections[:count]]
        following = connections[count].number if len(connections) > count else None
        return LinkPage(links=(*parent, *children), next=following)

    # -- what becomes of a message ------------------------------------------------------------------

    @property
    def link_count(self) -> int:
        """How many links there are."""
        return len(self._child_senders) + (self.parent is not None)

    def is_link(self, receiver: Receiver) -> bool:
        """Whether this stands for another hub among receivers."""
        return receiver in self._child_senders or (self.parent is not None and receiver is self.parent.up)

    def arrival(self, key: bytes) -> tuple[Publisher, Receiver, bool] | None:
        """The link to the parent, what stands for it among receivers, and whether a key may come down over it."""
        if self.parent is None or self.parent.joined is None:
            return None
        return self.parent.joined.publisher, self.parent.up, self.parent.may_import(key)

    def explain_links(
        self, key: bytes, receivers: Routes, sender: Publisher | None, uid: int, origin: Receiver | None
    ) -> Iterator[ExplainedLink]:
        """Explain the outcome of a message of this user for these receivers, on each link but the one it comes from.

        That to the parent comes first, then those that carry it.
        """
        found, allows = frozenset(receivers), self.context.authorization.allows
        is_secret = self.context.router.namespace.is_secret(key)
        if self.parent is not None and self.parent.up is not origin:
            yield self.parent.explain(key, self.parent.up in found)
        for connection in sorted(self.relays(), key=lambda one: (one.outbound not in found, one.number)):
            outbound = connection.outbound
            if outbound is origin:
                continue

            # The outcome of the message there, or the reason if it does not go there.
            told = ExplainedLink(link=self._statistics_of(connection), carries=outbound in found)
            if told.carries:
                outcome, cause = outbound.foresee(sender, uid, len(key))
                yield msgspec.structs.replace(told, outcome=outcome, cause=cause)
            else:
                may_read = is_secret or allows(outbound.account, outbound.credentials, "subscribe", key)
                reason = "secret" if is_secret else "unwanted" if may_read else "rules"
                yield msgspec.structs.replace(told, reason=reason)

    def _statistics_of(self, connection: Connection) -> LinkStatistics:
        outbound = connection.outbound
        link = self.links.get(outbound)
        lost = dict[str, int](outbound.lost)
        instance, epoch = self.hub_identities.said_by(outbound)

        # A relay in mode "plain" has no link.
        uncertain, lag, lagging = 0, 0.0, False
        if link is not None:
            lag = link.questions.lag
            lagging = link.lagging or lag > self.context.limits.sync_wait
            uncertain = link.lost[control.UNCERTAIN]
            lost |= {cause: count for cause, count in link.lost.items() if cause != control.UNCERTAIN}
        return LinkStatistics(
            direction="child",
            number=connection.number,
            uid=connection.credentials.uid,
            pid=connection.credentials.pid,
            credentials=outbound.key.decode(),
            hub=instance.decode(),
            address=self.addresses.get(outbound, ""),
            state="lagging" if lagging else "joined",
            epoch=epoch,
            mode=link.mode if link is not None else "plain",
            patterns=self.context.router.count(outbound),
            pruned=link.pruned if link is not None else 0,
            up=connection.received,
            down=outbound.delivered,
            waiting=outbound.queued,
            lost=lost,
            uncertain=uncertain,
            lag=lag,
            dropped={} if link is None else dict(link.dropped),
        )
