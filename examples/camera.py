"""A camera and two viewers: frames of 2 MB in NumPy, which nobody copies after the camera.

Try: sbus hub -a /tmp/bus & python examples/camera.py /tmp/bus
"""

from __future__ import annotations

import sys
import threading

import numpy as np

from sbuslib import blocking
from sbuslib.errors import NoHubError

HEIGHT, WIDTH, FRAMES = 1080, 1920, 5


def film(client: blocking.Client) -> None:
    for number in range(FRAMES):
        picture = np.full((HEIGHT, WIDTH), number, dtype=np.uint8)
        picture[number, :] = 255  # a bright line that moves down
        client.frames.publish("camera/front", picture, meta=b"%d,%d" % picture.shape)


def view(name: str, address: str, ready: threading.Barrier) -> None:
    with blocking.Client(address) as client, client.frames.subscribe("camera/*") as frames:
        ready.wait()
        for _ in range(FRAMES):
            with frames.receive(timeout=20) as frame:
                shape = tuple(map(int, frame.meta.split(b",")))
                picture = np.frombuffer(memoryview(frame), np.uint8).reshape(shape)  # no copy: it cannot be written
                bright = int(picture.max(axis=1).argmax())
                sys.stdout.write(f"{name}: {frame.key.decode()} {picture.shape}, the line is at {bright}\n")
                del picture


def main() -> None:
    try:
        camera = blocking.Client(sys.argv[1] if len(sys.argv) > 1 else None)
    except NoHubError as error:
        sys.exit(str(error))
    ready = threading.Barrier(3)
    viewers = [threading.Thread(target=view, args=(name, camera.address, ready)) for name in ("left", "right")]
    for viewer in viewers:
        viewer.start()
    with camera:
        ready.wait()
        film(camera)
        for viewer in viewers:
            viewer.join()


main()
