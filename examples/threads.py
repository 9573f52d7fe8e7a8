"""A program without gevent: threads share one blocking client.

Try: sbus hub -a /tmp/bus
     and in another terminal: SBUS_ADDRESS=/tmp/bus python examples/threads.py
"""

import sys
import threading

from sbuslib import blocking
from sbuslib.errors import NoHubError

JOBS = 12


def work(client: blocking.Client, name: str) -> None:
    """Take jobs, whoever of the workers is free, until one says that it was the last."""
    for message in client:
        number = int(message.payload)
        if number == JOBS:
            client.close()  # wakes the other workers too, whose loops end
            return
        print(f"{name} does job {number}\n", end="")  # in one piece, so that lines of two threads stay apart


def main() -> None:
    try:
        client = blocking.Client()
    except NoHubError as error:
        sys.exit(str(error))
    with client, blocking.Client() as publisher:
        client.subscribe(b"jobs")
        workers = [threading.Thread(target=work, args=(client, f"worker {n}")) for n in range(3)]
        for worker in workers:
            worker.start()
        publisher.publish_many((b"jobs", b"%d" % number) for number in range(JOBS + 1))
        for worker in workers:
            worker.join()
    assert "gevent" not in sys.modules
    print("all done, without gevent")


if __name__ == "__main__":
    main()
