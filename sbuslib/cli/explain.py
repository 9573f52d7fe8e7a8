"""``sbus explain``: what the rules of a configuration file say about a user and a key, and which of them decides."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from ..errors import SbusError
from ..wire.text import printable
from .console import EXIT_FAILURE, EXIT_SUCCESS, complain, explain

if TYPE_CHECKING:
    from ..policy import Answer, Verb

__all__ = ["add_arguments", "run_explain", "sentence"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Say what the rules of a configuration file allow a user, and which of them decides. See docs/configuration.md."
    )
    parser.epilog = (
        "exit status:\n"
        "  0   yes\n"
        "  1   no, or an error\n"
        "\n"
        "examples:\n"
        "  sbus explain alice publish tenants/alice/status --config /etc/sbus.toml\n"
        "  sbus explain 1001 subscribe 'room/*/temp' --config /etc/sbus.toml"
    )
    parser.add_argument("user", metavar="USER", help="name or id")
    parser.add_argument("verb", metavar="VERB", choices=["publish", "subscribe"], help="publish or subscribe")
    parser.add_argument("key", metavar="KEY", help="the key, or the pattern for subscribe")
    parser.add_argument("--config", metavar="FILE", required=True, help="the file that the hub reads")
    parser.set_defaults(run=run_explain)


def run_explain(arguments: Namespace) -> int:
    """Run the command; its exit status."""
    from ..kernel.users import resolve_user
    from .config import read_policy

    try:
        uid = resolve_user(arguments.user)
        policy = read_policy(arguments.config)
        if policy is None:
            print(f"yes: {arguments.config} has no rules, so everybody may do anything")
            return EXIT_SUCCESS
        answer = policy.explain(uid, arguments.verb, os.fsencode(arguments.key))
    except (SbusError, OSError) as error:
        return complain("sbus", explain(error))
    print(sentence(answer, arguments.user, arguments.verb))
    return EXIT_SUCCESS if answer.allowed else EXIT_FAILURE


def sentence(answer: Answer, user: str, verb: Verb) -> str:
    """An answer in one line."""
    if answer.is_secret and verb == "publish":
        return "yes: rules are not asked about secrets, and anybody may publish them"
    if answer.is_secret:
        return "yes: rules are not asked about secrets; only clients with these credentials may subscribe"
    if answer.rule is None:
        return f"no: no rule lets {user} {verb} this"
    template, pattern = (f'"{printable(text)}"' for text in (answer.template, answer.pattern))
    meant = "" if template == pattern else f", which is {pattern} for {user}"
    return f"yes: {answer.rule.label}: {verb} {template}{meant}"
