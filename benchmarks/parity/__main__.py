"""``python -m benchmarks.parity``: print the parity chain of an encoder that sees pixels.

Without arguments a small model with random weights and a random adapter is made, and each precision gets the server
that runs it. With ``--url`` and ``--repository`` a server that is up already is compared with torch, for instance one
with plans on a GPU.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.parity.chain import Link, Torch, Work, link, run_apart, run_files, run_together
from benchmarks.parity.model import parity_model
from benchmarks.parity.page import measured, rows, write
from benchmarks.parity.serve import serving
from benchmarks.parity.trees import QUERIES, trees
from benchmarks.workload import ROOT
from canopy_backend.manifest import Precision
from canopy_backend.triton.artefacts import load_pair
from canopy_client import CanopyClient
from canopy_export.parity import Outcome
from canopy_local.settings import StackSettings

FOLDER: Final = ROOT / "docs" / "results"
#: What the embedded profile serves; the first is what the others are compared with.
PRECISIONS: Final[tuple[Precision, ...]] = ("fp32", "fp16", "bf16")
_DEADLINE_S: Final = 600.0


def chain(settings: StackSettings, model: Path, adapter: Path | None, folder: Path, work: Work) -> Iterator[Link]:
    """All links of all precisions; the first of them is the reference itself."""
    reference: Outcome | None = None
    for precision in PRECISIONS:
        with serving(settings, folder / precision, model, adapter, precision) as served:
            torch = Torch(model, adapter, served.model_repository)
            if reference is None:
                reference = torch.run(work, merged=False)
                yield link("torch, adapter on", precision, reference, reference, work)
            yield from _library(torch, served.model_repository, reference, work)
            yield from endpoint(served.model_repository, f"127.0.0.1:{served.grpc_port}", reference, work)


def _library(torch: Torch, repository: Path, reference: Outcome, work: Work) -> Iterator[Link]:
    precision: Precision = load_pair(repository)[1].manifest.precision
    runtime = "OpenVINO" if precision == "bf16" else "ONNX Runtime"
    merged = torch.run(work, merged=True, precision=precision)
    yield link("torch, adapter merged", precision, reference, merged, work)
    yield link(f"files in {runtime}, rows packed", precision, reference, run_files(repository, work), work)
    alone = run_files(repository, work, alone=True)
    yield link(f"files in {runtime}, each sequence alone, padded", precision, reference, alone, work)


def endpoint(repository: Path, url: str, reference: Outcome, work: Work) -> Iterator[Link]:
    """The links of a running server.

    Args:
        repository: What it serves.
        url: Its gRPC address.
        reference: Torch's outcome.
        work: The work.
    """
    precision: Precision = load_pair(repository)[1].manifest.precision
    with CanopyClient(url, deadline_s=_DEADLINE_S) as client:
        together = run_together(client, repository, work)
        yield link("Triton, all items together, trees stored", precision, reference, together, work)
        apart = run_apart(client, repository, work)
        yield link("Triton, one item a request, cold", precision, reference, apart, work)


def main() -> None:
    """Measure and print; write with ``--write``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__)
    parser.add_argument("--model", type=Path, help="Qwen3-VL folder; by default a small one with random weights")
    parser.add_argument("--adapter", type=Path, help="adapter folder; by default a random one, or none with --model")
    parser.add_argument("--url", help="gRPC address of a running server, instead of starting some")
    parser.add_argument("--repository", type=Path, help="the model repository that it serves")
    parser.add_argument("--write", action="store_true", help=f"write {FOLDER.relative_to(ROOT)}/parity.md and .json")
    options = parser.parse_args()
    if (options.url is None) != (options.repository is None) or (options.url and not options.model):
        raise SystemExit("--url, --repository and --model belong together")
    work = Work(QUERIES, trees())
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model, adapter = (options.model, options.adapter) if options.model else parity_model(folder)
        if options.url:
            reference = Torch(model, adapter, options.repository).run(work, merged=False)
            found = endpoint(options.repository, options.url, reference, work)
        else:
            found = chain(StackSettings.from_environment(), model, adapter, folder, work)
        links = _told(found)
    name = str(options.model) if options.model else "a small Qwen3-VL with random weights and a random adapter"
    if options.write:
        write(measured(name, work, links), FOLDER, "python -m benchmarks.parity --write")
    print(rows(links))
    if any(one.verdict == "MISSED" for one in links):
        raise SystemExit("a limit is missed")


def _told(found: Iterator[Link]) -> Sequence[Link]:
    links = []
    for one in found:
        print(f"{one.precision}  {one.name}  {one.cosine:.6f}  {one.equal} of {one.decisions}", flush=True)
        links.append(one)
    return links


if __name__ == "__main__":
    main()
