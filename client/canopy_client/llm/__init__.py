"""Language models that play critic, classifier, router and reader: one protocol, two transports.

The names below are imported when they are first used: a caller of one transport needs no library of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from canopy_client.lazy import attributes

if TYPE_CHECKING:
    from canopy_client.llm.base import Completion, LanguageModel, Message, Picture, Placed
    from canopy_client.llm.chat_template import ChatTemplate
    from canopy_client.llm.openai import OpenAILanguageModel
    from canopy_client.llm.triton import TritonLanguageModel

__all__ = [
    "ChatTemplate",
    "Completion",
    "LanguageModel",
    "Message",
    "OpenAILanguageModel",
    "Picture",
    "Placed",
    "TritonLanguageModel",
]

__getattr__ = attributes(
    __name__,
    {
        "ChatTemplate": "chat_template",
        "Completion": "base",
        "LanguageModel": "base",
        "Message": "base",
        "OpenAILanguageModel": "openai",
        "Picture": "base",
        "Placed": "base",
        "TritonLanguageModel": "triton",
    },
)
