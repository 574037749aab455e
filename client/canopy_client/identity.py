"""The id of a question: one name for it in this process's log, in the server's, and in the models'.

It lives in a context variable, so it follows a question through coroutines; threads that work for it are given a copy
of the context.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from canopy_backend.errors import InvalidRequest

#: Longest id, and what it may be made of: it stands in log lines, where nothing else may begin a new one.
_FORM: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")

_current: ContextVar[str] = ContextVar("canopy_request_id", default="")


def current() -> str:
    """The id of what is being worked on here; empty outside a question."""
    return _current.get()


def new() -> str:
    """An id that no other request has: 16 hex digits."""
    return secrets.token_hex(8)


@contextmanager
def request_id(name: str = "") -> Iterator[str]:
    """Give everything in the block one id, that of the caller's own request for instance.

    Args:
        name: The id; without one the id of the block around this, or a new one.

    Raises:
        InvalidRequest: It is longer than 64 characters, or has others than letters, digits and ``._:-``.
    """
    chosen = name or current() or new()
    if not _FORM.fullmatch(chosen):
        raise InvalidRequest("request id: takes up to 64 letters, digits and the marks . _ : -")
    token = _current.set(chosen)
    try:
        yield chosen
    finally:
        _current.reset(token)
