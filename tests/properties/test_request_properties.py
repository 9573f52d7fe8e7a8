"""Questions against a plain model: who answers what, whatever the order in which questions and servers come and go."""

from __future__ import annotations

from contextlib import ExitStack

import gevent
import gevent.pool
from clients.makers import MakeClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbuslib import Hub
from sbuslib.clients.recipes.request import Request
from sbuslib.errors import NoServerError, ReplyError

KEYS = [b"a", b"a/1", b"b"]
PATTERNS = {b"a": [b"a"], b"a/": [b"a/1"], b"b": [b"b"]}
"""The keys that each pattern serves."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("serve"), st.sampled_from(sorted(PATTERNS))),
        st.tuples(st.just("leave"), st.sampled_from(sorted(PATTERNS))),
        st.tuples(st.just("ask"), st.lists(st.tuples(st.sampled_from(KEYS), st.binary(max_size=3)), max_size=8)),
    ),
    max_size=8,
)


def answer(question: Request) -> bytes:
    if question.payload.startswith(b"\0"):
        raise ValueError("zero")
    gevent.sleep(0)
    return question.key + question.payload


def expected(key: bytes, payload: bytes, serving: dict[bytes, ExitStack]) -> object:
    if not any(key in PATTERNS[pattern] for pattern in serving):
        return NoServerError
    return ReplyError if payload.startswith(b"\0") else key + payload


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_each_question_gets_its_own_answer(hub: Hub, client: MakeClient, steps: list[tuple[str, object]]) -> None:
    asker, server = hub.client(), hub.client()
    serving: dict[bytes, ExitStack] = {}
    with asker, server, ExitStack() as blocks:
        for kind, what in steps:
            if isinstance(what, list):
                told = [expected(key, payload, serving) for key, payload in what]
                assert gevent.pool.Pool(8).map(lambda one: asked(asker, *one), what) == told
            elif kind == "serve" and what not in serving:
                assert isinstance(what, bytes)
                serving[what] = block = blocks.enter_context(ExitStack())
                block.enter_context(server.serve(what, answer, workers=2))
            elif kind == "leave" and what in serving:
                assert isinstance(what, bytes)
                serving.pop(what).close()


def asked(asker: object, key: bytes, payload: bytes) -> object:
    try:
        return asker.request(key, payload, timeout=20)  # type: ignore[attr-defined]
    except (NoServerError, ReplyError) as error:
        return type(error)
