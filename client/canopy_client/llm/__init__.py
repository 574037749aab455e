"""Language models that play critic, classifier, router and reader: one protocol, two transports."""

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
