"""Handshake of a relay with a parent: checks the parent's answers, and which of them end the link.

Everything here comes from another process, so it is checked, and bounded, before anything else sees it.
"""

from __future__ import annotations

from typing import Literal

from ..errors import PeerError
from ..secrets import Namespace
from ..wire import control
from ..wire.text import printable

_SHOWN = 80
"""Bytes of a wrong answer that are shown."""


class LinkError(PeerError):
    """This hub cannot join the parent, or the parent has gone."""


class ApartError(LinkError):
    """This hub has to stay apart from the parent, and is the root of its own tree.

    :param state: ``loop``: joining would put this hub above itself; ``deep``: the tree would be deeper than
        :attr:`~sbuslib.limits.Limits.path_hubs`.
    """

    def __init__(self, state: Literal["loop", "deep"], why: str) -> None:
        super().__init__(why)
        self.state = state


def check_features(features: control.Features, hub_id: bytes, separator: bytes, most: int) -> None:
    """Raise :exc:`LinkError` when the hub with ``hub_id`` and ``separator`` cannot join a hub with these features.

    :param most: how many hubs the path from a hub to its root may have.
    """
    if features.separator != separator:
        raise LinkError(f"its separator is {printable(features.separator)}, ours {printable(separator)}")
    if hub_id in features.path:
        raise ApartError("loop", "this hub is above that one: joining it would make a loop, so it stays apart")
    if len(features.path) >= most:
        count = len(features.path)
        raise ApartError(
            "deep", f"{count} hubs are above this one, and a path may have {most} (path_hubs): it stays apart"
        )


def check_key(key: bytes, namespace: Namespace) -> bytes:
    """Check a link's credential key from the parent. Raises :exc:`LinkError` when it is none."""
    if not namespace.chain(key):
        raise LinkError(f"its answer to whoami is no credential key: {printable(key[:_SHOWN])}")
    return key


def is_unknown(key: bytes, namespace: Namespace) -> bool:
    """Return whether the kernel could not give the parent all ids of our credential key: it is in other namespaces."""
    return None in namespace.chain(key)[-1].known()
