"""Pixels of a request: the vision tower and the encoders, called by the first step of ``compress`` and ``index``.

An ensemble runs all of its steps for every request. The vision tower is therefore no step: the first step calls it, and
only for items that bring pictures and no tree. What it saw goes to the encoders from here too, a bounded number of
tokens a call; they batch these rows with those of other requests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from canopy_backend.errors import CanopyError, DeadlineExceeded, ExportError, Overloaded
from canopy_backend.fragments import Fragments
from canopy_backend.hierarchy import Hierarchy
from canopy_backend.items import Item
from canopy_backend.limits import Limits
from canopy_backend.plan import See
from canopy_backend.qwen3vl.serving import no_features, text_places
from canopy_backend.qwen3vl.sight import SeenItem, Sight, patches_of
from canopy_backend.triton.artefacts import NODE_ENCODER, QUERY_ENCODER, VISION_ENCODER, EncoderFiles, load_vision
from canopy_backend.triton.backend import pb_utils
from canopy_backend.triton.model import Setting
from canopy_backend.triton.tensors import Array
from canopy_backend.triton.waiting import check_wait, longest_wait_s

#: Parameter of a first step's configuration: whether the encoders that it was written for see pixels.
PIXELS: Final = "pixels"


class Call:
    """A model of the server as a function.

    Args:
        model: Its name.
        outputs: Its outputs, in the order in which they are returned.

    Attributes:
        until: Moment of :func:`time.monotonic` after which it is not called any more.
        request_id: Of the request that the calls are made for.
    """

    def __init__(self, model: str, outputs: Sequence[str]) -> None:
        self._model = model
        self._outputs = list(outputs)
        self.until = math.inf
        self.request_id = ""

    def __call__(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Call the model.

        Raises:
            DeadlineExceeded: The time of the request is over.
            Overloaded: The model's queue is full.
            CanopyError: It failed.
        """
        left = self.until - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"the time of the request was over before {self._model} was asked")
        utils = pb_utils()
        request = utils.InferenceRequest(
            model_name=self._model,
            requested_output_names=self._outputs,
            request_id=self.request_id,
            inputs=[utils.Tensor(name, np.ascontiguousarray(array)) for name, array in inputs.items()],
            timeout=0 if math.isinf(left) else max(1, int(left * 1e6)),
            preferred_memory=utils.PreferredMemory(utils.TRITONSERVER_MEMORY_CPU, 0),
        )
        response = request.exec()
        if response.has_error():
            raise _error(self._model, response.error())
        return [utils.get_output_tensor_by_name(response, name).as_numpy() for name in self._outputs]


def _error(model: str, error: Any) -> CanopyError:
    message = f"{model}: {error.message()}"
    if "maximum queue size" in message.lower():
        return Overloaded(message)
    if model == VISION_ENCODER and "not ready" in message:
        message += f"; no ensemble loads it: start the server with --load-model={VISION_ENCODER}"
    late = error.code() == pb_utils().TritonError.CANCELLED or "timeout expired" in message.lower()
    return DeadlineExceeded(message) if late else CanopyError(message)


class PixelStep:
    """What a step does with pixels: give rows their form, and, where it looks, see the items with pictures.

    Args:
        setting: The step's; one that looks has the parameter ``max_wait_ms``.
        encoder: The files of the encoder whose rows it writes.
        limits: Of a request.
        looks: Whether it has to see items with pictures.
        whole: Whether the retrieval vectors of whole items are wanted too.

    Attributes:
        sees: Whether the encoders see pixels; all else is for those that do.

    Raises:
        ExportError: Configuration and encoders do not go together, or the vision tower is missing.
    """

    def __init__(
        self, setting: Setting, encoder: EncoderFiles, limits: Limits, *, looks: bool = True, whole: bool = False
    ) -> None:
        self.sees = encoder.manifest.pixels
        configured = setting.parameters.get(PIXELS, "false") == "true"
        if configured != self.sees:
            told, other = ("sees", "does not") if self.sees else ("does not see", "does")
            raise ExportError(
                f"encoder {encoder.manifest.model!r} {told} pixels, and the repository's configurations are for one "
                f"that {other}; run the export again"
            )
        self._limits = limits
        if not self.sees:
            return
        settings = load_vision(setting.repository, encoder.manifest)
        self.hidden = settings.hidden
        if looks:
            self._longest_s = longest_wait_s(setting.parameters)
            vision, node = Call(VISION_ENCODER, ("visual", "deepstack")), Call(NODE_ENCODER, ("embeddings",))
            query = Call(QUERY_ENCODER, ("embedding",)) if whole else None
            self._calls = [call for call in (vision, node, query) if call is not None]
            self._sight = Sight(encoder.tokenizer, settings, vision, node, query, limits.max_rows)

    def see(self, waited: float, until: float, request_id: str) -> See | None:
        """How the items of one request are seen; ``None`` where encoders do not.

        Args:
            waited: Seconds that it waited for its turn. A request that waited too long is refused when its first
                picture is to be looked at: what brings none costs little, and gets through.
            until: When its time is over.
            request_id: Its id.
        """
        if not self.sees:
            return None
        for call in self._calls:
            call.until, call.request_id = until, request_id
        patches = 0

        def see(index: int, item: Item, fragments: Fragments, hierarchy: Hierarchy) -> SeenItem:
            nonlocal patches
            check_wait(waited, timeout_us=0, longest_s=self._longest_s)
            plan = self._sight.plan(item, fragments, hierarchy)
            name = f"item {index} ({item.id!r:.80}): patches of its pictures"
            self._limits.check("max_patches", patches_of(plan), name)
            patches += patches_of(plan)
            self._limits.check("max_patches", patches, "patches of the request's pictures")
            return self._sight.encode(plan, hierarchy)

        return see

    def with_places(self, rows: dict[str, Array], positions: Array, prefix: str) -> dict[str, Array]:
        """Tensors of text rows as this repository's encoders take them.

        Args:
            rows: The tensors of encoders of text.
            positions: int64 ``[R, L]``, position of each token in its sequence.
            prefix: Of the names of the tensors that are added.
        """
        if not self.sees:
            return rows
        kept = {name: array for name, array in rows.items() if not name.endswith("POSITIONS")}
        kept[f"{prefix}PLACES"] = text_places(positions)
        kept[f"{prefix}FEATURES"] = no_features(len(positions), self.hidden)
        return kept


def padded_positions(mask: Array) -> Array:
    """Positions int64 ``[N, L]`` of rows that are padded on the right."""
    positions: Array = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    return positions
