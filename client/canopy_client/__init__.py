"""Clients of the evidence server, and the loop that answers questions with it.

The names below are imported when they are first used, so that a caller who only compresses needs no language model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from canopy_client.lazy import attributes

if TYPE_CHECKING:
    from canopy_client.aio import AsyncCanopyClient
    from canopy_client.answer import Answer
    from canopy_client.channels import Tls
    from canopy_client.clients import CanopyClient
    from canopy_client.identity import request_id
    from canopy_client.orchestrator import LoopOptions, Orchestrator
    from canopy_client.retry import RetryPolicy
    from canopy_client.session import ask

__all__ = [
    "Answer",
    "AsyncCanopyClient",
    "CanopyClient",
    "LoopOptions",
    "Orchestrator",
    "RetryPolicy",
    "Tls",
    "ask",
    "request_id",
]

__getattr__ = attributes(
    __name__,
    {
        "Answer": "answer",
        "AsyncCanopyClient": "aio",
        "CanopyClient": "clients",
        "LoopOptions": "orchestrator",
        "Orchestrator": "orchestrator",
        "RetryPolicy": "retry",
        "Tls": "channels",
        "ask": "session",
        "request_id": "identity",
    },
)
