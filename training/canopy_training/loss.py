"""The list-wise loss over the preference pairs of an instance."""

from __future__ import annotations

import torch
from torch import Tensor


def listwise(scores: Tensor, pairs: Tensor, owner: Tensor, n_instances: int, scale: float, weights: Tensor) -> Tensor:
    """``log(1 + sum over pairs of w exp(scale * (s(b) - s(a))))`` of each instance (arXiv 2610.00923, training loss).

    Args:
        scores: float32 ``[N]``.
        pairs: int64 ``[K, 2]``, nodes a above b.
        owner: int64 ``[K]``, the instance of each pair; every instance has a pair.
        n_instances: Instances.
        scale: The method's lambda.
        weights: float32 ``[K]``, more than 0; the method's are 1. A weight w asks for a margin of ``log(w) / scale``.

    Returns:
        float32 ``[n_instances]``.
    """
    margins = scale * (scores[pairs[:, 1]] - scores[pairs[:, 0]]) + torch.log(weights)
    # The 1 in the logarithm is a pair of margin 0. Taking the largest margin out first keeps every exponent at most 0.
    peak = torch.zeros(n_instances, device=scores.device)
    peak = peak.scatter_reduce(0, owner, margins.detach(), "amax", include_self=True)
    total = torch.exp(-peak).index_add(0, owner, torch.exp(margins - peak[owner]))
    return torch.log(total) + peak
