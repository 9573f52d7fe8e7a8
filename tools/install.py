"""Installs with pip, and shows in a terminal how much is there: ``install.py FOLDER MEGABYTES ARGUMENT...``.

``MEGABYTES`` is about what the folder holds in the end. pip itself tells nothing while it unpacks and builds, which is
most of the time where Spark is installed; so what it does in its temporary folder is counted, too, which is put below
``FOLDER``. ``./run`` uses this.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time

PAUSE = 0.5
"""Seconds between two looks."""

WIDTH = 30


def megabytes(folder: str) -> int:
    """How much is in a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it may have gone meanwhile
                total += os.lstat(os.path.join(place, name)).st_size
    return total // 1_000_000


def draw(there: int, expected: int, seconds: float) -> None:
    """Draw the bar over the one before."""
    share = min(there / expected, 0.99)
    bar = "#" * round(share * WIDTH)
    line = f"  [{bar:<{WIDTH}}] {share:4.0%}  {there} of some {expected} MB, {seconds:.0f} s"
    print(f"\r{line:<70}", end="", file=sys.stderr, flush=True)


def main(folder: str, expected: str, *arguments: str) -> int:
    """Install; the exit status of pip, or 130 after Ctrl-C."""
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    if not sys.stderr.isatty():
        return subprocess.run(pip, stdout=sys.stderr, check=False).returncode
    temporary = tempfile.mkdtemp(prefix=".installing-", dir=folder)
    began, most = time.monotonic(), 0
    try:
        with tempfile.TemporaryFile() as output:
            quiet = [*pip, "--progress-bar", "off"]
            with subprocess.Popen(quiet, stdout=output, stderr=output, env=os.environ | {"TMPDIR": temporary}) as child:
                while child.poll() is None:
                    most = max(most, megabytes(folder))
                    draw(most, int(expected), time.monotonic() - began)
                    time.sleep(PAUSE)
            print(file=sys.stderr)
            if child.returncode:
                output.seek(0)
                sys.stderr.buffer.write(output.read())
            return child.returncode
    except KeyboardInterrupt:  # pip has had it, too
        print(file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
