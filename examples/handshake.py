"""Two processes make sure of each other over secret keys, which each can be read by one process only.

Try: sbus hub -a /tmp/bus
     and in two other terminals: SBUS_ADDRESS=/tmp/bus python examples/handshake.py answer
                                 SBUS_ADDRESS=/tmp/bus python examples/handshake.py ask
"""

import secrets
import sys

from sbuslib import blocking
from sbuslib.errors import NoHubError


def ask(client: blocking.Client) -> None:
    client.subscribe(client.credentials + b"/")
    client.publish(b"handshake/hello", client.credentials)
    try:
        # Only the process with our credentials, as the kernel tells them to the hub, receives this.
        other = client.receive(timeout=5).payload
        challenge = secrets.token_hex(16).encode()
        client.publish(other + b"/challenge", challenge)
        answer = client.receive(timeout=5).payload
    except TimeoutError:
        sys.exit("nobody answers: start the other one first")
    if not secrets.compare_digest(answer, challenge):
        sys.exit("it is somebody else")
    print(f"the other one is {other.decode()}")


def answer(client: blocking.Client) -> None:
    client.subscribe(b"handshake/hello", client.credentials + b"/")
    print(f"waiting as {client.credentials.decode()}", flush=True)
    other = client.receive().payload
    client.publish(other + b"/credentials", client.credentials)
    challenge = client.receive(timeout=5)
    assert challenge.key == client.credentials + b"/challenge"
    client.publish(other + b"/answer", challenge.payload)
    print(f"answered {other.decode()}")


if __name__ == "__main__":
    roles = {"ask": ask, "answer": answer}
    if len(sys.argv) != 2 or sys.argv[1] not in roles:
        sys.exit(__doc__)
    try:
        with blocking.Client() as connected:
            roles[sys.argv[1]](connected)
    except NoHubError as error:
        sys.exit(str(error))
