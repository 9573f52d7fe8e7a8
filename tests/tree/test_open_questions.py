"""What is asked of the hub at the other end of a link, and whose answer an answer is."""

from __future__ import annotations

import gevent
from support import PATIENCE, WHOAMI, FakeHub, eventually
from worlds import World

from sbuslib.tree.open_questions import OpenQuestions

OWN = WHOAMI + b"\0!/cred/1/2/3"


class Asked:
    """Open questions, and what was answered to them."""

    def __init__(self, *tokens: bytes) -> None:
        self.answers: list[tuple[bytes, bytes | None]] = []
        self.open = OpenQuestions()
        for token in tokens:
            self.ask(token)

    def ask(self, token: bytes) -> None:
        made = self.open.put(lambda says: self.answers.append((token, says)), b"")
        assert self.open.ask(made) == token


def test_answers_with_tokens_come_in_any_order() -> None:
    asked = Asked(b"1", b"2", b"3")
    assert asked.open.answer(b"2", b"tree")
    assert not asked.open.answer(b"2", b"tree")
    assert not asked.open.answer(b"unknown", b"tree")
    assert asked.open.answer(b"1", b"partial")
    assert asked.answers == [(b"2", b"tree"), (b"1", b"partial")]
    assert (len(asked.open), asked.open.lag > 0) == (1, True)


def test_nobody_counts_on_questions_before_one_that_was_answered() -> None:
    asked = Asked(b"1", b"2", b"3")
    asked.open.forget_before(b"unknown")
    asked.open.forget_before(b"2")
    later = asked.open.put(lambda says: asked.answers.append((b"later", says)))
    assert asked.open.take_back(asked.open.put(lambda says: None))
    assert (len(asked.open), asked.open.waiting, asked.open.answer(later, b"tree")) == (3, 1, False)
    asked.open.close()
    asked.open.close()
    assert asked.answers == [(b"2", None), (b"3", None), (b"later", None)], "the link has ended"


def test_below_a_plain_daemon_a_sync_waits_until_the_daemon_has_acted(world: World) -> None:
    with FakeHub(world.address("top")) as daemon:
        world.hub("left")
        relay = world.relay("left", "top", wait=False)
        link = daemon.accept_relay()
        relay.wait(PATIENCE)
        client = world.client("left")
        client.publish(b"k", b"1")
        assert link.receive() == b"MSG k\x001"
        assert link.receive() == WHOAMI + b"\0"
        client.subscribe(b"k")
        asked = gevent.spawn(client.sync, "tree")
        assert link.receive() == b"SUB k"
        assert link.receive() == WHOAMI + b"\0"
        link.send(OWN)
        eventually(lambda: relay.parent.up.acknowledged == 1)
        assert not asked.ready(), "that was the acknowledgement"
        link.send(OWN)
        assert asked.get(timeout=PATIENCE) == "tree"
