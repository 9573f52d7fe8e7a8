"""Text of a payload as tools show it: a request, a reply, a job or an offer is named as such, in brackets.

Such bytes prove nothing: anybody who may publish under a key may publish them. So a request is shown with where its
reply goes, which only that process can read, and not with who sent it.
"""

from __future__ import annotations

from contextlib import suppress

from ...errors import DescriptorError
from ...keys.own_keys import QUEUE
from ...wire.offers import decode_offer
from ...wire.packets import Message
from ...wire.text import printable
from .queue import Announcement, Submission, decode
from .request import FAILED, caller_of, split_answer, split_question


def payload_text(message: Message, most: int | None = None) -> str:
    """The payload in one line that cannot steer a terminal. Of what the application chose, only ``most`` bytes."""
    what, rest = _described(message.key, message.payload, most)
    shown = printable(bytes(rest[:most]))
    return " ".join(filter(None, (f"({what})" * bool(what), shown)))


def _described(key: bytes, payload: bytes, most: int | None) -> tuple[str, bytes | memoryview]:
    """Return the kind of a message, empty for a plain one, and the application's bytes in it."""
    # 1. Between a caller and a server. A job is submitted by a request to the service of its queue.
    if (reply := split_answer(payload)) is not None and caller_of(key) is not None:
        return "error" if reply[0] == FAILED else "reply", reply[-1]
    if (question := split_question(payload)) is not None and (caller := caller_of(question[2])) is not None:
        reply_to, asked = f"reply to {printable(caller)}", question[-1]
        jobs = submitted.jobs if _is_of_queue(key, b"submit") and (submitted := decode(Submission, asked)) else []
        if not jobs:
            return f"request, {reply_to}", asked
        job, payload = jobs[0]
        more = f" and {len(jobs) - 1:,} more" if jobs[1:] else ""
        return f"job {printable(job[:most])}{more}, {reply_to}", payload

    # 2. Once a second from each worker.
    if _is_of_queue(key, b"work") and (worker := decode(Announcement, payload)) is not None:
        return f"worker {printable(worker.key)}, prefetch {worker.room:,}, holds {len(worker.held):,} jobs", b""

    # 3. A small frame is in its message; any other offer is fetched from its publisher.
    with suppress(DescriptorError):
        if (found := decode_offer(payload)) is not None:
            offer, frame = found
            name = f" {printable(offer.meta)}" if offer.kind == "file" else ""
            where = ", at its publisher" if offer.store is not None else ""
            return f"{offer.kind}{name}, {offer.size:,} bytes{where}", frame
    return "", payload


def _is_of_queue(key: bytes, word: bytes) -> bool:
    """Return whether a key is ``queue/NAME/WORD``, with any separator and after any prefix."""
    separator = key[-len(word) - 1 : -len(word)]
    return bool(separator) and key.endswith(word) and key.split(separator)[-3:-2] == [QUEUE]
