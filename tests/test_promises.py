"""Each promise of the pages names its test. A promise is a bold sentence that ends with a full stop."""

from __future__ import annotations

import ast
import re

from support import ROOT, TESTS

PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
PROMISE = re.compile(r"(?<!\S)\*\*([^*]+)\.\*\*")

ORACLE = TESTS / "simulation" / "oracle.py"
RULES = {
    ("how-to/from-redis.md", "A subscription is in force when `subscribe` returns"): "_check_missing",
    (
        "how-to/service.md",
        "No client is disconnected, and no message is lost, doubled or out of order",
    ): "tell deliver _check_missing",
    (
        "protocol.md",
        "What came over a link between hubs is never shown under the credential of the link",
    ): "_check_sender",
    (
        "security.md",
        "What is sent to a secret key reaches only a client with its credentials, or nobody",
    ): "deliver",
}
"""Promises that the oracle of the simulation holds in each world, too, and its functions that do."""


def promised() -> set[tuple[str, str]]:
    """Page and sentence of each promise, without the full stop."""
    return {
        (str(page.relative_to(ROOT)).removeprefix("docs/"), " ".join(sentence.split()))
        for page in PAGES
        for sentence in PROMISE.findall(BLOCK.sub("", page.read_text()))
    }


def held() -> set[tuple[str, ...]]:
    """Page and sentence of each ``@pytest.mark.promise``. Marks are read, since not every file can be imported."""
    return {
        tuple(ast.literal_eval(argument) for argument in mark.args)
        for path in TESTS.rglob("test_*.py")
        if "mark.promise(" in (text := path.read_text())
        for test in ast.walk(ast.parse(text))
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef)
        for mark in test.decorator_list
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise"
    }


def test_each_promise_of_the_pages_has_a_test() -> None:
    lacking = sorted(promised() - held())
    assert not lacking, f"mark their tests with @pytest.mark.promise(page, sentence), or take the bold away: {lacking}"


def test_each_mark_is_of_a_promise() -> None:
    gone = sorted(held() - promised())
    assert not gone, f"these sentences are not in bold on their pages any more, with a full stop: {gone}"


def test_the_oracle_has_each_rule_that_holds_a_promise() -> None:
    functions = {node.name for node in ast.walk(ast.parse(ORACLE.read_text())) if isinstance(node, ast.FunctionDef)}
    assert {rule for rules in RULES.values() for rule in rules.split()} <= functions
    assert RULES.keys() <= promised()
