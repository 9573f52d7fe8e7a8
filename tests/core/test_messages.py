"""Messages on their way to receivers: what each kind says of itself."""

from __future__ import annotations

from sbuslib.core.messages import Copied
from sbuslib.kernel.packet_writer import PacketWriter


def test_copied_messages_say_how_short_the_shortest_is() -> None:
    messages = Copied(PacketWriter(), [b"333", b"22", b"4444"])
    assert [messages.shortest, messages.shortest] == [2, 2]
