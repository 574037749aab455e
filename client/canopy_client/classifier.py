"""The aggregate classifier: must a table be read as a whole?"""

from __future__ import annotations

import logging
from typing import Final, Literal

from canopy_backend.errors import CanopyError, DeadlineExceeded
from canopy_client import parsing, prompts
from canopy_client.deadline import Deadline
from canopy_client.llm.base import LanguageModel

logger = logging.getLogger(__name__)

Label = Literal["aggregate", "lookup"]
MAX_TOKENS: Final = 24


async def classify(llm: LanguageModel, question: str, deadline: Deadline) -> Label:
    """Tell from the question alone whether its table must be scanned.

    Unsure, malformed or failed means ``"aggregate"``: keeping too much costs tokens, pruning too much loses rows.

    Raises:
        DeadlineExceeded: The deadline passed.
    """
    messages = prompts.classifier_messages(question)
    try:
        completion = await llm.generate(
            messages, max_tokens=MAX_TOKENS, schema=prompts.CLASSIFIER_SCHEMA, deadline=deadline
        )
    except DeadlineExceeded:
        raise
    except CanopyError as error:
        logger.warning("the classifier failed (%s); tables are kept whole", type(error).__name__)
        return "aggregate"
    return label_of(completion.text)


def label_of(text: str) -> Label:
    """The label in an answer: exactly one of the two, or it is no answer, which means ``"aggregate"``."""
    found = parsing.one_line((parsing.json_object(text) or {}).get("label", text)).lower()
    words = {word for word in ("aggregate", "lookup") if word in found}
    return "lookup" if words == {"lookup"} else "aggregate"
