"""Jobs that two workers share out: each is done by one of them, and one that fails is given again.

Try: sbus hub -a /tmp/bus
     export SBUS_ADDRESS=/tmp/bus
     and in another terminal: sbus queue --memory thumbs photo/
     and in a third: python examples/shared_queue.py
"""

import sys
from queue import SimpleQueue

from sbuslib import Job
from sbuslib.blocking import Client
from sbuslib.errors import NoHubError, NoServerError

PHOTOS = 10


def main() -> None:
    done = SimpleQueue[str]()

    def shrink(job: Job) -> None:
        if job.payload == b"7" and not job.again:
            raise OSError("the disk is slow today")
        done.put(f"photo {job.payload.decode()} is small now, at attempt {job.attempt}")

    with (
        Client() as client,
        client.queue("thumbs").work(shrink, prefetch=4),
        client.queue("thumbs").work(shrink, prefetch=4),
    ):
        client.queue("thumbs").submit_many([("photo/new", b"%d" % number) for number in range(PHOTOS)])
        print("all photos are accepted")
        for _ in range(PHOTOS):
            print(done.get())


if __name__ == "__main__":
    try:
        main()
    except NoServerError:
        sys.exit("start the queue: sbus queue --memory thumbs photo/")
    except NoHubError as error:
        sys.exit(str(error))
