"""What the orchestrator calls, with the time that each call takes, so that what is left is the orchestrator's own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from canopy_backend.evidence import Evidence
from canopy_backend.items import Item
from canopy_client.critic import Critic
from canopy_client.deadline import Deadline
from canopy_client.llm.base import Completion, LanguageModel, Message
from canopy_client.orchestrator import Compressor
from canopy_client.retrieval import Embed, Retriever
from canopy_client.verdict import Verdict
from canopy_milvus import AsyncCorpus, Hit

#: Stands for the answer where nobody reads: one of no words would count as a failure of the reader.
UNREAD: Final = "(not read)"


class Clock:
    """Time of one question spent outside the orchestrator; its calls follow each other.

    Attributes:
        seconds: Wall clock.
        processor: Processor seconds of this thread, on whatever it worked meanwhile. The orchestrator gives the thread
            away inside of these calls alone, so what they leave of a question's total is its own.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.processor = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add what the block takes."""
        started, worked = time.monotonic(), time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - started
            self.processor += time.thread_time() - worked


class MeteredModel:
    """A language model whose calls are timed; its reader can be left out.

    Args:
        llm: The model; ``None`` for none, which says :data:`UNREAD`.
        clock: Takes the time.
        reads: Whether the reader is asked. It alone wants free text, so a call without a schema is its own.
    """

    def __init__(self, llm: LanguageModel | None, clock: Clock, *, reads: bool = True) -> None:
        self._llm, self._clock, self._reads = llm, clock, reads

    @property
    def name(self) -> str:
        """The model's name."""
        return self._llm.name if self._llm is not None else "none"

    async def generate(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        deadline: Deadline,
    ) -> Completion:
        """Answer a chat."""
        if self._llm is None or (schema is None and not self._reads):
            return Completion(UNREAD)
        with self._clock.running():
            return await self._llm.generate(messages, max_tokens=max_tokens, schema=schema, deadline=deadline)

    async def close(self) -> None:
        """Nothing: the model belongs to whoever opened it."""


class MeteredRetriever:
    """A retriever whose searches are timed."""

    def __init__(self, retriever: Retriever, clock: Clock) -> None:
        self._retriever, self._clock = retriever, clock

    async def search(
        self, query: str, k: int, *, modalities: frozenset[str] | None = None, deadline: Deadline
    ) -> list[Hit]:
        """See :class:`Retriever`."""
        with self._clock.running():
            return await self._retriever.search(query, k, modalities=modalities, deadline=deadline)


class MeteredCompressor:
    """A compressor whose calls are timed."""

    def __init__(self, compressor: Compressor, clock: Clock) -> None:
        self._compressor, self._clock = compressor, clock

    async def compress(
        self,
        query: str,
        items: Sequence[Item],
        *,
        keep_tables_whole: bool = False,
        trace: bool = False,
        deadline_s: float | None = None,
    ) -> list[Evidence]:
        """See :class:`Compressor`."""
        with self._clock.running():
            return await self._compressor.compress(
                query, items, keep_tables_whole=keep_tables_whole, trace=trace, deadline_s=deadline_s
            )


class MeteredCritic:
    """A critic without a language model, whose verdicts are timed as a model's calls would be."""

    def __init__(self, critic: Critic, clock: Clock) -> None:
        self._critic, self._clock = critic, clock

    async def judge(
        self, question: str, evidence: Sequence[Evidence], searched: Sequence[str], deadline: Deadline
    ) -> Verdict:
        """See :class:`Critic`."""
        with self._clock.running():
            return await self._critic.judge(question, evidence, searched, deadline)


class HybridRetriever:
    """Searches a corpus by vector and by words and fuses the two lists by rank.

    Args:
        corpus: The open corpus, whose collections index words.
        embed: Makes query vectors.
    """

    def __init__(self, corpus: AsyncCorpus, embed: Embed) -> None:
        self._corpus, self._embed = corpus, embed

    async def search(
        self, query: str, k: int, *, modalities: frozenset[str] | None = None, deadline: Deadline
    ) -> list[Hit]:
        """See :class:`Retriever`; all modalities are searched together."""
        (vector,) = await self._embed([query])
        left = deadline.timeout_s("retrieval")
        options = {} if left is None else {"deadline_s": left}
        return await self._corpus.search(vector, k, query_text=query, **options)
