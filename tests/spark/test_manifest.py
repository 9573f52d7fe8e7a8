"""The manifest of a lake: how it is changed, and how it is read."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from support import python

from sbuslib.errors import StateError
from sbuslib.spark.manifest import Manifest, Stream, changed, is_lake, locked, read_manifest


def test_a_change_is_written_unless_an_error_is_raised(tmp_path: Path) -> None:
    with changed(tmp_path) as change:
        change.manifest = Manifest(streams={"a": Stream("q", 1, "/j")})
    assert json.loads((tmp_path / "_sbus" / "manifest.json").read_text())["streams"]["a"]["batch"] == 1
    with suppress(RuntimeError), changed(tmp_path) as change:
        change.manifest = Manifest()
        raise RuntimeError
    assert read_manifest(tmp_path).streams["a"].batch == 1


def test_a_manifest_of_another_version_or_no_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="is no lake"):
        read_manifest(tmp_path)
    assert not is_lake(tmp_path)
    path = tmp_path / "_sbus" / "manifest.json"
    path.parent.mkdir()
    path.write_text('{"version": 2}')
    assert is_lake(tmp_path)
    with pytest.raises(StateError, match="of version 2"):
        read_manifest(tmp_path)
    path.write_text("{")
    with pytest.raises(StateError, match=r"manifest.json: "):
        read_manifest(tmp_path)


def test_a_lock_that_is_held_is_an_error_unless_it_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path), pytest.raises(StateError, match="another process"), locked(path, wait=False):
        pass
    with locked(path, wait=False):
        pass


def test_importing_the_manifest_loads_neither_gevent_nor_spark() -> None:
    code = "import sbuslib.spark.manifest, sys; print({'gevent', 'pyspark', 'pyarrow'} & set(sys.modules))"
    assert python("-c", code) == "set()\n"
