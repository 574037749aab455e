"""What a TensorRT plan was built from and for; a plan serves with that TensorRT on that GPU and nowhere else.

Triton's own message about a plan that does not fit tells neither what it was built for nor what to do. The Python
models read the description beside each plan when they load, and say both.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Mapping
from ctypes.util import find_library
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from canopy_backend.errors import ExportError
from canopy_backend.manifest import Sha256, file_sha256
from canopy_backend.reading import UNREADABLE, told

#: Name of the plan that Triton looks for, in a version's folder.
PLAN_FILE: Final = "model.plan"
#: Name of the description beside a plan.
PLAN_CARD: Final = "plan.json"
_SECONDS: Final = 30

#: A shape has axes, a profile inputs and a plan profiles; what :meth:`PlanCard.rows` counts is in each of them.
Shape: TypeAlias = Annotated[tuple[int, ...], Meta(min_length=1)]
Profile: TypeAlias = Annotated[dict[str, tuple[Shape, Shape, Shape]], Meta(min_length=1)]


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
    profiles: Annotated[dict[str, Profile], Meta(min_length=1)]
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

    def require_machine(self, plan: Path, *, tensorrt: str, capability: str) -> None:
        """Check that a plan can be served on a machine; what is not known of the machine is not compared.

        Args:
            plan: The plan file, for the message.
            tensorrt: Version of the server's TensorRT, as far as it is known.
            capability: Of the GPU that will serve.

        Raises:
            ExportError: It was built with another TensorRT or for another GPU; says how to build it again.
        """
        for what, built, here in (
            ("TensorRT", self.tensorrt, tensorrt),
            ("compute capability", self.capability, capability),
        ):
            if here and not _same(built, here):
                repository = plan.parent.parent.parent
                raise ExportError(
                    f"plan {str(plan)!r} was built with {what} {built}, this machine has {here}: build it again here, "
                    f"inside the container that serves: python3 -m canopy_export.tensorrt.build {repository}; to serve "
                    f"without plans, delete {plan.with_name(PLAN_CARD)}"
                )

    def require(self, plan: Path, *, tensorrt: str, capability: str) -> None:
        """Check that a plan can be served here, and is whole; arguments as for :meth:`require_machine`.

        Raises:
            ExportError: It was built with another TensorRT or for another GPU, or the file is another.
        """
        self.require_machine(plan, tensorrt=tensorrt, capability=capability)
        if not plan.is_file() or file_sha256(plan) != self.plan:
            raise ExportError(f"plan {str(plan)!r} is not the file that its description names: build it again")

    def rows(self) -> int:
        """Most rows of a call, whatever their width: the smallest of what the profiles take."""
        return min(min(shapes[2][0] for shapes in inputs.values()) for inputs in self.profiles.values())

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


def tensorrt_version(library: Any = None) -> str:
    """Version of this machine's TensorRT, such as ``11.1.0``; empty where there is none.

    Args:
        library: The runtime library; looked for where not given.
    """
    if library is None:
        name = find_library("nvinfer")
        if name is None:
            return ""
        try:
            library = ctypes.CDLL(name)
        except OSError:
            return ""
    try:
        number = int(library.getInferLibVersion())
    except AttributeError:
        return ""
    # From 10 on two digits for each of the last parts; before, one for the second.
    major = 10_000 if number >= 100_000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def check_plan(folder: Path, files: Mapping[str, str]) -> None:
    """Check the plan of an encoder where it has one.

    Args:
        folder: The encoder's folder in the model repository.
        files: SHA-256 of its exported files, as its manifest has them.

    Raises:
        ExportError: The plan was built with another TensorRT than this machine's, for another GPU, or from another
            graph than the one that was exported; says how to build it again.
    """
    for description in sorted(folder.glob(f"*/{PLAN_CARD}")):
        plan = description.with_name(PLAN_FILE)
        card = PlanCard.load(plan.parent)
        try:
            capability = compute_capability()
        except ExportError:
            capability = ""
        card.require_machine(plan, tensorrt=tensorrt_version(), capability=capability)
        for name, built in card.onnx.items():
            if files.get(f"{plan.parent.name}/{name}") != built:
                raise ExportError(
                    f"plan {str(plan)!r} was built from another {name} than the export's: build it again with python3 "
                    f"-m canopy_export.tensorrt.build {folder.parent}"
                )


def _same(left: str, right: str) -> bool:
    """Whether two versions agree in the parts that both have."""
    return all(one == other for one, other in zip(left.split("."), right.split("."), strict=False))
