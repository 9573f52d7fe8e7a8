"""What a watch of presences says when a hub lists all anew."""

from __future__ import annotations

from sbuslib.clients.watching import PresenceWatch, Present, Watching
from sbuslib.wire.presence import PRESENCE_ADD, PRESENCE_BEGIN, PRESENCE_COMPLETE, Added

MEMBER = Present(b"a", b"info", b"!/cred/1/2/3")
OTHER = Present(b"a", b"other", b"!/cred/1/2/4")


def changes(watch: PresenceWatch) -> list[tuple[Present, bool]]:
    """The events that wait, without their causes."""
    events = [(event.member, event.came) for event in watch.events]
    watch.events.clear()
    return events


def known(*members: Present) -> PresenceWatch:
    """A watch whose hub has listed these, by number."""
    watch = PresenceWatch(b"a")
    watch.begin(b"hub")
    for number, member in enumerate(members):
        watch.add((b"hub", b"%d" % number), member)
    watch.complete(b"tree")
    assert changes(watch) == []
    return watch


def test_a_client_that_reconnected_goes_before_it_comes() -> None:
    watch = known(MEMBER)
    watch.begin(b"hub")
    watch.add((b"hub", b"7"), MEMBER)
    watch.complete(b"tree")
    assert changes(watch) == [(MEMBER, False), (MEMBER, True)]
    assert list(watch.members.values()) == [MEMBER]


def test_one_that_comes_and_goes_within_a_list_is_no_event() -> None:
    watch = known(MEMBER)
    watch.begin(b"hub")
    watch.add((b"hub", b"0"), MEMBER)
    watch.add((b"hub", b"7"), OTHER)
    watch.remove((b"hub", b"7"), "ended")
    watch.complete(b"tree")
    assert changes(watch) == []


def test_what_a_list_that_was_cut_off_had_is_told_by_the_next() -> None:
    watch = known(MEMBER)
    watch.begin(b"hub")
    watch.add((b"hub", b"7"), OTHER)
    watch.begin(b"hub")  # over another connection
    watch.add((b"hub", b"0"), MEMBER)
    watch.add((b"hub", b"7"), OTHER)
    watch.complete(b"tree")
    assert changes(watch) == [(OTHER, True)]


def test_a_list_that_is_refused_has_ended_all() -> None:
    watch = known(MEMBER)
    watch.begin(b"hub")
    watch.complete(b"refused")
    assert changes(watch) == [(MEMBER, False)]


def test_a_list_of_another_watch_comes_before_that_of_this_one() -> None:
    watching, one, other = Watching(), known(MEMBER), known(MEMBER)
    for watch in (one, other):
        watching.begin(watch)
    other.pattern = b"*"
    watching.restore()
    added = Added(b"7", MEMBER.sender, MEMBER.key, MEMBER.info).encode().split(b"\0", 1)[1]
    for pattern in (b"a", b"*"):
        watching.take(PRESENCE_BEGIN, pattern, b"next", b"/")
        watching.take(PRESENCE_ADD, added, b"next", b"/")
        watching.take(PRESENCE_COMPLETE, b"tree\0" + pattern, b"next", b"/")
    assert changes(one) == changes(other) == [(MEMBER, False), (MEMBER, True)]


def test_a_list_is_whole_or_partial_as_the_hub_says_later() -> None:
    watch = known(MEMBER)
    for scope in (b"partial", b"tree"):
        watch.complete(scope)
        assert (watch.is_whole, changes(watch)) == (scope == b"tree", [])


def test_a_watch_is_not_known_by_the_end_of_a_list_of_another() -> None:
    watch = PresenceWatch(b"")
    watch.complete(b"tree")  # the hub knows more now: that is for one that began before
    assert not watch.is_known
    watch.begin(b"hub")
    watch.complete(b"partial")
    assert (watch.is_known, watch.is_whole) == (True, False)
