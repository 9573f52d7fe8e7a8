"""The child of a fork uses nothing of the journal of its parent, which is a process of its own with no other thread."""

from __future__ import annotations

from journal.format.journals import EXAMPLE, records_of, write
from support import python

CHILD = """
import os, sys
def fork(work):
    child = os.fork()
    if child == 0:
        try:
            os._exit(work())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
folder = sys.argv[1]
"""


def test_the_child_of_a_recorder_does_not_touch_the_journal(folder: str) -> None:
    code = """
import gevent
from sbuslib import Hub
from sbuslib.journal.recorder import Recorder
with Hub(folder + "/bus") as hub, Recorder(hub, folder + "/journal") as recorder:
    hub.publish(b"k", b"1")
    recorder.flush()
    while recorder.durable_sequence < 1:
        gevent.sleep(0.001)
    def work():
        recorder.stop()
        files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        return recorder.recording or any(file.startswith(folder + "/journal") for file in files)
    print(fork(work))
    hub.publish(b"k", b"2")
"""
    assert python("-c", CHILD + code, folder) == "0\n"
    assert [record.payload for record in records_of(f"{folder}/journal")] == [b"1", b"2"]


def test_the_child_of_a_consumer_may_not_use_it(journal: str) -> None:
    write(journal, *EXAMPLE)
    code = """
from sbuslib.errors import JournalInUseError, StateError
from sbuslib.journal.consume import consume
with consume("a", [b""], folder) as consumer:
    def work():
        try:
            consumer.acknowledge()
        except StateError:
            return 7
    print(fork(work))
    try:
        consume("a", [b""], folder)
    except JournalInUseError:
        print("the lock is the parent's")
"""
    assert python("-c", CHILD + code, journal) == "7\nthe lock is the parent's\n"
