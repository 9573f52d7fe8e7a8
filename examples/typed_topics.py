"""Payloads with a type: encoded and checked at both ends.

Try: sbus hub -a /tmp/bus
     and in another terminal: SBUS_ADDRESS=/tmp/bus python examples/typed_topics.py
"""

import sys
from typing import Annotated

import msgspec

from sbuslib import Client, Topic
from sbuslib.errors import NoHubError, PayloadError


class Reading(msgspec.Struct, frozen=True):
    """What a thermometer says."""

    celsius: Annotated[float, msgspec.Meta(ge=-273.15)]
    battery: float | None = None


READINGS = Topic(Reading, encoding="json")


def main() -> None:
    with Client() as client, client.subscribe("room/*/reading") as rooms:
        READINGS.publish(client, "room/1/reading", Reading(21.5))
        READINGS.publish(client, "room/2/reading", Reading(19, battery=0.8))
        try:
            READINGS.publish(client, "room/3/reading", Reading(-300))
        except PayloadError as error:
            print(f"not published: {error}")
        client.publish("room/4/reading", b'{"celsius": "warm"}')  # by a program that does not check
        for _ in range(3):
            message = rooms.receive(timeout=5)
            try:
                print(message.key.decode(), READINGS.decode(message.payload))
            except PayloadError as error:
                print(f"{message.key.decode()} ignored: {error}")


if __name__ == "__main__":
    try:
        main()
    except NoHubError as error:
        sys.exit(str(error))
