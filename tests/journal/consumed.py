"""A program for ``test_consume``: consumes a journal, and tells each row before it acknowledges it, until killed."""

from __future__ import annotations

import os
import random
import sys

from sbuslib.journal.consume import consume

if __name__ == "__main__":
    with consume("a", [b"run/"], sys.argv[1]) as consumer:
        os.write(1, b"started\n")
        for row in consumer:
            text = b"%d %b\n" % (row.sequence, row.payload.partition(b" ")[0] if row.payload else b"gap")
            os.write(1, text)
            if random.random() < 0.3:
                consumer.acknowledge()
                os.write(1, b"acknowledged\n")
