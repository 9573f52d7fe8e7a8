"""The bus at work on this machine. Each line after ``$`` is a command that you can type, too.

Try: python examples/demo.py [FOLDER]      it needs ``sbus`` on the path, and leaves a journal in FOLDER
"""

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack

from sbuslib.blocking import Client

PUB = 'sbus pub machine/load "$(cat /proc/loadavg)"\n$ sbus pub machine/memory "$(grep MemAvailable /proc/meminfo)"'
BOB = """sbus serve -q bob -- sh -c 'echo "a secret for $SBUS_SENDER alone"'"""


def show(title: str, commands: str) -> str:
    """Run commands to their end; what they printed."""
    print(f"\n# {title}\n$ {commands}", flush=True)
    typed = commands.replace("\n$ ", "\n")
    done = subprocess.run(typed, shell=True, stdout=-1, stderr=-2, text=True, timeout=60, check=False)
    print(done.stdout, end="", flush=True)
    return done.stdout


def begin(stack: ExitStack, watcher: Client, title: str, command: str) -> None:
    """Start a command, which is ended with the others, and return once it has subscribed."""
    print(f"\n# {title}\n$ {command} &", flush=True)
    patterns = watcher.hub.statistics().patterns
    process = stack.enter_context(subprocess.Popen(f"exec {command}", shell=True))
    stack.callback(process.terminate)
    while watcher.hub.statistics().patterns == patterns:
        assert process.poll() is None, f"it ended with status {process.returncode}"


def main(folder: str) -> str | None:
    """Show all parts; what did not happen."""
    address = os.environ["SBUS_ADDRESS"] = f"{folder}/bus"
    print(f"# One process is the bus: the hub.\n$ export SBUS_ADDRESS={address}\n$ sbus hub -q --close &")
    with subprocess.Popen(["sbus", "hub", "-q", "--close"]), Client(address, reconnect=True) as watcher:
        with ExitStack() as stack:
            begin(stack, watcher, "Record all messages.", f"sbus journal record -q {folder}/journal")
            begin(stack, watcher, "Subscribe to a part of them.", "sbus sub --format 'machine: {payload}' machine/")
            show("Publish two.", PUB)
            begin(stack, watcher, "An eavesdropper reads all.", "sbus sub --format 'overheard: {key} {payload}' ''")
            begin(stack, watcher, "Bob answers, and the hub names who asks, as the kernel says.", BOB)
            answer = show("Ask Bob. The request is overheard, the reply is secret.", "sbus request bob 'Who am I?'")
            refused = show("A secret key of another process is refused.", f"sbus sub '{watcher.credentials.decode()}/'")
        recorded = show("What was recorded: no secrets.", f"sbus journal cat {folder}/journal")
    secret = "secret for !/cred/" in answer and "a secret" not in recorded and "secret pattern of another" in refused
    if not secret or recorded.count("machine/") != 2 or "(request, reply to !/cred/" not in recorded:
        return "the demo failed: not all of it happened"
    return print("\nThat was the bus. Try next: docs/tutorial.md, with such commands in three terminals.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="sbus-demo-") as temporary:
        sys.exit(main(sys.argv[1] if sys.argv[1:] else temporary))
