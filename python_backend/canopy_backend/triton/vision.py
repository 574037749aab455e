"""The vision tower inside the server's Python backend: the exported graph in OpenVINO on the CPU."""

from __future__ import annotations

from collections.abc import Mapping

from canopy_backend.errors import InvalidRequest, LimitExceeded
from canopy_backend.manifest import MANIFEST_FILE, VisionManifest
from canopy_backend.triton.encoder import GRAPH_FILE, OpenVinoSession
from canopy_backend.triton.metrics import Tally
from canopy_backend.triton.model import Model, Setting
from canopy_backend.triton.options import COMPRESS_OPTIONS, Options
from canopy_backend.triton.tensors import Array


class VisionModel(Model):
    """``vision_encoder`` of the embedded profile; parameters ``threads`` and ``call_patches``.

    ``patches`` uint8 ``[P, patch]`` and what the host computed of their grids to ``visual`` float32 ``[P / 4, H]``
    and ``deepstack`` float32 ``[3, P / 4, H]``. Frames of several pictures stand one after another, told by ``seg``.
    """

    stage = "vision_encoder"
    inputs = ("patches", "pos_idx", "pos_w", "pos_ids", "seg")
    options = COMPRESS_OPTIONS

    def load(self, setting: Setting) -> None:
        """Load the graph."""
        self._most = int(setting.parameters["call_patches"])
        self._outputs = setting.outputs
        self._session = OpenVinoSession(
            setting.folder / setting.version / GRAPH_FILE,
            threads=int(setting.parameters["threads"]),
            precision=VisionManifest.load(setting.folder / MANIFEST_FILE).precision,
        )

    def answer(self, inputs: Mapping[str, Array], options: Options, tally: Tally) -> dict[str, Array]:
        """Look at the patches of one call."""
        patches = len(inputs["patches"])
        # Attention takes memory with their square, whoever asks.
        if patches > self._most:
            raise LimitExceeded("patches of one call", actual=patches, limit=self._most, name="call_patches")
        if not patches or patches % 4 or {len(one) for one in inputs.values()} != {patches}:
            raise InvalidRequest(f"inputs {', '.join(inputs)}: must have one number of patches, in fours")
        return dict(zip(self._outputs, self._session.outputs(inputs), strict=True))
