"""What a plan file was built from and for; a plan serves with that TensorRT on that GPU and nowhere else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import msgspec

from canopy_backend.errors import ExportError
from canopy_backend.manifest import Sha256, file_sha256
from canopy_backend.reading import UNREADABLE, told

#: Name of the description beside a plan.
PLAN_CARD: Final = "plan.json"
_SECONDS: Final = 30


class PlanCard(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a plan.

    Attributes:
        onnx: SHA-256 of the graph and of its weights, by file name.
        plan: SHA-256 of the plan.
        tensorrt: Version that built it.
        capability: Compute capability of the GPU, such as ``9.0``.
        profiles: For each profile its name and the smallest, usual and largest shape of each input.
        typed: Types come from the graph alone.
    """

    onnx: dict[str, Sha256]
    plan: Sha256
    tensorrt: str
    capability: str
    profiles: dict[str, dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]]
    typed: bool = True

    @classmethod
    def load(cls, folder: Path) -> PlanCard:
        """Read the description in a folder.

        Raises:
            ExportError: It is missing or malformed.
        """
        file = folder / PLAN_CARD
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except OSError as error:
            raise ExportError(f"plan description {str(file)!r}: {error.strerror or error}; build the plan") from None
        except UNREADABLE as error:
            raise ExportError(f"plan description {str(file)!r}: {told(error)}; build the plan again") from None

    def save(self, folder: Path) -> None:
        """Write the description, all of it or nothing."""
        partial = folder / f"{PLAN_CARD}.partial"
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        os.replace(partial, folder / PLAN_CARD)

    def require(self, plan: Path, *, tensorrt: str, capability: str) -> None:
        """Check that a plan can be served here.

        Args:
            plan: The plan file.
            tensorrt: Version of the server's TensorRT.
            capability: Of the GPU that will serve.

        Raises:
            ExportError: It was built with another TensorRT or for another GPU, or the file is another.
        """
        for what, built, here in (
            ("TensorRT", self.tensorrt, tensorrt),
            ("compute capability", self.capability, capability),
        ):
            if built != here:
                raise ExportError(
                    f"plan {str(plan)!r} was built with {what} {built}, this machine has {here}: build it again here, "
                    "inside the container that serves"
                )
        if not plan.is_file() or file_sha256(plan) != self.plan:
            raise ExportError(f"plan {str(plan)!r} is not the file that its description names: build it again")

    def made_from(self, graph: Path) -> bool:
        """Whether the plan was built from this graph and these weights."""
        return self.onnx == graph_hashes(graph)


def graph_hashes(graph: Path) -> dict[str, str]:
    """SHA-256 of an ONNX file and of the weights beside it, by file name."""
    files = (graph, graph.with_name(f"{graph.name}.data"))
    return {file.name: file_sha256(file) for file in files if file.is_file()}


def compute_capability(gpu: int = 0) -> str:
    """Compute capability of a GPU of this machine, such as ``9.0``.

    Raises:
        ExportError: There is none, or the driver does not answer.
    """
    command = ["nvidia-smi", f"--id={gpu}", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)  # noqa: S603
    except FileNotFoundError:
        raise ExportError("nvidia-smi is not there: plans are built on the machine whose GPU will serve") from None
    except subprocess.SubprocessError as error:
        raise ExportError(f"nvidia-smi does not tell the GPU's compute capability ({error})") from None
    found = answer.stdout.strip()
    major, dot, minor = found.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal()):
        raise ExportError(f"nvidia-smi tells no compute capability but {found!r}")
    return found
