"""The router of the routed variant: which modalities to search for a query."""

from __future__ import annotations

import logging
import re
from typing import Final

from canopy_backend.errors import CanopyError, DeadlineExceeded
from canopy_client import parsing, prompts
from canopy_client.deadline import Deadline
from canopy_client.llm.base import LanguageModel

logger = logging.getLogger(__name__)

ALL: Final = frozenset(prompts.CORPORA)
MAX_TOKENS: Final = 40


async def route(llm: LanguageModel, query: str, deadline: Deadline) -> frozenset[str]:
    """One or several of ``text``, ``table``, ``image`` and ``video``; all of them when the model fails or strays.

    Raises:
        DeadlineExceeded: The deadline passed.
    """
    messages = prompts.router_messages(query)
    try:
        completion = await llm.generate(
            messages, max_tokens=MAX_TOKENS, schema=prompts.ROUTER_SCHEMA, deadline=deadline
        )
    except DeadlineExceeded:
        raise
    except CanopyError as error:
        logger.warning("the router failed (%s); all corpora are searched", type(error).__name__)
        return ALL
    return parse_corpora(completion.text)


def parse_corpora(text: str) -> frozenset[str]:
    """Labels of a JSON list, or joined with ``+``; an unknown label or none means all."""
    reply = parsing.json_object(text)
    given = parsing.one_line(reply.get("corpora", "")) if reply is not None else text
    labels = {label for label in re.split(r"[^a-z]+", given.lower()) if label}
    return frozenset(labels) if labels and labels <= ALL else ALL
