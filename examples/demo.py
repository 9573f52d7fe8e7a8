"""The bus at work on this machine. Each line after ``$`` is a command that you can type, too.

Try: python examples/demo.py [FOLDER]      it needs ``sbus`` on the path, and leaves a journal in FOLDER
"""

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack

from sbuslib.blocking import Client

FIGURES = """for n in 1 2 3; do
    sbus pub machine/load "$(cat /proc/loadavg)"
    sbus pub machine/memory "$(grep MemAvailable /proc/meminfo)"
done"""


def show(command: str) -> str:
    """Run a command to its end; what it printed."""
    print(f"\n$ {command}", flush=True)
    done = subprocess.run(command, shell=True, stdout=-1, stderr=-2, text=True, timeout=60, check=False)
    print(done.stdout, end="", flush=True)
    return done.stdout


def begin(stack: ExitStack, watcher: Client, command: str) -> None:
    """Start a command, which is ended with the others, and return once it has subscribed."""
    print(f"\n$ {command} &", flush=True)
    patterns = watcher.hub.statistics().patterns
    process = stack.enter_context(subprocess.Popen(f"exec {command}", shell=True))
    stack.callback(process.terminate)
    while watcher.hub.statistics().patterns == patterns:
        if process.poll() is not None:
            sys.exit(f"it ended with status {process.returncode}")


def main(folder: str) -> str:
    """Show all parts; what did not happen."""
    address = os.environ["SBUS_ADDRESS"] = f"{folder}/bus"
    print(f"$ export SBUS_ADDRESS={address}\n$ sbus hub --close &")
    with subprocess.Popen(["sbus", "hub", "--close"]), Client(address, reconnect=True) as watcher:  # waits for its hub
        with ExitStack() as stack:
            begin(stack, watcher, f"sbus journal record {folder}/journal")
            begin(stack, watcher, "sbus sub --format 'everybody reads: {key} {payload}' machine/")
            show(FIGURES)
            begin(stack, watcher, "sbus sub --format 'an eavesdropper reads: {key} {payload}' ''")
            begin(stack, watcher, """sbus serve bob -- sh -c 'echo "a secret for $SBUS_SENDER alone"'""")
            answer = show("sbus request bob 'Who am I, by the word of the kernel?'")
            refused = show(f"sbus sub '{watcher.hub.whoami().decode()}/'")
        recorded = show(f"sbus journal cat {folder}/journal")
    secret = "secret for !/cred/" in answer and "a secret" not in recorded and "secret pattern of another" in refused
    return "" if secret and recorded.count("machine/") == 6 else "the demo failed: not all of it happened"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="sbus-demo-") as temporary:
        sys.exit(main(sys.argv[1] if sys.argv[1:] else temporary) or 0)
