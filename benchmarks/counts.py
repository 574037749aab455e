"""What Triton's statistics endpoint counts: inferences (rows of a batch) and executions (calls of a model)."""

from __future__ import annotations

import msgspec
from tritonclient.grpc import InferenceServerClient


class Count(msgspec.Struct, frozen=True):
    """Of one model.

    Attributes:
        inferences: Rows that it answered.
        executions: Times that it was called; fewer where the dynamic batcher merged requests.
        requests: Requests that it answered.
        queue_ms: Time that those waited, together.
        compute_ms: Time that it computed, together.
    """

    inferences: int
    executions: int
    requests: int
    queue_ms: float
    compute_ms: float

    def since(self, before: Count) -> Count:
        """What was added since ``before``."""
        return Count(
            self.inferences - before.inferences,
            self.executions - before.executions,
            self.requests - before.requests,
            self.queue_ms - before.queue_ms,
            self.compute_ms - before.compute_ms,
        )


def counts(url: str) -> dict[str, Count]:
    """Counts of all models of the server at ``url`` (``host:port`` of gRPC)."""
    with InferenceServerClient(url) as client:
        answer = client.get_inference_statistics()
    found = {}
    for model in answer.model_stats:
        spent = model.inference_stats
        found[str(model.name)] = Count(
            int(model.inference_count),
            int(model.execution_count),
            int(spent.success.count),
            spent.queue.ns / 1e6,
            spent.compute_infer.ns / 1e6,
        )
    return found


def since(before: dict[str, Count], after: dict[str, Count]) -> dict[str, Count]:
    """What was added between two looks, of the models that ran."""
    added = {name: count.since(before.get(name, Count(0, 0, 0, 0.0, 0.0))) for name, count in after.items()}
    return {name: count for name, count in added.items() if count.requests}
