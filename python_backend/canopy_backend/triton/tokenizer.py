"""``tokenizer``: the first step of ``embed_query`` and ``compress_indexed``, queries to the query encoder's rows.

With encoders that see pixels it goes first in ``compress`` too, for its ``ARRIVAL`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from canopy_backend.limits import Limits
from canopy_backend.triton.artefacts import QUERY_ENCODER, load_encoder
from canopy_backend.triton.metrics import Tally
from canopy_backend.triton.model import Model, Setting
from canopy_backend.triton.options import COMPRESS_OPTIONS, Options
from canopy_backend.triton.queries import query_rows
from canopy_backend.triton.sight import PixelStep, padded_positions
from canopy_backend.triton.tensors import Array, string_list
from canopy_backend.triton.waiting import ARRIVAL, arrival


class TokenizerModel(Model):
    """``QUERY`` to ``IDS``, ``MASK`` int64 ``[N,L]``, and ``ARRIVAL``.

    With encoders that see pixels, also ``PLACES`` and ``FEATURES``.
    """

    stage = "tokenizer"
    inputs = ("QUERY",)
    # A request's parameters reach every step of its ensemble; those of compress_indexed are for its last step.
    options = COMPRESS_OPTIONS

    def load(self, setting: Setting) -> None:
        """Load the query encoder's tokenizer."""
        self._limits = Limits.from_parameters(setting.parameters)
        encoder = load_encoder(setting.repository, QUERY_ENCODER)
        self._tokenizer = encoder.tokenizer
        self._pixels = PixelStep(setting, encoder, self._limits, looks=False)

    def answer(self, inputs: Mapping[str, Array], options: Options, tally: Tally) -> dict[str, Array]:
        """Tokenize."""
        seen = arrival()
        ids, mask = query_rows(string_list(inputs["QUERY"]), self._tokenizer, self._limits)
        return {**self._pixels.with_places({"IDS": ids, "MASK": mask}, padded_positions(mask), ""), ARRIVAL: seen}
