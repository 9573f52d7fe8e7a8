"""A hub's place in a tree: the hubs below, the hub above, and what they have to know of each other.

The parts:

* :mod:`sbuslib.tree.interest` decides, without I/O, which patterns each link has to hold, and
  :mod:`sbuslib.tree.telling` which links have to be told something.
* :class:`sbuslib.tree.below.LinkBelow` is the link to one hub below, :class:`sbuslib.tree.above.LinkAbove` that to the
  hub above.
* :mod:`sbuslib.tree.instances` knows which hub is behind a link, and retires the old link of one that comes back.
* :mod:`sbuslib.tree.prefixes` knows which clients wait for the hub's prefix, and :mod:`sbuslib.tree.questions` which
  hubs have to answer before a ``hub/sync`` is answered.
* :class:`Tree` is the rest: it has the links and the path to the root.
* :class:`Above` is the hub above, as this module knows it. :class:`sbuslib.relay.Relay` joins the two.

A change of the wanted patterns is noted at once. In turns of the user who made the change
(:class:`~sbuslib.core.work.Work`), the tree finds out what it means for the links, and tells them. A change
that the hub above makes counts as one of the hub's own user.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Final, Protocol

from ..core.client_role import ClientRole
from ..core.connection import Connection
from ..core.context import Context
from ..core.members import Clients
from ..core.outgoing import Outgoing
from ..core.protocols import Receiver, Routes
from ..core.publisher import Publisher
from ..core.quotas import Account
from ..core.send_watcher import SEND_RETRY
from ..core.violations import Violations
from ..errors import PacketError, StateError
from ..statistics import LinkStatistics
from ..wire import control
from ..wire.packets import encode_control
from .below import LinkBelow, Mode
from .instances import Instances, Said
from .prefixes import Prefix
from .questions import Questions, Reply
from .settling import Settling
from .telling import Telling, Told

__all__ = ["LINKS_OF_A_USER", "STEPS_A_TURN", "Above", "Tree"]

ADDRESS_BYTES: Final = 256
"""Longest address of a hub below, in bytes: that of a socket in the file system has at most 108."""

LINKS_OF_A_USER: Final = 8
"""Links that a user who is not trusted may have. A user has a hub or two, and each link costs memory: it holds a
table of keys."""

STEPS_A_TURN: Final = 256
"""Steps, of some microseconds each, of one turn that works out a user's changes for the links: about a millisecond."""

TOLD_A_TURN: Final = 256
"""Changes that links are told in one such turn: about a millisecond, too."""


class Above(Told, Protocol):
    """The link to the hub above, as the tree knows it."""

    @property
    def settled(self) -> bool:
        """Whether it has joined, or has failed to join."""

    def ask(self, token: bytes) -> bool:
        """Ask the hub above to sync the rest of the tree; ``False`` when it cannot be asked."""

    @property
    def stands_apart(self) -> bool:
        """Whether it has not joined because the hub above is below this hub."""

    def is_sending(self) -> bool:
        """Whether something waits and can still be sent."""

    def statistics(self, receivers: Routes | None = None) -> LinkStatistics:
        """The link to it, which carries what has these receivers if it is one of them."""

    @property
    def up(self) -> Receiver | None:
        """What messages for it are routed to."""

    def pass_notice(self, notice: control.Lost | control.Away) -> None:
        """Tell it that messages were lost on their way up, between two hubs below it."""

    def close(self) -> None:
        """End it."""

    def abandon(self) -> None:
        """In the child of a fork: end it and send nothing."""


class Tree:
    """What one hub knows of the tree that it belongs to. Used in the hub's thread only."""

    client_role: ClientRole
    """Acts on what a link says as any client does. The hub sets this."""

    def __init__(self, context: Context, clients: Clients, relays: tuple[frozenset[int], frozenset[int]]) -> None:
        self.context = context
        self.clients = clients
        self.hub_id = secrets.token_hex(8).encode()
        """16 hexadecimal digits that no other hub has."""
        self._relay_users, self._relay_groups = relays
        context.on_senders = self._on_senders
        self.above: Above | None = None
        self.links: dict[Outgoing, LinkBelow] = {}
        self._links_of: Counter[int] = Counter()  # by user
        self.telling = Telling(context)
        self.dropped = Violations(context.limits.logged_breaches)
        """Packets that links should not have sent."""
        self.path: tuple[bytes, ...] = (self.hub_id,)
        self.settling = Settling(context, lambda: self.links.values(), lambda: self.prefix.is_known, self._settle)
        self.questions = Questions(self, context)
        self.prefix = Prefix(self.questions)
        self.instances = Instances(context, self._join)
        self._told_path: set[Outgoing] = set()
        self.addresses: dict[Outgoing, str] = {}
        """Where hubs below listen, as their relays say."""
        self._own: Account = context.quotas.account(os.getuid())
        self._full: dict[int, Account] = {}  # users whose changes wait for room on a link
        self._awake: set[int] = set()  # users who have changed something, and for whom a step is due
        self._started = False

    # -- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> None:
        """The hub listens."""
        self._started = True
        self.path = (self.hub_id,)
        self.context.router.namespace.prefix = b""
        self.settling.begin()

    def _settle(self) -> None:
        self.telling.mark(self._all_links())
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
        self._full.clear()
        self._awake.clear()
        self.telling.clear()
        self._told_path.clear()
        self.addresses.clear()
        self.questions.clear()
        self.prefix.clear()
        self.instances.clear()

    @property
    def has_settled(self) -> bool:
        """Whether this hub, which was started a while ago, knows what is wanted."""
        return self.settling.done

    def told_all(self) -> None:
        """A link has told all that is wanted below it."""
        self.settling.check()

    def is_sending(self) -> bool:
        """Whether something for the hub above waits and can still be sent."""
        return self.above is not None and self.above.is_sending()

    def _everybody(self) -> list[Outgoing]:
        """All clients, and links."""
        return [connection.outgoing for connection in self.clients.connections.values()]

    # -- links below --------------------------------------------------------------------------------

    def add_link(self, publisher: Publisher, said: bytes) -> None:
        """A client said ``interest/on``: answer in which mode it is served, and begin, once its old link has ended.

        Any client may say so. A client that must not learn what others want gets no link. The hub only tells it when
        the path to the root changes, so that loops are found. Raises :exc:`~sbuslib.errors.PacketError` where a user
        who is not trusted has as many links as it may.

        :param said: who the hub of this client is, see :mod:`sbuslib.tree.instances`.
        """
        if publisher.outgoing in self._told_path:
            return
        self._told_path.add(publisher.outgoing)
        decoded = Said.decode(said)
        if publisher.outgoing.credentials.uid in self.context.trusted:
            self.settling.note_link(decoded.links if decoded is not None else 0)
        if self.instances.arrive(publisher, decoded):
            self._join(publisher)

    def _join(self, publisher: Publisher) -> None:
        connection = publisher.outgoing
        mode: Mode = "plain"
        if connection.credentials.uid in self.context.trusted:
            mode = "announce"
        elif self._may_relay(connection):
            mode = "prune"
            if self._links_of[connection.account.uid] >= LINKS_OF_A_USER:
                raise PacketError("too many links")
        connection.answer(encode_control(control.INTEREST_ON, mode.encode()))
        if mode == "plain":
            return
        self._links_of[connection.account.uid] += 1
        link = self.links[connection] = LinkBelow(self, publisher, mode)
        self.settling.links_changed()
        self._watch()
        if mode == "announce":
            link.reader = self.telling.announce_to(link)
        else:
            self.telling.prune(link)
        self.wake(connection.account)

    def note_address(self, client: Outgoing, address: bytes) -> None:
        """The relay of a hub below says where its hub listens. It may say anything: this is only told to others."""
        if client in self._told_path and len(address) <= ADDRESS_BYTES:
            self.addresses[client] = address.decode(errors="replace")

    def relays(self) -> list[Connection]:
        """The relays of hubs below, in whatever mode."""
        return [self.clients.connections[client] for client in self._told_path]

    def set_relays(self, users: frozenset[int], groups: frozenset[int]) -> None:
        """From now on the relays of these users may join. A link that may learn less now has to join again."""
        self._relay_users, self._relay_groups = users, groups
        for connection, link in list(self.links.items()):
            trusted = connection.credentials.uid in self.context.trusted
            if not trusted and (link.trusted or not self._may_relay(connection)):
                self.clients.kick(connection, "relay may learn less now")

    def _may_relay(self, client: Outgoing) -> bool:
        """Whether a client's user may join hubs to this one in mode ``prune``."""
        if client.credentials.uid in self._relay_users:
            return True
        return bool(self._relay_groups) and not self._relay_groups.isdisjoint(self.clients.groups_of(client))

    def forget(self, connection: Outgoing) -> None:
        """A client has left."""
        self._told_path.discard(connection)
        self.instances.forget(connection)
        self.addresses.pop(connection, None)
        link = self.links.pop(connection, None)
        if link is not None:
            link.narrowed.close()
            self._links_of -= Counter([connection.account.uid])
            self._watch()
            self.telling.forget(link)
            self.wake(connection.account)
            self.settling.links_changed()
        self.prefix.forget(connection)
        self.questions.forget(connection, link, connection.account.uid)

    # -- the hub above ------------------------------------------------------------------------------

    def attach(self, above: Above) -> None:
        """A relay begins. Raises :exc:`~sbuslib.errors.StateError` if the hub has one already."""
        if self.above is not None:
            raise StateError(f"the hub at {self.context.address()} has a relay already: one relay a hub")
        self.above = above
        self.prefix.expect()
        self._watch()
        self.context.after(self.context.limits.prefix_wait, self._settle_prefix)

    def detach(self) -> None:
        """The relay has ended for good: this hub is a root again."""
        self.above = None
        self._watch()
        self.set_path(())
        if self._started:
            self.set_prefix(b"")

    def _watch(self) -> None:
        self.context.router.watch = self._on_want if self.links or self.above is not None else None

    def _on_want(self, subscriber: Receiver, account: Account, pattern: bytes, wanted: bool) -> None:
        """A client here began or ceased to hold a pattern: tell the hub above and all other links."""
        self.telling.watch(subscriber, pattern, wanted, account.uid)
        if self.telling.has_work(account.uid):
            self.wake(account)

    def want_again(self, key: bytes) -> None:
        """The hub above may want a key again that it had pruned: those below may have been told not to send it."""
        self.telling.pruning.want(key, self._own.uid)
        self.wake()

    # -- what is told -------------------------------------------------------------------------------

    def wake(self, account: Account | None = None) -> None:
        """Tell others what a user has changed, in later turns; ``None``: the hub itself has."""
        account = account if account is not None else self._own
        if self._started and account.uid not in self._awake:
            self._awake.add(account.uid)
            self.context.work.add(account.uid, self._tell(account))

    def _tell(self, account: Account) -> Iterator[None]:
        """Work on a user's changes, and tell the links."""
        while True:
            self._awake.discard(account.uid)
            more = self.telling.work(STEPS_A_TURN, account.uid)
            more = self.telling.tell(TOLD_A_TURN) or more
            if self.telling.is_full:
                self._wait_for_room(account)
            if not more or account.uid in self._awake:
                return  # woken meanwhile, it goes on as a job of its own
            self._awake.add(account.uid)
            yield

    def do_later(self, job: Iterator[None]) -> None:
        """Do something in small steps, in turns of the hub's own user."""
        self.context.work.add(self._own.uid, job)
        self.wake()

    def _wait_for_room(self, account: Account) -> None:
        if not self._full:
            self.context.after(SEND_RETRY, self._try_again)
        self._full[account.uid] = account

    def _try_again(self) -> None:
        self.telling.try_again()
        full, self._full = self._full, {}
        for account in full.values():
            self.wake(account)

    # -- senders ------------------------------------------------------------------------------------

    def _on_senders(self) -> None:
        """Somebody wants messages with their sender, or nobody does any more: for some link, or for all."""
        self.telling.mark(self._all_links())
        self.wake()  # told only as often as there is room: a client that turns senders on and off floods no link

    def _all_links(self) -> list[Told]:
        """The links to the hubs below, and to the hub above."""
        return [*self.links.values(), *([self.above] if self.above is not None else [])]

    def features(self) -> bytes:
        """What this hub answers to ``hub/features``."""
        separator = self.context.router.namespace.separator
        return control.Features(frozenset(control.SUPPORTED), self.hub_id, self.path, separator).encode()

    # -- path ---------------------------------------------------------------------------------------

    def set_path(self, above: tuple[bytes, ...]) -> None:
        """Above this hub, the path to the root is ``above``: tell the relays below."""
        path = (self.hub_id, *above)
        if path == self.path:
            return
        self.path = path
        packet = encode_control(control.FEATURES, self.features())
        for connection in list(self._told_path):
            connection.answer(packet)

    def joined(self) -> None:
        """The relay has joined, or has failed to: answer the clients that asked about the path."""
        self.questions.joined()

    # -- prefix -------------------------------------------------------------------------------------

    def whoami(self, connection: Outgoing) -> None:
        """Answer a ``whoami``, once the first prefix is known."""
        self.prefix.whoami(connection)

    def _settle_prefix(self) -> None:
        if not self.prefix.is_known:
            self.settling.begin_quiet()  # clients that come back have waited for this
        self.prefix.settle()

    def set_prefix(self, prefix: bytes) -> None:
        """Credential keys of this hub's clients begin with ``prefix`` from now on.

        Keys under another prefix may be those of other clients now, so subscriptions to them are taken back. Clients
        that asked for notices are told their new key and can subscribe again; other clients are disconnected.
        """
        router = self.context.router
        changed = router.namespace.prefix != prefix
        router.namespace.prefix = prefix
        if changed:
            for link in self.links.values():
                link.prefix_changed()
            router.reconsider_all()
            for connection in self._everybody():
                held = router.forget_secrets(connection, connection.account)
                if connection.wants_notices:
                    connection.answer(control.NewCredentials(connection.key).encode())
                elif held:
                    self.context.members.close(connection, "the prefix of its secrets changed")
            for inbox in list(self.clients.inboxes):
                if router.forget_secrets(inbox, inbox.account):
                    inbox.close()
        self._settle_prefix()

    def sync(self, connection: Outgoing, token: bytes, scope: bytes) -> None:
        """Answer a ``hub/sync``, at once or when the rest of the tree has answered."""
        self.questions.sync(connection, self.links.get(connection), connection.account.uid, token, scope)

    def answered(self, token: bytes, who: object, scope: bytes) -> None:
        """A hub below or above answered a question."""
        self.questions.answered(token, who, scope)

    def sync_below(self, reply: Reply) -> None:
        """The hub above asks to be told when all that it said is in force below."""
        self.questions.sync_below(reply, self._own.uid)

    # -- notices ------------------------------------------------------------------------------------

    def pass_notice(self, notice: control.Lost | control.Away, origin: Receiver | None) -> None:
        """Messages were lost between two hubs: tell the clients that asked for notices, and all hubs but ``origin``."""
        for connection in self._everybody():
            if connection is not origin:
                connection.notify(notice.encode())
        for inbox in list(self.clients.inboxes):
            inbox.notify(notice)
        if self.above is not None and self.above.up is not origin:
            self.above.pass_notice(notice)
