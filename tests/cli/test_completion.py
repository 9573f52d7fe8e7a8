"""``sbus completion`` as a program; bash itself completes with what it printed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import PATIENCE

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes_commands_and_options(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("shtab", reason="the extra cli is not installed")
    done = run("sbuslib", "completion", "bash")
    assert (done.returncode, done.stderr) == (0, "")
    script = tmp_path / "sbus.bash"
    script.write_text(done.stdout)
    for words, completed in ((("who",), "whoami"), (("sub", "--send"), "--senders"), (("lake", "in"), "ingest")):
        asked = (
            f'. "{script}"; f=$(complete -p sbus | sed "s/.*-F \\([^ ]*\\).*/\\1/"); '
            f"COMP_WORDS=(sbus {' '.join(words)}); COMP_CWORD={len(words)}; "
            f'"$f" sbus {words[-1]} ""; echo "${{COMPREPLY[@]}}"'
        )
        found = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert found.stdout.split() == [completed]


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_scripts_too(run: Run, shell: str) -> None:
    pytest.importorskip("shtab", reason="the extra cli is not installed")
    done = run("sbuslib", "completion", shell)
    assert done.returncode == 0
    assert "whoami" in done.stdout


def test_what_is_missing_is_told(run: Run) -> None:
    program = "import sys; sys.modules['shtab'] = None; from sbuslib.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "completion", "bash"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "sbus: shtab is missing: pip install 'sbuslib[cli]'\n")
