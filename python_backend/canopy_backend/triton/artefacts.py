"""What an export put into the model repository, loaded for the adapters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from canopy_backend.errors import ExportError
from canopy_backend.manifest import EncoderManifest, VisionManifest
from canopy_backend.plan_card import check_plan
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.templates import TEMPLATE_HASH
from canopy_backend.tokenization import EncoderTokenizer, TokenCounter

QUERY_ENCODER: Final = "query_encoder"
NODE_ENCODER: Final = "node_encoder"
VISION_ENCODER: Final = "vision_encoder"
TOKENIZER_FILE: Final = "tokenizer.json"
READER_TOKENIZER: Final = "hierarchy/reader_tokenizer.json"


@dataclass(frozen=True, slots=True)
class EncoderFiles:
    """One encoder's manifest and tokenizer."""

    manifest: EncoderManifest
    tokenizer: EncoderTokenizer


def load_encoder(repository: Path, name: str) -> EncoderFiles:
    """Load the manifest and the tokenizer of an encoder.

    Raises:
        ExportError: A file is missing, the export was made for other templates than this code's, or the encoder has a
            plan that this machine cannot serve.
    """
    folder = repository / name
    # By its file name: with the folder alone, a missing folder would be read as the file.
    manifest = EncoderManifest.load(folder / "manifest.json")
    manifest.require_template(TEMPLATE_HASH)
    check_plan(folder, manifest.files)
    return EncoderFiles(manifest, EncoderTokenizer(folder / TOKENIZER_FILE, manifest.window))


def load_pair(repository: Path) -> tuple[EncoderFiles, EncoderFiles]:
    """The query encoder's and the node encoder's files, which must come from one base model.

    Raises:
        ExportError: As for :func:`load_encoder`, or the two cannot be compared.
    """
    query, node = load_encoder(repository, QUERY_ENCODER), load_encoder(repository, NODE_ENCODER)
    both = (query.manifest, node.manifest)
    bases = [(one.model, one.model_revision, one.dimension, one.pixels) for one in both]
    if bases[0] != bases[1]:
        raise ExportError(f"the encoders have different base models, {bases[0]} and {bases[1]}; run the export again")
    return query, node


def load_vision(repository: Path, encoder: EncoderManifest) -> VisionSettings:
    """The settings of the vision tower that an encoder goes with.

    Raises:
        ExportError: A file is missing, the tower is another model's or of another precision, or has a plan that this
            machine cannot serve.
    """
    folder = repository / VISION_ENCODER
    tower = VisionManifest.load(folder / "manifest.json")
    if (tower.model, tower.model_revision) != (encoder.model, encoder.model_revision):
        raise ExportError(
            f"the vision tower is of {tower.model!r}, the encoders of {encoder.model!r}; run the export again"
        )
    if tower.precision != encoder.precision:
        raise ExportError(
            f"the vision tower is {tower.precision}, the encoders are {encoder.precision}; run the export again"
        )
    check_plan(folder, tower.files)
    return VisionSettings.load(folder)


def load_counter(repository: Path) -> TokenCounter:
    """The reader's token counter.

    Raises:
        ExportError: The file is missing.
    """
    return TokenCounter(repository / READER_TOKENIZER)
