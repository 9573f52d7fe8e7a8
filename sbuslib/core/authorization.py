"""Authorization: calls the embedder's ``authorize=`` function for keys and patterns, in one place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from ..keys.policy import Policy, Ruling, Scope, Verb
from ..secrets import Credentials
from .callback_errors import log, report_to_event_loop
from .quotas import Account

Authorize: TypeAlias = Callable[[Credentials, Verb, bytes], bool]
"""``authorize(credentials, verb, key_or_pattern)``: asked for each ``SUB``, and for a client's first ``MSG`` under
a key; its yes is remembered, within :attr:`~sbuslib.limits.Limits.allowed_bytes`."""


class Authorization:
    """The function that decides, if there is one. A stranger's code: not to be called while the receive buffer is in
    use.
    """

    def __init__(self, function: Authorize | None) -> None:
        self.function = function
        self.failures = 0  # of this function: the first is logged

    @property
    def is_asked(self) -> bool:
        return self.function is not None

    def replace(self, function: Authorize | None) -> Authorize | None:
        """From now on ask another function. Returns the former one."""
        former, self.function = self.function, function
        self.failures = 0
        return former

    def allows(self, account: Account, credentials: Credentials, verb: Verb, key: bytes) -> bool:
        """Return the function's decision for a client of this user. An exception counts as a no, and is logged once."""
        try:
            if isinstance(self.function, Policy):
                return self.function.is_free(key) or self._scope(self.function, account).allows(verb, key)
            return self.function is None or bool(self.function(credentials, verb, key))
        except BaseException as error:
            self._failed(error)
            return False

    def explain(self, account: Account, credentials: Credentials, verb: Verb, key: bytes) -> Ruling | bool:
        """The same, with the rule that decides where a policy does."""
        if not isinstance(self.function, Policy):
            return self.allows(account, credentials, verb, key)
        if self.function.is_free(key):
            return Ruling(True, is_secret=True)
        try:
            return self._scope(self.function, account).explain(verb, key)
        except BaseException as error:
            self._failed(error)
            return False

    def narrow(self, account: Account, credentials: Credentials, pattern: bytes) -> list[bytes]:
        """Return what a link may subscribe to in place of a pattern: itself, parts of it, or nothing.

        A policy knows the parts. Any other function says yes or no to all of it.
        """
        if not isinstance(self.function, Policy) or self.function.is_free(pattern):
            return [pattern] if self.allows(account, credentials, "subscribe", pattern) else []
        try:
            return self._scope(self.function, account).narrow(pattern)
        except BaseException as error:
            self._failed(error)
            return []

    def differs(self, former: Authorize | None, account: Account) -> bool:
        """Whether a user may get other answers than ``former`` gave.

        Two policies can be compared, user by user: what the user was allowed until now stands in its account.
        """
        if not (isinstance(self.function, Policy) and isinstance(former, Policy)):
            return self.function is not former
        try:
            before = self._scope(former, account)
            return self._scope(self.function, account) != before
        except BaseException as error:
            self._failed(error)
            return True

    @staticmethod
    def _scope(policy: Policy, account: Account) -> Scope:
        """Return the scope of a user in a policy. It is computed once, and kept for as long as the user has clients."""
        if account.scope is None or account.scope[0] is not policy:
            account.scope = policy, policy.scope(account.uid)
        return account.scope[1]

    def _failed(self, error: BaseException) -> None:
        self.failures += 1
        if self.failures == 1:
            log(logging.ERROR, "authorize= failed, which counts as a no", exc_info=True)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            report_to_event_loop(error)
