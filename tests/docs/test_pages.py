"""Every page: its links lead somewhere, its programs run, its commands print what it says they print."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from conformance.script import read_cases, run
from docs.pages import PAGES, Block, Desk, anchors, blocks, links, text_of
from support import PATIENCE, ROOT, HubThread

from sbuslib import Hub, blocking
from sbuslib.errors import NoHubError


def of_language(*languages: str) -> list[object]:
    return [
        pytest.param(path, block, id=f"{path.relative_to(ROOT)}:{block.line}")
        for path in PAGES
        for block in blocks(path)
        if block.language in languages
    ]


def with_(*languages: str) -> list[Path]:
    return [path for path in PAGES if any(block.language in languages for block in blocks(path))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_has_its_form_and_its_links_lead_somewhere(path: Path) -> None:
    text = text_of(path)
    assert text.startswith("# ")
    assert not re.search(r"[ \t\r]+$", text, re.MULTILINE), "blanks at the end of a line"
    assert text.count("```") % 2 == 0
    assert [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")] == []
    for link in links(path):
        if re.match(r"https?:", link):
            continue
        target, _, anchor = link.partition("#")
        page = (path.parent / target).resolve() if target else path
        assert page.exists(), f"{name_of(path)}: {link}"
        if anchor:
            assert anchor in anchors(page), f"{name_of(path)}: {link}"


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert {path for path in PAGES if path.parent != ROOT} - {index} <= linked


def test_blocks_of_code_parse() -> None:
    for path in PAGES:
        for block in blocks(path):
            if block.language == "python":
                ast.parse(block.text, f"{name_of(path)}:{block.line}")
            elif block.language == "sh":
                subprocess.run(["sh", "-n"], input=block.text, text=True, check=True)
            elif block.language == "c" and (compiler := shutil.which("cc")):
                command = [compiler, "-xc", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-"]
                subprocess.run(command, input=block.text, text=True, check=True)


@pytest.mark.parametrize("path", with_("python"), ids=name_of)
def test_programs_run(path: Path, desk: Desk) -> None:
    """The Python blocks of a page, each as a program, with a hub at ``SBUS_ADDRESS``; none may complain.

    Some load pandas: on a busy machine they take as long as a test may.
    """
    with HubThread(desk.address):
        for block in blocks(path):
            if block.language != "python" or block.what == "fragment":
                continue
            text = block.text.replace("/tmp/bus", desk.address + "-2")
            if block.what == "file":
                (desk.folder / block.name).write_text(text)
                continue
            desk.run(text, f"{name_of(path)}:{block.line}")


@pytest.mark.parametrize(("path", "block"), of_language("packets"))
def test_packets_are_what_passes(path: Path, block: Block, folder: str) -> None:
    """What the protocol's page shows is a conformance script, and is played."""
    script = Path(folder) / "page.sbus"
    script.write_text(f"== {path.name}:{block.line}\n{block.text}", "ascii")
    (case,) = read_cases(script)
    with Hub(folder + "/bus") as hub:
        run(case, hub.address)


# ---------------------------------------------------------------------------------------------------
# Commands


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a block, each with what it prints."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (f"{found[-1][0]}\n{line}", "")
        else:
            assert found, "a block begins with a command"
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


def told(text: str) -> str:
    """What is compared: ids differ from one machine to the next."""
    return re.sub(r"!/cred/\d+/\d+/\d+", "!/cred/GID/UID/PID", text)


class Terminal:
    """A shell, to which commands are given one by one."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._shell = subprocess.Popen(
            ["sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=desk.environment,
            cwd=desk.folder,
            text=True,
            start_new_session=True,
        )
        self.expected = ""
        self.printed = ""

    def _type(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text)
        self._shell.stdin.flush()

    def run(self, command: str) -> str:
        """What a command printed, with its exit status unless that was 0."""
        self._type(f"{command}\nstatus=$?; echo; echo =$status=done\n")
        assert self._shell.stdout is not None
        lines: list[str] = []
        while True:
            line = self._shell.stdout.readline()
            assert line, "the shell ended"
            if re.fullmatch(r"=\d+=done\n", line):
                break
            lines.append(line)
        text = "".join(lines)
        text = text.removesuffix("\n")  # ours
        return text if line.startswith("=0=") else f"{text}exit status {line[1:-6]}\n"

    def leave_running(self, command: str, expected: str) -> None:
        self._type(f"exec {command}\n")
        self.expected = expected

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait until what was running has ended."""
        os.killpg(self._shell.pid, signal.SIGINT)
        self._shell.wait(PATIENCE)

    def check_what_stays(self) -> None:
        """Read as many lines as are expected, and compare."""
        assert self._shell.stdout is not None
        got = "".join(self._shell.stdout.readline() for _ in self.expected.splitlines())
        assert told(got) == told(self.expected)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        for pipe in (self._shell.stdin, self._shell.stdout):
            assert pipe is not None
            pipe.close()
        self._shell.wait()


def patterns_at(address: str) -> int:
    """How many patterns are in force at a hub; -1 while there is none."""
    try:
        with blocking.Client(address) as client:
            return client.hub.statistics().patterns
    except NoHubError:
        return -1


@contextmanager
def until_it_is_there(address: str) -> Iterator[None]:
    """What is started meanwhile listens, or has subscribed, when this is left."""
    before = patterns_at(address)
    yield
    end = time.monotonic() + PATIENCE
    while patterns_at(address) <= before:
        assert time.monotonic() < end, "what stays did not start"
        time.sleep(0.01)


def end_daemons(folder: Path) -> None:
    """End what a page that failed halfway left in the background."""
    for path in folder.glob("*.pid"):
        os.kill(int(path.read_text()), signal.SIGTERM)


@pytest.mark.parametrize("path", with_("console"), ids=name_of)
def test_commands_print_what_the_page_says(path: Path, desk: Desk) -> None:
    terminals: dict[str, Terminal] = {}
    with ExitStack() as stack:
        stack.callback(end_daemons, desk.folder)
        for block in blocks(path):
            if block.what == "file":
                (desk.folder / block.name).write_text(block.text.replace("/tmp/bus", desk.address))
            if block.language != "console" or block.what == "not run":
                continue
            assert block.what in ("terminal", "stays"), f"{name_of(path)}:{block.line}: which terminal?"
            name, _, interrupted = block.name.partition("; Ctrl-C: ")
            if interrupted:
                terminals[interrupted].interrupt()
            if name not in terminals:
                terminals[name] = Terminal(desk)
                stack.callback(terminals[name].close)
            terminal = terminals[name]
            pairs = [(command.replace("/tmp/bus", desk.address), output) for command, output in commands(block)]
            last = pairs.pop() if block.what == "stays" else None
            for command, output in pairs:
                printed = terminal.run(command).replace(desk.address, "/tmp/bus")
                assert told(printed) == told(output), f"{name_of(path)}:{block.line}: {command}"
            if last is not None:
                with until_it_is_there(desk.address):
                    terminal.leave_running(last[0], last[1].replace("/tmp/bus", desk.address))
        for terminal in terminals.values():
            terminal.check_what_stays()
