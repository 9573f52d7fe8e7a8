"""A program without gevent: threads share one blocking client, and one subscription.

Try: sbus hub -a /tmp/bus
     and in another terminal: SBUS_ADDRESS=/tmp/bus python examples/threads.py
"""

import sys
import threading

from sbuslib import Subscription
from sbuslib.blocking import Client
from sbuslib.errors import NoHubError

JOBS = 12


def work(jobs: Subscription, name: str) -> None:
    """Take jobs, whoever of the workers is free, until one says that it was the last."""
    for message in jobs:
        number = int(message.payload)
        if number == JOBS:
            jobs.unsubscribe()  # ends the loops of the other workers, too
            return
        print(f"{name} does job {number}\n", end="")  # in one piece, so that lines of two threads stay apart


def main() -> None:
    with Client() as client, client.subscribe("jobs") as jobs:
        workers = [threading.Thread(target=work, args=(jobs, f"worker {n}")) for n in range(3)]
        for worker in workers:
            worker.start()
        client.publish_many(("jobs", b"%d" % number) for number in range(JOBS + 1))
        for worker in workers:
            worker.join()
    assert "gevent" not in sys.modules
    print("all done, without gevent")


if __name__ == "__main__":
    try:
        main()
    except NoHubError as error:
        sys.exit(str(error))
