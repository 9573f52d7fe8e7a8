"""The packages: complete, installed into empty environments, where the README's programs run; and a Debian package.

Each is made once, of a copy of the checkout. Nothing is downloaded: what sbuslib needs is taken from this environment.
"""

from __future__ import annotations

import contextlib
import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from docs.pages import blocks
from support import PATIENCE, ROOT

import sbuslib
from sbuslib.cli import daemon, hub, manual

MADE = (".git", ".tox", ".venv", "build", "dist", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis")
"""What is in a checkout that was worked in, and in no package."""

NEEDED = ("gevent", "greenlet", "msgspec", "zope.event", "zope.interface", "cffi", "pycparser", "setuptools")
"""What sbuslib and the making of a package need; those that are here are put into the empty environments."""

pytestmark = pytest.mark.seconds(400)


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Run a command that has to succeed; what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SBUS_"))}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=10 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout."""
    copy = tmp_path_factory.mktemp("packages") / "sbuslib"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*MADE))
    return copy


@pytest.fixture(scope="module")
def packages(checkout: Path) -> Path:
    """The folder of the source distribution, and of the wheel, which is made of what that has."""
    pytest.importorskip("build")
    pytest.importorskip("setuptools")
    run(sys.executable, "-m", "build", "--no-isolation", cwd=checkout)
    return checkout / "dist"


@pytest.fixture(scope="module")
def sdist(packages: Path) -> Path:
    (file,) = packages.glob("*.tar.gz")
    return file


@pytest.fixture(scope="module")
def wheel(packages: Path) -> Path:
    (file,) = packages.glob("*.whl")
    return file


def test_a_package_index_takes_both(packages: Path) -> None:
    pytest.importorskip("twine")
    said = run(sys.executable, "-m", "twine", "check", "--strict", *packages.iterdir(), cwd=packages)
    assert said.count("PASSED") == 2


def test_the_source_distribution_has_every_file_of_the_checkout(checkout: Path, sdist: Path) -> None:
    files = (path.relative_to(checkout) for path in checkout.rglob("*") if path.is_file())
    wanted = {str(path) for path in files if not set(path.parts) & {"build", "dist", "sbuslib.egg-info", "__pycache__"}}
    assert "tests/vectors/matching.tsv" in wanted
    with tarfile.open(sdist) as archive:
        assert wanted - {member.name.partition("/")[2] for member in archive if member.isfile()} == set()


def test_the_wheel_has_what_belongs_to_the_programs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        text = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    shared = "sbuslib-[^/]*.data/data/share/"
    wanted = [f"sbuslib/cli/systemd/{name}" for name in hub.unit_names()]
    wanted += [f"{shared}{name}" for name in manual.files()]
    wanted += ["sbuslib/py.typed", "sbuslib/web/static/uplot.LICENSE", "sbuslib-[^/]*/(licenses/)?LICENSE"]
    for pattern in wanted:
        assert any(re.fullmatch(pattern, name) for name in names), pattern
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/"))]
    description = email.message_from_string(text)
    assert description["License"] or description["License-Expression"]
    links = re.findall(r"\]\(([^)]*)\)", str(description.get_payload()))
    assert [link for link in links if not link.startswith("https:")] == [], "leads nowhere on a package index"


# -- installed ----------------------------------------------------------------------------------------


def lend(site: Path) -> None:
    """Put what sbuslib needs into an environment, by links into this one."""
    for name in NEEDED:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # not needed by this release
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            target = site / top
            if not target.exists():
                target.symlink_to(Path(str(distribution.locate_file(top))))


@pytest.fixture
def environment(wheel: Path, tmp_path: Path) -> Path:
    """The folder of programs of an environment where nothing but the package and what it needs is installed."""
    pytest.importorskip("pip")
    place = tmp_path / "environment"
    venv.create(place, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(place)}))
    lend(site)
    python = place / "bin" / "python"
    install = ["install", "-q", "--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", python, *install, wheel, cwd=tmp_path)
    return python.parent


@contextlib.contextmanager
def hub_of(environment: Path, address: str) -> Iterator[None]:
    """A hub that the installed ``sbusd`` serves."""
    with subprocess.Popen([environment / "sbusd", "-f", "-a", address], stdout=subprocess.PIPE) as hub:
        try:
            assert hub.stdout is not None
            hub.stdout.read()  # it closes its output once it listens
            yield
        finally:
            hub.terminate()


def test_the_programs_of_the_readme_run_where_only_the_package_is(environment: Path, folder: str) -> None:
    python, place = environment / "python", Path(folder)
    home = run(python, "-c", "import sbuslib; print(sbuslib.__file__)", cwd=place).strip()
    assert home.startswith(str(environment.parent))
    address = f"{folder}/bus"
    with hub_of(environment, address):
        programs = [block.text for block in blocks(ROOT / "README.md") if block.language == "python"]
        assert len(programs) >= 2
        for program in programs:
            text = program.replace("/tmp/bus", f"{address}-2")
            run(python, "-W", "error", "-c", text, cwd=place, SBUS_ADDRESS=address)
        assert run(environment / "sbus", "whoami", "-a", address, cwd=place).startswith("!/cred/")
    assert "sbus.service" in run(environment / "sbus", "units", cwd=place)
    assert "--upstream" in run(environment / "sbus-relay", "--help", cwd=place)
    share = environment.parent / "share"
    assert {path.name for path in (share / "man" / "man1").iterdir()} == set(manual.pages())


# -- for systems --------------------------------------------------------------------------------------


def test_the_debian_package_has_the_version_of_the_library() -> None:
    assert (ROOT / "debian" / "changelog").read_text().startswith(f"sbuslib ({sbuslib.__version__}) ")


@pytest.mark.skipif(
    not all(map(shutil.which, ["dpkg-deb", "dh", "pybuild"])) or not Path("/usr/bin/python3").exists(),
    reason="needs the tools: apt-get install debhelper dh-python pybuild-plugin-pyproject python3-all",
)
def test_the_debian_package_is_made_and_complete(checkout: Path) -> None:
    copy = checkout.parent / "debian" / "sbuslib"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns("dist", "*.egg-info", "tests"))
    run("debian/rules", "binary", cwd=copy, PATH="/usr/sbin:/usr/bin:/sbin:/bin")
    (package,) = copy.parent.glob("*.deb")
    run("dpkg-deb", "-R", package, copy.parent / "unpacked", cwd=copy)
    unpacked = copy.parent / "unpacked"
    names = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    for name in ("sbus", "sbusd", "sbus-relay"):
        assert f"usr/bin/{name}" in names
    assert {f"usr/share/man/man1/{name}.gz" for name in manual.pages()} <= names
    assert {"etc/sbus.toml", "usr/lib/sysusers.d/sbus.conf", "usr/lib/tmpfiles.d/sbus.conf"} <= names
    shipped = [unpacked / name for name in names if "/systemd/" in name and "dist-packages" not in name]
    assert {path.name for path in shipped} == {*hub.unit_names()} - {"sbus.toml"}
    assert not [path for path in shipped if "@BIN@" in path.read_text()]


def test_the_container_starts_the_hub_with_arguments_that_it_has() -> None:
    text = (ROOT / "Containerfile").read_text()
    words = [re.findall(r'"([^"]+)"', line) for line in re.findall(r"^(?:ENTRYPOINT|CMD) (.+)$", text, re.MULTILINE)]
    program, *arguments = [word for one in words for word in one]
    parsed = daemon.build_parser().parse_args(arguments)
    assert (program, parsed.address) == ("sbusd", "/run/sbus/bus")
    assert f"ENV SBUS_ADDRESS={parsed.address}\n" in text


# -- which Python -------------------------------------------------------------------------------------


def test_every_python_that_the_package_says_it_supports_is_tested() -> None:
    text = (ROOT / "setup.cfg").read_text()
    versions = re.findall(r"Python :: (3\.\d+)$", text, re.MULTILINE)
    assert f"python_requires = >={versions[0]}\n" in text
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', workflow) == versions
    factors = ",".join(version.replace(".", "") for version in versions)
    assert f"[testenv:py{{,{factors}}}]" in (ROOT / "tox.ini").read_text()
