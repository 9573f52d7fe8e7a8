"""The last message of a key for a program that comes later, and a file of any size.

Try: sbus hub -a /tmp/bus & sbus retain -a /tmp/bus config/ & python examples/last_and_large.py /tmp/bus
"""

import sys
import threading

from sbuslib import CaughtUp, blocking
from sbuslib.errors import NoHubError, NoServerError


def follow(address: str) -> None:
    with blocking.Client(address) as client:
        client.publish(b"config/colour", b"blue")
        try:
            config = client.subscribe(b"config/", last=True)
        except NoServerError:
            print("nobody keeps last values here: sbus retain config/")
            return
        client.publish(b"config/colour", b"green")
        known = False
        for message in config:
            if isinstance(message, CaughtUp):
                known = True
                continue
            print("changed" if known else "stands", message.key.decode(), message.payload.decode())
            if known:
                return


def receive(address: str, ready: threading.Event) -> None:
    with blocking.Client(address) as client, client.receive_large(b"files/*") as files:
        ready.set()
        received = files.receive(timeout=20)
        with received.file as file:
            print("received", received.name, len(file.read()))


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else None
    try:
        client = blocking.Client(address)
    except NoHubError as error:
        sys.exit(str(error))
    with client:
        follow(client.address)
        ready = threading.Event()
        thread = threading.Thread(target=receive, args=(client.address, ready))
        thread.start()
        ready.wait()
        sent = client.send_large(b"files/mine", __file__)
        thread.join()
        print("sent to", sent.receivers)


main()
