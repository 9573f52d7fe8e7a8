"""Two processes make sure of each other over secret keys, which each can be read by one process only.

Try: sbus hub -a /tmp/bus
     and in two other terminals: SBUS_ADDRESS=/tmp/bus python examples/handshake.py answer
                                 SBUS_ADDRESS=/tmp/bus python examples/handshake.py ask
"""

import secrets
import sys

from sbuslib.blocking import Client
from sbuslib.errors import NoHubError


def ask(client: Client) -> None:
    with client.subscribe(client.credentials + b"/") as mine:
        client.publish("handshake/hello", client.credentials)
        try:
            # Only the process with our credentials, as the kernel tells them to the hub, receives this.
            other = mine.receive(timeout=5).payload
            challenge = secrets.token_hex(16).encode()
            client.publish(other + b"/challenge", challenge)
            answer = mine.receive(timeout=5).payload
        except TimeoutError:
            sys.exit("nobody answers: start the other one first")
    if not secrets.compare_digest(answer, challenge):
        sys.exit("it is somebody else")
    print(f"the other one is {other.decode()}")


def answer(client: Client) -> None:
    with client.subscribe("handshake/hello", client.credentials + b"/") as mine:
        print(f"waiting as {client.credentials.decode()}", flush=True)
        other = mine.receive().payload
        client.publish(other + b"/credentials", client.credentials)
        challenge = mine.receive(timeout=5)
        assert challenge.key == client.credentials + b"/challenge"
        client.publish(other + b"/answer", challenge.payload)
        print(f"answered {other.decode()}")


if __name__ == "__main__":
    roles = {"ask": ask, "answer": answer}
    if len(sys.argv) != 2 or sys.argv[1] not in roles:
        sys.exit(__doc__)
    try:
        with Client() as connected:
            roles[sys.argv[1]](connected)
    except NoHubError as error:
        sys.exit(str(error))
