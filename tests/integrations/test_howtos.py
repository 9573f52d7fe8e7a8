"""The programs of the pages on server-sent events and on a privileged helper, as their readers run them."""

from __future__ import annotations

import http.client
import importlib.util
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from accounting import acting_as
from docs.pages import DOCS, blocks
from support import PATIENCE, HubThread, eventually

from sbuslib.blocking import Client
from sbuslib.errors import RefusedError, ReplyError

STRANGER = 2201


def written(page: str, name: str, folder: Path, address: str) -> Path:
    """A program of a page as a file, with this address."""
    (block,) = [one for one in blocks(DOCS / "how-to" / page) if one.name == name]
    path = folder / name
    path.write_text(block.text.replace("/tmp/bus", address))
    return path


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def flask_server(app: Any) -> Iterator[int]:
    serving = pytest.importorskip("werkzeug.serving")
    server = serving.make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.port
    server.shutdown()
    thread.join(PATIENCE)


@contextmanager
def asgi_server(app: Any) -> Iterator[int]:
    uvicorn = pytest.importorskip("uvicorn")
    sock = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    yield sock.getsockname()[1]
    server.should_exit = True
    thread.join(PATIENCE)


@pytest.mark.parametrize(
    ("needs", "name", "server"),
    [("flask", "events_flask.py", flask_server), ("starlette", "events_starlette.py", asgi_server)],
)
def test_what_is_published_is_an_event_in_the_browser(
    needs: str, name: str, server: Callable[[Any], Any], tmp_path: Path, folder: str
) -> None:
    pytest.importorskip(needs)
    with HubThread(f"{folder}/bus") as hub:
        module = loaded(written("server-sent-events.md", name, tmp_path, hub.address))
        with server(module.app) as port, Client(hub.address) as client:
            browser = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            browser.request("GET", "/events/1")
            events = browser.getresponse()
            assert events.getheader("content-type", "").startswith("text/event-stream")
            assert events.readline() == b": from now on\n"
            client.publish("room/2", b"of another room")
            client.publish("room/1", b"two\nlines")
            assert [events.readline() for _ in range(4)] == [b"\n", b"data: two\n", b"data: lines\n", b"\n"]

            other = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            other.request("POST", "/say/1", "said")
            assert other.getresponse().status == 204
            assert events.readline() == b"data: said\n"
            other.close()
            for wrong in ("*", "!"):
                other.request("GET", f"/events/{wrong}")
                assert other.getresponse().status == 404
                other.close()

            # What nobody looks at is no longer subscribed to.
            events.close()
            browser.close()

            def is_taken_back() -> bool:
                client.publish("room/1", b"x" * 1_000)
                return not client.hub.is_wanted("room/1")

            eventually(is_taken_back)
        if needs == "flask":
            module.bus.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.promise("how-to/privileged-helper.md", "Only root can answer")
def test_a_helper_of_root_acts_for_the_user_who_may_and_for_nobody_else(tmp_path: Path, folder: str) -> None:
    pwd = pytest.importorskip("pwd")
    done = tmp_path / "done"
    stub = tmp_path / "systemctl"
    stub.write_text(f'#!/bin/sh\necho "$@" >>{done}\n')
    stub.chmod(0o755)
    os.chmod(folder, 0o755)
    with HubThread(f"{folder}/bus", mode=0o777) as hub:
        environment = os.environ | {"SBUS_ADDRESS": hub.address, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        path = written("privileged-helper.md", "helper.py", tmp_path, hub.address)
        with subprocess.Popen([sys.executable, path], env=environment, stdout=subprocess.PIPE, text=True) as helper:
            assert helper.stdout is not None
            assert helper.stdout.readline() == "ready\n"
            key = "!/cred//0//helper"
            for user, service, may in (
                (pwd.getpwnam("www-data").pw_uid, b"shop", True),
                (pwd.getpwnam("www-data").pw_uid, b"sshd", False),
                (STRANGER, b"shop", False),
            ):
                with acting_as(user):
                    client = Client(hub.address)
                with client:
                    if may:
                        assert client.request(key, service, timeout=PATIENCE) == b"restarted"
                    else:
                        with pytest.raises(ReplyError, match="you may not restart that"):
                            client.request(key, service, timeout=PATIENCE)
            with acting_as(STRANGER):
                client = Client(hub.address)
            with client, pytest.raises(RefusedError):
                client.serve(key, lambda question: b"by somebody else")
            worker = written("privileged-helper.md", "worker.py", tmp_path, hub.address)
            said = subprocess.run([sys.executable, worker], env=environment, capture_output=True, text=True, check=True)
            assert said.stdout == "refused: you may not restart that\n", "root is not www-data"
            helper.terminate()
    assert done.read_text() == "restart -- shop\n"
