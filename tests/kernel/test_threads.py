"""Native threads, also where gevent has patched the standard library."""

from __future__ import annotations

import _thread

from support import python

from sbuslib.kernel.threads import unpatched


def test_without_patches_it_is_the_standard_librarys_own() -> None:
    assert unpatched("_thread", "start_new_thread") is _thread.start_new_thread


def test_with_patches_it_is_a_native_thread() -> None:
    code = """
import _thread
native = _thread.start_new_thread
from gevent import monkey
monkey.patch_all()
from sbuslib.kernel.threads import unpatched
print(_thread.start_new_thread is native, unpatched("_thread", "start_new_thread") is native)
"""
    assert python("-c", code) == "False True\n"
