"""A publisher and a subscriber in one gevent program, through a hub that runs elsewhere.

Try: sbus hub -a /tmp/bus
     and in another terminal: SBUS_ADDRESS=/tmp/bus python examples/publish_subscribe.py
"""

import sys

import gevent

from sbuslib import Client
from sbuslib.errors import NoHubError


def publish(rooms: int) -> None:
    with Client() as client:
        for room in range(1, rooms + 1):
            client.publish(f"room/{room}/temp", b"%.1f" % (20 + room / 2))
            client.publish(f"room/{room}/light", b"on")
        client.publish("done")


def main() -> None:
    with Client() as client, client.subscribe("room/*/temp", "done") as rooms:  # in force from here on
        publisher = gevent.spawn(publish, 3)
        for message in rooms:
            print(message.key.decode(), message.payload.decode())
            if message.key == b"done":
                break
        publisher.get()  # raises what went wrong in it


if __name__ == "__main__":
    try:
        main()
    except NoHubError as error:
        sys.exit(str(error))
