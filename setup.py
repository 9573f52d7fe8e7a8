"""What setup.cfg cannot say: the description for package indexes, and the files that are made when a wheel is.

Those are the man pages and the completion of shells, which :mod:`sbuslib.cli.manual` makes of what ``--help`` is made
of. It runs with nothing installed but Python.
"""

import re
import subprocess
import sys
from distutils.command.install_data import install_data
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


class InstallData(install_data):
    """Installs what is made, below ``share``."""

    def run(self) -> None:
        made = HERE / "build" / "share"
        subprocess.run([sys.executable, "-m", "sbuslib.cli.manual", made], cwd=HERE, check=True)
        for path in sorted(path for path in made.rglob("*") if path.is_file()):
            self.data_files.append((f"share/{path.parent.relative_to(made)}", [str(path.relative_to(HERE))]))
        super().run()


# README without what leads into a checkout, since that leads nowhere on an index.
text = (HERE / "README.md").read_text("utf-8")
text = re.sub(r"^!\[[^\]]*\]\((?!https:)[^)]*\)\n\n?", "", text, flags=re.MULTILINE)
text = re.sub(r"\[([^\]]+)\]\((?!https:)[^)]*\)", r"\1", text)
setup(
    long_description=text,
    long_description_content_type="text/markdown",
    data_files=[("share/man/man1", [])],  # there are some
    cmdclass={"install_data": InstallData},
)
