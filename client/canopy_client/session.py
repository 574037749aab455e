"""Opens what a question needs, from settings, and closes it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from canopy_backend.errors import CriticError, InvalidRequest
from canopy_backend.reading import UNREADABLE
from canopy_backend.tokenization import TokenCounter
from canopy_client.aio import AsyncCanopyClient
from canopy_client.answer import Answer
from canopy_client.assembly import BUDGET_TOKENS, Assembler
from canopy_client.llm import ChatTemplate, LanguageModel, OpenAILanguageModel, TritonLanguageModel
from canopy_client.options import LoopOptions
from canopy_client.orchestrator import Orchestrator
from canopy_client.retrieval import MilvusRetriever
from canopy_client.settings import Settings
from canopy_client.titles import TitleCritic
from canopy_client.verdict import MAX_TOKENS
from canopy_milvus import AsyncCorpus

#: Tokens of a prompt beside the evidence: instructions, question, marks, gaps; and the answer.
_OVERHEAD_TOKENS: Final = 900 + MAX_TOKENS


@dataclass(frozen=True, slots=True)
class Session:
    """An orchestrator with its open connections."""

    orchestrator: Orchestrator
    llm: LanguageModel


@asynccontextmanager
async def open_session(settings: Settings, *, trace: bool = False) -> AsyncIterator[Session]:
    """An orchestrator over the servers of the settings.

    Args:
        settings: Where they are, and how questions are worked on.
        trace: Keep every visited node in the evidence.

    Raises:
        ServerUnavailable: The evidence server or Milvus does not answer.
        EncoderMismatch: The corpus was indexed with another encoder.
        RetrievalError: There is no such corpus.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_client(settings))
        encoder = await client.encoder()
        corpus = await AsyncCorpus.open(
            settings.milvus(),
            settings.corpus,
            revision=encoder.revision,
            dimension=encoder.dimension,
            token=settings.milvus_token or None,
        )
        await stack.enter_async_context(corpus)
        llm = language_model(settings)
        stack.push_async_callback(llm.close)
        orchestrator = Orchestrator(
            MilvusRetriever(corpus, client.embed_query),
            client,
            llm,
            critic=TitleCritic() if settings.judged_by() == "titles" else None,
            options=settings.loop_options(trace=trace),
            assembler=assembler(settings),
            sight=settings.sight(),
        )
        yield Session(orchestrator, llm)


def open_client(settings: Settings) -> AsyncCanopyClient:
    """The evidence server's client."""
    return AsyncCanopyClient(settings.url, deadline_s=settings.deadline_s, tls=settings.tls_options())


def language_model(settings: Settings) -> LanguageModel:
    """The model that plays critic, classifier, router and reader.

    Raises:
        InvalidRequest: An endpoint without a model name.
        CriticError: The model folder's chat template cannot be used, or has no place for pictures where it sees.
    """
    if not settings.llm_url:
        folder = settings.model_files()
        template = ChatTemplate.from_folder(folder) if folder is not None else ChatTemplate()
        if settings.llm_sees and not template.takes_pictures:
            where = f"of {str(folder)!r}" if folder is not None else "without a model folder"
            raise CriticError(f"CANOPY_LLM_SEES is set, and the chat template {where} has no place for pictures")
        return TritonLanguageModel(
            settings.critic_url, template=template, tls=settings.tls_options(), parallel=settings.llm_parallel
        )
    if not settings.llm_model:
        raise InvalidRequest("CANOPY_LLM_URL is set without CANOPY_LLM_MODEL, the model's name there")
    return OpenAILanguageModel(
        settings.llm_url, model=settings.llm_model, api_key=settings.llm_key, parallel=settings.llm_parallel
    )


def assembler(settings: Settings) -> Assembler:
    """Evidence within the reader's budget, counted by its own tokenizer where its files are here."""
    folder = None if settings.llm_url else settings.model_files()
    tokenizer = folder / "tokenizer.json" if folder is not None else None
    count = TokenCounter(tokenizer).count if tokenizer is not None and tokenizer.is_file() else None
    budget = settings.budget_tokens
    if not budget:
        window = 0 if folder is None else _window(folder / "config.json")
        budget = min(BUDGET_TOKENS, max(256, window - _OVERHEAD_TOKENS)) if window else BUDGET_TOKENS
    return Assembler(budget, count)


def _window(file: Path) -> int:
    """Tokens that a model reads at once, by its configuration; 0 where that does not say, or cannot be read."""
    try:
        value = msgspec.json.decode(file.read_bytes(), type=dict[str, Any]).get("max_position_embeddings", 0)
    except (OSError, *UNREADABLE):
        return 0
    return value if isinstance(value, int) else 0


def ask(
    question: str, settings: Settings | None = None, *, options: LoopOptions | None = None, trace: bool = False
) -> Answer:
    """Answer one question, synchronously: opens what is needed, runs the loop, closes.

    Args:
        question: What is asked.
        settings: From the environment where not given.
        options: The switches of this question; those of the settings where not given.
        trace: Keep every visited node in the evidence, where ``options`` are not given.
    """
    chosen = settings or Settings.load()

    async def run() -> Answer:
        async with open_session(chosen, trace=trace) as session:
            return await session.orchestrator.answer(question, options=options, deadline_s=chosen.answer_deadline_s)

    return asyncio.run(run())
