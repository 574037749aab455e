"""Manifests: what an exported encoder is made of, and the revision that tells whether two of them agree."""

from __future__ import annotations

import os
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from canopy_backend.errors import ExportError
from canopy_backend.reading import UNREADABLE, told

#: Name of the manifest in an encoder's folder of the model repository.
MANIFEST_FILE: Final = "manifest.json"
#: Name of the card in the folder of an adapter that was trained here.
CARD_FILE: Final = "canopy_adapter.json"

_VECTOR_FIELDS: Final = (
    "model",
    "model_revision",
    "adapter",
    "template",
    "window",
    "dimension",
    "precision",
    "pooling",
    "node_encoding",
)

#: ``separate`` encodes each node's text alone, ``contextual`` pools nodes from one pass over the item.
NodeEncoding: TypeAlias = Literal["separate", "contextual"]
Pooling: TypeAlias = Literal["mean", "cls", "last"]
#: Arithmetic of the matrix products; norms and pooling are float32 in all of them.
Precision: TypeAlias = Literal["fp32", "fp16", "bf16", "int8"]
_Manifest = TypeVar("_Manifest", bound=msgspec.Struct)
Sha256: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class EncoderManifest(msgspec.Struct, frozen=True, kw_only=True):
    """An exported encoder.

    Attributes:
        model: Name of the base model.
        model_revision: Its revision, or a hash of its weights.
        adapter: Hash of the merged adapter; empty without one.
        template: ``canopy_backend.templates.TEMPLATE_HASH`` at the time of the export.
        window: Most tokens that it reads at once, special tokens included.
        dimension: Length of its vectors.
        precision: Arithmetic of the encoder.
        pooling: How token states become one vector.
        node_encoding: ``separate`` encodes each node's text alone, ``contextual`` pools nodes from one pass.
        pixels: Whether it sees the pictures of items. One that does not reads captions and transcripts.
        files: SHA-256 of each file, by path relative to the manifest's folder.
        versions: Versions of the tools that made it; they do not change the revision.
    """

    model: str
    model_revision: str
    adapter: str = ""
    template: str
    window: Annotated[int, Meta(ge=8)]
    dimension: Annotated[int, Meta(ge=1, le=65535)]
    precision: Precision
    pooling: Pooling
    node_encoding: NodeEncoding = "separate"
    pixels: bool = False
    files: dict[str, Sha256] = {}
    versions: dict[str, str] = {}

    @property
    def revision(self) -> str:
        """The encoder revision: 16 hex digits over everything that changes vectors."""
        values = {name: getattr(self, name) for name in _VECTOR_FIELDS}
        if self.pixels:  # left out where it is false, so that encoders of text keep the revisions they always had
            values["pixels"] = True
        return blake2b(msgspec.json.encode(values), digest_size=8).hexdigest()

    @classmethod
    def load(cls, path: str | Path) -> EncoderManifest:
        """Read a manifest.

        Args:
            path: The file, or the folder that holds it as ``manifest.json``.

        Raises:
            ExportError: It is missing, or not a manifest; the message names the file and the field.
        """
        return _load(_file_of(path), cls)

    def save(self, path: str | Path) -> None:
        """Write the manifest, all of it or nothing; ``path`` as in :meth:`load`."""
        _write(_file_of(path), self)

    def verify(self, folder: str | Path) -> None:
        """Check that the files are those that were exported.

        Raises:
            ExportError: A file is missing or its SHA-256 is another.
        """
        _verify(self.files, Path(folder))

    def require_template(self, template: str) -> None:
        """Check that the encoder was exported for the templates in use.

        Raises:
            ExportError: It was not.
        """
        if self.template != template:
            raise ExportError(
                f"encoder {self.model!r} was exported for template {self.template!r}, this version writes "
                f"{template!r}; run the export again"
            )


class VisionManifest(msgspec.Struct, frozen=True, kw_only=True):
    """An exported vision tower, which both encoders of a model share.

    Attributes:
        model: Name of the base model.
        model_revision: Its revision, which covers the tower's weights; that of both encoders.
        hidden: Numbers of a visual embedding.
        precision: Arithmetic of the tower.
        files: SHA-256 of each file, by path relative to the manifest's folder.
        versions: Versions of the tools that made it.
    """

    model: str
    model_revision: str
    hidden: Annotated[int, Meta(ge=1)]
    precision: Precision
    files: dict[str, Sha256] = {}
    versions: dict[str, str] = {}

    @classmethod
    def load(cls, path: str | Path) -> VisionManifest:
        """Read a manifest, as :meth:`EncoderManifest.load` does."""
        return _load(_file_of(path), cls)

    def save(self, path: str | Path) -> None:
        """Write the manifest, all of it or nothing."""
        _write(_file_of(path), self)

    def verify(self, folder: str | Path) -> None:
        """Check that the files are those that were exported, as :meth:`EncoderManifest.verify` does."""
        _verify(self.files, Path(folder))


class AdapterCard(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter was trained for; stands beside its weights.

    Attributes:
        base: Name of the base model.
        base_revision: Its revision, as an export of it records.
        template: ``canopy_backend.templates.TEMPLATE_HASH`` at the time of the training.
        node_encoding: How nodes were encoded.
        pooling: How token states became one vector.
        dimension: Length of a vector.
        window: Most tokens that were read at once, special tokens included.
        branching: Most children of a node.
    """

    base: str
    base_revision: str
    template: str
    node_encoding: NodeEncoding
    pooling: Pooling
    dimension: Annotated[int, Meta(ge=1, le=65535)]
    window: Annotated[int, Meta(ge=8)]
    branching: Annotated[int, Meta(ge=2)] = 2

    @classmethod
    def load(cls, folder: str | Path) -> AdapterCard:
        """Read the card of an adapter's folder.

        Raises:
            ExportError: It is missing, or not a card; the message names the file and the field.
        """
        file = Path(folder) / CARD_FILE
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except OSError as error:
            raise ExportError(f"adapter card {str(file)!r}: {error.strerror or error}") from None
        except UNREADABLE as error:
            raise ExportError(f"adapter card {str(file)!r}: {told(error)}") from None

    def save(self, folder: str | Path) -> None:
        """Write the card into an adapter's folder, all of it or nothing."""
        _write(Path(folder) / CARD_FILE, self)


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file, 64 hex digits."""
    digest = sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _load(file: Path, kind: type[_Manifest]) -> _Manifest:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except OSError as error:
        raise ExportError(f"encoder manifest {str(file)!r}: {error.strerror or error}; run the export") from None
    except UNREADABLE as error:
        raise ExportError(f"encoder manifest {str(file)!r}: {told(error)}; run the export again") from None


def _verify(files: dict[str, str], folder: Path) -> None:
    for name, expected in files.items():
        file = folder / name
        if not file.is_file():
            raise ExportError(f"encoder file {str(file)!r}: no such file; run the export")
        actual = file_sha256(file)
        if actual != expected:
            raise ExportError(f"encoder file {str(file)!r}: SHA-256 {actual} is not the manifest's {expected}")


def _file_of(path: str | Path) -> Path:
    path = Path(path)
    return path / MANIFEST_FILE if path.is_dir() else path


def _write(file: Path, content: msgspec.Struct) -> None:
    written = file.with_name(file.name + ".partial")
    written.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    os.replace(written, file)
