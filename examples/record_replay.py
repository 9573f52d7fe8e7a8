"""Record what a bus carries, and play it back to another bus, ten times as fast.

Try: python examples/record_replay.py
"""

import os
import tempfile

import gevent

from sbuslib import Client, Hub
from sbuslib.journal.read.blocks import read_records
from sbuslib.journal.recorder import Recorder
from sbuslib.journal.replay import from_journal, replay


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = os.path.join(folder, "journal")
        with Hub(os.path.join(folder, "live")) as hub, Recorder(hub, journal) as recorder:
            with Client(hub.address) as thermometer:
                for celsius in (20.5, 21.0, 21.5):
                    thermometer.publish(b"room/1/temp", b"%.1f" % celsius)
                    thermometer.publish(thermometer.credentials + b"/note", b"secret: for one, and for no journal")
                    gevent.sleep(0.02)
                thermometer.sync()
            recorder.flush()
            while recorder.durable_sequence < 3:
                gevent.sleep(0.001)
            print("durable up to row", recorder.durable_sequence)

        for record in read_records(journal):
            print(record.sequence, record.key, record.payload, "of user", record.uid)

        with Hub(os.path.join(folder, "test")) as hub, Client(hub.address) as listener, Client(hub.address) as player:
            listener.subscribe(b"room/")
            done = replay(from_journal(journal), player, speed=10, wait=gevent.sleep)
            heard = [listener.receive(timeout=10).payload.decode() for _ in range(done.messages)]
            print("played back:", *heard)


if __name__ == "__main__":
    main()
