"""The last message of a key for a program that comes later, and a file of any size.

Try: sbus hub -a /tmp/bus & sbus retain -a /tmp/bus config/ & python examples/last_and_large.py /tmp/bus
"""

import sys
import threading

from sbuslib import CaughtUp, blocking
from sbuslib.errors import NoHubError, NoServerError


def follow(client: blocking.Client) -> None:
    client.publish("config/colour", b"blue")
    with client.subscribe("config/", last=True) as config:
        client.publish("config/colour", b"green")
        known = False
        for message in config:
            if isinstance(message, CaughtUp):
                known = True
                continue
            print("changed" if known else "stands", message.key.decode(), message.payload.decode())
            if known:
                return


def receive(address: str, ready: threading.Event) -> None:
    with blocking.Client(address) as client, client.files.receive(b"files/*") as files:
        ready.set()
        received = files.receive(timeout=20)
        with received.file as file:
            print("received", received.name, len(file.read()))


def main() -> None:
    with blocking.Client(sys.argv[1] if len(sys.argv) > 1 else None) as client:
        follow(client)
        ready = threading.Event()
        thread = threading.Thread(target=receive, args=(client.address, ready))
        thread.start()
        ready.wait()
        sent = client.files.send("files/mine", __file__)
        thread.join()
        print("sent to", sent.receivers)


try:
    main()
except NoServerError:
    sys.exit("nobody keeps last values here: sbus retain config/")
except NoHubError as error:
    sys.exit(str(error))
