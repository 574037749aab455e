"""Runs arms over questions, a bounded number of questions at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from canopy_backend.errors import CanopyError, TrainingError
from canopy_client.aio import AsyncCanopyClient
from canopy_client.assembly import Assembler
from canopy_client.critic import Critic, LanguageModelCritic
from canopy_client.jobs import EncoderInfo
from canopy_client.llm import LanguageModel
from canopy_client.options import LoopOptions
from canopy_client.orchestrator import Orchestrator
from canopy_client.retrieval import MilvusRetriever, Retriever
from canopy_client.session import assembler, language_model, open_client
from canopy_client.settings import Settings
from canopy_client.titles import TitleCritic
from canopy_milvus import AsyncCorpus
from canopy_training.data import Question
from canopy_training.loop.arms import ROUNDS, Arm
from canopy_training.loop.gold import GoldItem
from canopy_training.loop.metered import (
    Clock,
    HybridRetriever,
    MeteredCompressor,
    MeteredCritic,
    MeteredModel,
    MeteredRetriever,
)
from canopy_training.loop.oracle import OracleCritic
from canopy_training.loop.outcome import Outcome, blank, measured


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its gold items."""

    question: Question
    gold: list[GoldItem]


@dataclass(frozen=True, slots=True)
class Stage:
    """Open connections, shared by all arms.

    Attributes:
        client: The evidence server.
        corpus: The pooled corpus.
        llm: The language model; ``None`` for none.
        assembler: Numbers evidence and keeps it within the reader's budget.
        deadline_s: Seconds that a question may take.
    """

    client: AsyncCanopyClient
    corpus: AsyncCorpus
    llm: LanguageModel | None
    assembler: Assembler
    deadline_s: float


@asynccontextmanager
async def open_stage(settings: Settings, corpus: str, encoder: EncoderInfo, *, model: bool) -> AsyncIterator[Stage]:
    """Open what the arms need.

    Args:
        settings: Where the servers are, as for ``canopy ask``.
        corpus: Name of the pooled corpus.
        encoder: Its encoder.
        model: Whether to use the language model of the settings.

    Raises:
        ServerUnavailable: The evidence server or Milvus does not answer.
        RetrievalError: There is no such corpus.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_client(settings))
        opened = await AsyncCorpus.open(
            settings.milvus(),
            corpus,
            revision=encoder.revision,
            dimension=encoder.dimension,
            token=settings.milvus_token or None,
        )
        await stack.enter_async_context(opened)
        llm = language_model(settings) if model else None
        if llm is not None:
            stack.push_async_callback(llm.close)
        yield Stage(client, opened, llm, assembler(settings), settings.answer_deadline_s)


async def run_arm(
    stage: Stage,
    arm: Arm,
    asked: Sequence[Asked],
    *,
    in_flight: int,
    advance: Callable[[int], None] = lambda _: None,
) -> list[Outcome]:
    """Work on all questions under one arm.

    Args:
        stage: Open connections.
        arm: The arm.
        asked: The questions.
        in_flight: Most questions at a time.
        advance: Called with the number of questions each time some are done.

    Returns:
        One outcome a question, in order. A question that fails is an outcome with its error.

    Raises:
        TrainingError: Every question failed; tells the first error.
    """
    slots = asyncio.Semaphore(in_flight)
    retriever: Retriever
    if arm.words:
        retriever = HybridRetriever(stage.corpus, stage.client.embed_query)
    else:
        retriever = MilvusRetriever(stage.corpus, stage.client.embed_query)

    async def one(entry: Asked) -> Outcome:
        async with slots:
            outcome = await _answer(stage, arm, retriever, entry)
        advance(1)
        return outcome

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(entry)) for entry in asked]
    outcomes = [task.result() for task in tasks]
    if outcomes and not any(outcome.rounds for outcome in outcomes):
        raise TrainingError(f"arm {arm.name}: none of {len(outcomes)} questions was worked on: {outcomes[0].error}")
    return outcomes


async def _answer(stage: Stage, arm: Arm, retriever: Retriever, asked: Asked) -> Outcome:
    """One question, with a clock of its own."""
    question, clock = asked.question, Clock()
    orchestrator = Orchestrator(
        MeteredRetriever(retriever, clock),
        MeteredCompressor(stage.client, clock),
        MeteredModel(stage.llm, clock, reads=arm.reads),
        critic=_critic(stage, arm, asked, clock),
        options=LoopOptions(
            k=arm.k,
            follow_up_k=arm.follow_up_k,
            max_rounds=1 if arm.critic == "none" else ROUNDS,
            compress=arm.compress,
            # Without a model nobody classifies, and all tables would be kept whole.
            tables="classify" if stage.llm is not None else "lookup",
        ),
        assembler=stage.assembler,
    )
    worked = time.thread_time()
    try:
        answer = await orchestrator.answer(question.question, deadline_s=stage.deadline_s)
    except CanopyError as error:
        return blank(question, asked.gold, error=f"{type(error).__name__}: {error}")
    overhead = {"overhead": answer.seconds - clock.seconds, "processor": time.thread_time() - worked - clock.processor}
    return measured(question, asked.gold, answer, stage.assembler, read=arm.reads, overhead=overhead)


def _critic(stage: Stage, arm: Arm, asked: Asked, clock: Clock) -> Critic | None:
    if arm.critic == "model":
        return LanguageModelCritic(MeteredModel(stage.llm, clock), stage.assembler)
    if arm.critic == "titles":
        return MeteredCritic(TitleCritic(), clock)
    return MeteredCritic(OracleCritic(asked.gold), clock) if arm.critic == "oracle" else None
