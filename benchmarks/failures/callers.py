"""What the clients of the load call, and the bytes by which an answer is compared with the one recorded before."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from benchmarks import workload
from benchmarks.failures.rounding import index_alike, json_alike, vectors_alike
from canopy_backend.errors import DeadlineExceeded, ServerUnavailable
from canopy_backend.items import Item
from canopy_client import AsyncCanopyClient, CanopyClient
from canopy_client.deadline import Deadline
from canopy_client.llm.base import Message
from canopy_client.llm.triton import TritonLanguageModel
from canopy_client.options import LoopOptions
from canopy_client.orchestrator import Orchestrator
from canopy_client.retrieval import MilvusRetriever
from canopy_client.titles import TitleCritic
from canopy_milvus import AsyncCorpus
from canopy_training.loop.metered import Clock, MeteredModel

#: Seconds that one call may take. Longer than any fault lasts, so that a call without an answer by then is lost.
DEADLINE_S: Final = 90.0
#: Every answer of the critic follows a schema that leaves it one thing to say.
_SCHEMA: Final = {"type": "object", "properties": {"sufficient": {"const": "yes"}}, "required": ["sufficient"]}
#: A long request: more than the shared memory that each model's process begins with.
_COPIES: Final = 4
#: How a question ended whose servers all answered.
_ENDED: Final = frozenset({"sufficient", "max_rounds", "no_items", "no_new_item", "repeated_query", "empty_query"})


@dataclass(frozen=True)
class Targets:
    """Where the load goes.

    Attributes:
        evidence: gRPC endpoint, or several as gRPC names them.
        critic: gRPC endpoint; empty for none.
        milvus: Address; empty for none.
        corpus: The corpus there.
    """

    evidence: str
    critic: str = ""
    milvus: str = ""
    corpus: str = "failures"


@dataclass(frozen=True)
class Material:
    """What is sent.

    Attributes:
        items: Items without trees.
        trees: The same with them.
        questions: Questions.
        longer: Longer items with their trees, which make the server's shared memory grow.
    """

    items: list[Item]
    trees: list[Item]
    questions: list[str]
    longer: list[Item]


class Caller(Protocol):
    """One client: call number ``n`` is the same call, and has the same answer, whenever it is made."""

    variants: int

    def alike(self, answer: bytes, wanted: bytes) -> bool:
        """Whether two answers are the same but for rounding."""
        ...

    def call(self, number: int) -> bytes:
        """Send a call; the answer in bytes.

        Raises:
            CanopyError: There is none.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Compress:
    """Evidence for a question, from items with trees or without."""

    alike = staticmethod(json_alike)

    def __init__(self, url: str, questions: list[str], groups: list[list[Item]]) -> None:
        self._client = CanopyClient(url, deadline_s=DEADLINE_S)
        self._questions, self._groups = questions, groups
        self.variants = len(questions)

    def call(self, number: int) -> bytes:
        """See :class:`Caller`."""
        evidence = self._client.compress(self._questions[number], self._groups[number % len(self._groups)])
        return msgspec.json.encode(evidence)

    def close(self) -> None:
        """See :class:`Caller`."""
        self._client.close()


class Embed:
    """The vector of a query."""

    alike = staticmethod(vectors_alike)

    def __init__(self, url: str, queries: list[str]) -> None:
        self._client = CanopyClient(url, deadline_s=DEADLINE_S)
        self._queries = queries
        self.variants = len(queries)

    def call(self, number: int) -> bytes:
        """See :class:`Caller`."""
        return self._client.embed_query([self._queries[number]]).tobytes()

    def close(self) -> None:
        """See :class:`Caller`."""
        self._client.close()


class Index:
    """Tree and vector of an item."""

    alike = staticmethod(index_alike)

    def __init__(self, url: str, items: list[Item]) -> None:
        self._client = CanopyClient(url, deadline_s=DEADLINE_S)
        self._items = items
        self.variants = len(items)

    def call(self, number: int) -> bytes:
        """See :class:`Caller`."""
        (indexed,) = self._client.index([self._items[number]])
        return indexed.tree + indexed.embedding.tobytes()

    def close(self) -> None:
        """See :class:`Caller`."""
        self._client.close()


class Ask:
    """A question's whole loop without a language model: search, compress, names to look up, search again."""

    alike = staticmethod(json_alike)

    def __init__(self, targets: Targets, questions: list[str]) -> None:
        self._runner = asyncio.Runner()
        self._questions = questions
        self.variants = len(questions)
        self._client, self._corpus, self._loop = self._runner.run(self._open(targets))

    async def _open(self, targets: Targets) -> tuple[AsyncCanopyClient, AsyncCorpus, Orchestrator]:
        client = AsyncCanopyClient(targets.evidence, deadline_s=DEADLINE_S)
        encoder = await client.encoder()
        corpus = await AsyncCorpus.open(
            targets.milvus, targets.corpus, revision=encoder.revision, dimension=encoder.dimension, modalities=["text"]
        )
        loop = Orchestrator(
            MilvusRetriever(corpus, client.embed_query),
            client,
            MeteredModel(None, Clock()),
            critic=TitleCritic(),
            options=LoopOptions(k=5, max_rounds=2, tables="lookup"),
        )
        return client, corpus, loop

    def call(self, number: int) -> bytes:
        """See :class:`Caller`; an answer that names a failure counts as that failure."""
        answer = self._runner.run(self._loop.answer(self._questions[number], deadline_s=DEADLINE_S))
        if answer.stop == "deadline":
            raise DeadlineExceeded(answer.error)
        if answer.stop not in _ENDED:
            raise ServerUnavailable(f"{answer.stop}: {answer.error}")
        return msgspec.json.encode([answer.stop, answer.evidence, [one.query for one in answer.rounds]])

    def close(self) -> None:
        """See :class:`Caller`."""
        self._runner.run(self._client.close())
        self._runner.run(self._corpus.close())
        self._runner.close()


class Critic:
    """A short answer of the language model, held by a schema."""

    alike = staticmethod(json_alike)

    variants = 4

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._model = self._runner.run(self._open(url))

    @staticmethod
    async def _open(url: str) -> TritonLanguageModel:
        return TritonLanguageModel(url)

    def call(self, number: int) -> bytes:
        """See :class:`Caller`."""
        asked = [Message("user", f"Is {number} a number?")]
        deadline = Deadline.after(DEADLINE_S)
        answer = self._runner.run(self._model.generate(asked, max_tokens=16, schema=_SCHEMA, deadline=deadline))
        return msgspec.json.encode(msgspec.json.decode(answer.text))

    def close(self) -> None:
        """See :class:`Caller`."""
        self._runner.run(self._model.close())
        self._runner.close()


def gather(client: CanopyClient) -> Material:
    """What is sent, of the example corpus, with trees that the server makes."""
    items = workload.passages(24, 6)
    longer = workload.with_trees(client, workload.sized(6, 60))
    # A tree belongs to an item's content, whatever its id: three megabytes that take seconds to index.
    copies = [msgspec.structs.replace(one, id=f"{one.id}-{copy}") for copy in range(_COPIES) for one in longer]
    return Material(items, workload.with_trees(client, items), workload.corpus_questions(24), copies)


def groups(items: list[Item], size: int) -> list[list[Item]]:
    """Neighbours, so many at a time, from each second item on."""
    return [items[start : start + size] for start in range(0, len(items) - size + 1, 2)]


def queries(questions: list[str], count: int) -> list[str]:
    """So many different queries: more than the server's cache keeps, so that the encoder is asked each time."""
    return [
        f"{question} ({number})" for number, question in zip(range(count), itertools.cycle(questions), strict=False)
    ]


def makers(targets: Targets, material: Material) -> dict[str, Callable[[], Any]]:
    """How a client of each kind is made, for the servers that there are."""
    found: dict[str, Callable[[], Any]] = {
        "with trees": lambda: Compress(targets.evidence, material.questions, groups(material.trees, 10)),
        "cold": lambda: Compress(targets.evidence, material.questions[:12], groups(material.items, 2)),
        "long": lambda: Compress(targets.evidence, material.questions[:4], [material.longer]),
        "embed_query": lambda: Embed(targets.evidence, queries(material.questions, 200)),
        "index": lambda: Index(targets.evidence, material.items),
    }
    if targets.milvus:
        found["ask"] = lambda: Ask(targets, material.questions[:12])
    if targets.critic:
        found["critic"] = lambda: Critic(targets.critic)
    return found
