"""Adapters blended in weight space: one pulled back toward the base model, or several runs put together.

A fine-tuned encoder learns its task and forgets some of what the base model knew. On the straight line between the two
there are encoders that are nearly as good at the first and better at the second (Wortsman et al., "Robust fine-tuning
of zero-shot models", 2022); averages of runs are often better than each of them ("Model soups", 2022). A LoRA adapter
is the difference from the base model, so a weight below 1 is a point on that line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from msgspec import Meta
from rich.console import Console

from canopy_backend.errors import TrainingError
from canopy_backend.manifest import AdapterCard
from canopy_export.adapter import UNREADABLE, quiet_peft
from canopy_export.example import EXAMPLE_NAME, example_model
from canopy_export.graphs import load_backbone
from canopy_export.source import Source, adapter_revision, node_encoding_of, read_source
from canopy_training.card import CARD_PAGE, blend_page
from canopy_training.manifest import RUN_FILE, RunManifest, read_record, write_record
from canopy_training.model import save_adapter

BLEND_FILE: Final = "blend.json"
_BLENDED: Final = "blended"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter of a blend.

    Attributes:
        revision: Its revision.
        weight: What its difference from the base model is multiplied by.
        run: The manifest of the run that made it; ``None`` where its folder has none.
    """

    revision: str
    weight: Annotated[float, Meta(gt=0, le=1)]
    run: RunManifest | None


class Blend(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter was blended from; stands beside its weights as ``blend.json``."""

    parts: list[Part]

    @classmethod
    def load(cls, folder: Path) -> Blend:
        """Read the file of a blended adapter's folder.

        Raises:
            TrainingError: It is missing or is not such a file.
        """
        return read_record(folder / BLEND_FILE, cls)


def blend_adapters(source: Source, adapters: Sequence[tuple[Path, float]], out: Path) -> Blend:
    """Write the weighted sum of adapters as an adapter, exactly: its rank is the sum of theirs.

    Args:
        source: The base model.
        adapters: Folders of adapters of that base, one template and one node encoding, with their weights, over 0 and
            at most 1 together.
        out: Folder of the new adapter.

    Raises:
        TrainingError: A weight is out of range, or the adapters were not trained for the same use.
        ExportError: A folder holds no adapter, or one for another base or template.
    """
    weights = [weight for _, weight in adapters]
    if not adapters or min(weights) <= 0 or sum(weights) > 1 + 1e-9:
        raise TrainingError(f"weights {weights}: each must be over 0, and their sum at most 1")
    cards = [AdapterCard.load(folder) for folder, _ in adapters]
    for (folder, _), card in zip(adapters, cards, strict=True):
        node_encoding_of(source, folder, None)
        if card != cards[0]:
            raise TrainingError(f"{folder}: trained for {card}, and {adapters[0][0]} for {cards[0]}")
    parts = [_part(folder, weight) for folder, weight in adapters]
    _sum(source, adapters, out)
    cards[0].save(out)
    blend = Blend(parts=parts)
    (out / CARD_PAGE).write_text(blend_page(cards[0], [(part.weight, part.run) for part in parts]), encoding="utf-8")
    write_record(out / BLEND_FILE, blend)
    return blend


def blend(
    adapter: Annotated[list[Path], typer.Option(help="Adapter folder; may be given several times.")],
    weight: Annotated[list[float], typer.Option(help="Its weight; one an adapter, in their order, at most 1 in all.")],
    out: Annotated[Path, typer.Option(help="Folder of the new adapter.")],
    base: Annotated[
        Path | None,
        typer.Option(envvar="CANOPY_MODEL", help="sentence-transformers folder; by default all-MiniLM-L6-v2."),
    ] = None,
) -> None:
    """Blend trained adapters; one of weight below 1 is pulled toward the base model and keeps more gold."""
    if len(adapter) != len(weight):
        raise TrainingError(f"{len(adapter)} adapters and {len(weight)} weights; give one --weight for each --adapter")
    source = read_source(base or example_model(), name=None if base else EXAMPLE_NAME)
    blend_adapters(source, list(zip(adapter, weight, strict=True)), out)
    Console(stderr=True).print(f"adapter in {out}", markup=False, highlight=False)


def _part(folder: Path, weight: float) -> Part:
    run = RunManifest.load(folder) if (folder / RUN_FILE).is_file() else None
    return Part(revision=adapter_revision(folder), weight=weight, run=run)


def _sum(source: Source, adapters: Sequence[tuple[Path, float]], out: Path) -> None:
    from peft import PeftModel

    names = [f"part{place}" for place in range(len(adapters))]
    try:
        with quiet_peft():
            model = PeftModel.from_pretrained(
                load_backbone(str(source.path)), str(adapters[0][0]), adapter_name=names[0]
            )
            for name, (folder, _) in zip(names[1:], adapters[1:], strict=True):
                model.load_adapter(str(folder), adapter_name=name)
            model.add_weighted_adapter(names, [weight for _, weight in adapters], _BLENDED, combination_type="cat")
            model.set_adapter(_BLENDED)
            for name in names:
                model.delete_adapter(name)
            save_adapter(model, out, source.name, _BLENDED)
    except UNREADABLE as error:
        raise TrainingError(f"{[str(folder) for folder, _ in adapters]}: cannot be blended ({error})") from error
