"""A hub inside a gevent application: the application is a client of it too, without a socket.

Try: python examples/embed.py
     It prints an address; from another terminal, where sbuslib is installed: sbus pub -a ADDRESS room/2/temp 19.0
"""

import os
import sys
import tempfile

import gevent

from sbuslib import Hub


def measure(hub: Hub) -> None:
    """The application's own work: it publishes what it measures."""
    for step in range(3):
        hub.publish(b"room/1/temp", b"%.1f" % (21 + step / 10))
        gevent.sleep(0.1)


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder, Hub(os.path.join(folder, "bus")) as hub:
        print(f"listening at {hub.address} for {seconds:g} seconds", flush=True)
        with hub.subscribe(b"room/*/temp") as inbox:
            gevent.spawn(measure, hub)
            gevent.spawn_later(seconds, inbox.unsubscribe)
            for message in inbox:
                assert message.sender is not None
                print(
                    f"{message.key.decode()} is {message.payload.decode()}, says {message.sender.decode()}", flush=True
                )
        print(hub.statistics())


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
