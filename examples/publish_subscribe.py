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
            client.publish(b"room/%d/temp" % room, b"%.1f" % (20 + room / 2))
            client.publish(b"room/%d/light" % room, b"on")
        client.publish(b"done")


def subscribe(client: Client) -> None:
    for message in client:
        print(message.key.decode(), message.payload.decode())
        if message.key == b"done":
            return


def main() -> None:
    try:
        with Client() as client:
            client.subscribe(b"room/*/temp", b"done")  # in force when this returns
            publisher = gevent.spawn(publish, 3)
            subscribe(client)
            publisher.get()  # raises what went wrong in it
    except NoHubError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
