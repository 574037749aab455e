"""Vectors of the questions, from the frozen query encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from canopy_backend.errors import TrainingError
from canopy_backend.templates import query_text
from canopy_export.graphs import QueryGraph, load_backbone
from canopy_export.source import Source
from canopy_training.data import Question

_BATCH: Final = 64


def query_vectors(source: Source, questions: Sequence[Question], device: torch.device | None = None) -> Tensor:
    """Unit vectors of the questions, float32 ``[n, D]``, by the base model as it is.

    Raises:
        TrainingError: A question is longer than the encoder's window; as on the server, it is not cut.
    """
    tokenizer = source.encoder_tokenizer("query")
    rows = tokenizer.encode([query_text(question.question) for question in questions])
    for question, row in zip(questions, rows, strict=True):
        if len(row) > source.window:
            raise TrainingError(
                f"question {question.id!r:.80}: {len(row)} tokens are over the {source.window} of {source.name}; "
                "shorten it or leave it out"
            )
    graph = QueryGraph(load_backbone(str(source.path)), source.pooling).eval().to(device)
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
    result = torch.zeros(len(rows), source.dimension)
    for start in range(0, len(order), _BATCH):
        chosen = order[start : start + _BATCH]
        ids, mask = tokenizer.pad([rows[place] for place in chosen], (16, 32, 64, 128, source.window))
        with torch.inference_mode():
            result[chosen] = graph(torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)).float().cpu()
    return result
