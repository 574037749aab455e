"""Late pooling: an item is encoded once, in windows, and each node's vector is pooled from its own tokens' states.

A window is ``head, prefix, pieces of leaves, tail``. Its part 0 is the context, which is everything but the leaves;
parts 1, 2, .. are the pieces, in source order. The encoder gives the mean state of each part. A node's sum is that of
its pieces' tokens and, once, of the context of the windows in which they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from canopy_backend.hierarchy import Hierarchy
from canopy_backend.packing import TOKENS_A_SLOT
from canopy_backend.tokenization import EncoderTokenizer, TokenIds

Int32Array = npt.NDArray[np.int32]
IntpArray = npt.NDArray[np.intp]
Float32Array = npt.NDArray[np.float32]


@dataclass(slots=True)
class Window:
    """One window before its special tokens stand around it.

    Attributes:
        lead: Tokens of the prefix in front of the leaves.
        pieces: Fragment and tokens, at least one token each, in source order.
    """

    lead: TokenIds
    pieces: list[tuple[int, TokenIds]] = field(default_factory=list)

    def sequence(self, tokenizer: EncoderTokenizer) -> TokenIds:
        """What the encoder reads."""
        tokens = [*tokenizer.head, *self.lead]
        for _, piece in self.pieces:
            tokens += piece
        return [*tokens, *tokenizer.tail]

    def layout(self, tokenizer: EncoderTokenizer) -> list[int]:
        """The part of each token: 0 for the context, then one number a piece."""
        parts = [0] * (len(tokenizer.head) + len(self.lead))
        for number, (_, piece) in enumerate(self.pieces, start=1):
            parts += [number] * len(piece)
        return parts + [0] * len(tokenizer.tail)


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Which pieces and windows belong to each node.

    Attributes:
        pieces: int32 ``[N, 2]``, its run of pieces, counted over the item without the contexts.
        windows: int32 ``[N, 2]``, its run of windows. A node without tokens has the window in which it would stand.
        shared: The first windows of an item that hold prefix alone; they belong to every node.
    """

    pieces: Int32Array
    windows: Int32Array
    shared: int


def lay(prefix: TokenIds, leaves: Sequence[TokenIds], tokenizer: EncoderTokenizer) -> list[Window]:
    """Lay an item's leaves into windows, in order, cut at the edges of leaves where that is possible.

    A leaf that does not fit into what is left of a window begins the next one, and only a leaf that is longer than a
    window is cut. Rows have one slot for four tokens, so a window takes no more parts than that.

    Args:
        prefix: Tokens in front of the item's content. Every window starts with them, but where they take more than
            half of it they stand once, and may fill windows of their own.
        leaves: Tokens of each fragment; one without tokens has no piece.
        tokenizer: The node encoder's.

    Returns:
        At least one window.
    """
    start = prefix if tokenizer.repeats(prefix) else []
    fresh = tokenizer.room - len(start)
    first = range(0, max(1, len(prefix)), tokenizer.room)
    windows = [Window(prefix[place : place + tokenizer.room]) for place in first]
    most = max(1, tokenizer.window // TOKENS_A_SLOT - 1)
    free = tokenizer.room - len(windows[-1].lead)
    for fragment, leaf in enumerate(leaves):
        if not leaf:
            continue
        if free < fresh and (len(leaf) > free or len(windows[-1].pieces) == most):
            windows.append(Window(start))
            free = fresh
        for place in range(0, len(leaf), free):  # more than one piece only from a fresh window on
            if place:
                windows.append(Window(start))
            windows[-1].pieces.append((fragment, leaf[place : place + free]))
        free -= len(windows[-1].pieces[-1][1])
    return windows


def reach(hierarchy: Hierarchy, nodes: Int32Array) -> Reach:
    """What belongs to each node.

    Args:
        hierarchy: The item's nodes.
        nodes: int32 ``[P]`` of its plan: -1 at the context that begins each window, then the leaves of the pieces.
    """
    context = nodes < 0
    fragments = hierarchy.first[nodes[~context]]
    window = (np.cumsum(context) - 1)[~context]
    first = np.searchsorted(fragments, hierarchy.first)
    last = np.searchsorted(fragments, hierarchy.last)
    pieces = np.stack([first, last], axis=1).astype(np.int32)
    if not len(window):
        shared = int(context.sum())
        return Reach(pieces, np.full((hierarchy.size, 2), shared, np.int32), shared)
    empty = first == last
    begin = window[np.where(empty, np.maximum(first - 1, 0), first)]
    end = np.where(empty, begin, window[last - 1]) + 1
    return Reach(pieces, np.stack([begin, end], axis=1).astype(np.int32), int(window[0]))


def node_sums(hierarchy: Hierarchy, nodes: Int32Array, weights: Int32Array, means: Float32Array) -> Float32Array:
    """The sum of each node's token states: of its pieces, and of its windows' contexts divided by their number.

    Args:
        hierarchy: The item's nodes.
        nodes: int32 ``[P]``, as for :func:`reach`.
        weights: int32 ``[P]``, tokens of each part.
        means: float32 ``[P, D]``, the encoder's mean state of each part.

    Returns:
        float32 ``[N, D]``, of any length.
    """
    context = nodes < 0
    # Differences of running sums; in double precision, so that a long item's last nodes lose nothing.
    total = means.astype(np.float64) * weights[:, None]
    found = reach(hierarchy, nodes)
    contexts = _running(total[context])
    begin, end = found.windows.T
    count = (found.shared + end - begin)[:, None]
    around = (contexts[found.shared] + contexts[end] - contexts[begin]) / count
    pieces = _running(total[~context])
    first, last = found.pieces.T
    sums: Float32Array = (pieces[last] - pieces[first] + around).astype(np.float32)
    return sums


def _running(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Sums of the rows before each row, and of all of them: ``[n + 1, D]``."""
    sums = np.zeros((len(rows) + 1, rows.shape[1]), np.float64)
    np.cumsum(rows, axis=0, out=sums[1:])
    return sums
