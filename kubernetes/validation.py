"""Renders the chart and holds what comes out, the images and the compose file against schemas and policies.

Needs the packages of ``requirements/deploy.txt``; used by ``tests/unit/deploy`` and by ``report.py``. No cluster and no
container engine is asked.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import helm_python
import kubernetes_validate
import yaml
from cloudcoil.models.keda import v1alpha1 as keda
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "kubernetes" / "canopy"
DOCKERFILES: Final = sorted((ROOT / "docker").glob("*.Dockerfile"))
COMPOSE: Final = ROOT / "docker" / "compose.yaml"
#: Laid over it, one of the two: for traces, and for an encoder that sees pixels.
COMPOSE_TRACING: Final = ROOT / "docker" / "compose.tracing.yaml"
COMPOSE_PIXELS: Final = ROOT / "docker" / "compose.pixels.yaml"
#: The oldest Kubernetes that Chart.yaml admits, and the newest whose schemas the validator has.
VERSIONS: Final = ("1.29", kubernetes_validate.latest_version().rpartition(".")[0])
#: Variables that the compose files ask for.
COMPOSE_VARIABLES: Final = {
    "MINIO_ROOT_USER": "user",
    "MINIO_ROOT_PASSWORD": "password",
    "GRAFANA_PASSWORD": "password",
    "CANOPY_REPOSITORY": "./model_repository",
}
_CUSTOM: Final = {
    "ScaledObject": keda.ScaledObject,
    "ServiceMonitor": prometheus_operator.ServiceMonitor,
    "PrometheusRule": prometheus_operator.PrometheusRule,
}
#: Policy checks that are not met, and why.
EXCEPTIONS: Final = {
    "CKV_K8S_11": "A CPU limit throttles a server that has cores to spare; the request reserves what it needs.",
    "CKV_K8S_15": "Tags and digests of releases do not change, and a node that cannot reach the registry can restart.",
    "CKV_K8S_35": "Triton takes its key as a flag and the Milvus driver its token as a variable: neither reads a file.",
    "CKV_K8S_43": "Digests are known when images are built; `image.digest` of each image takes them.",
    "CKV_DOCKER_7": "The base is a build argument, which the check does not resolve; its default is a fixed tag.",
}


class Manifest(NamedTuple):
    """One rendered object, and the template that it comes from."""

    template: str
    content: dict[str, Any]

    @property
    def name(self) -> str:
        """Kind and name."""
        return f"{self.content['kind']}/{self.content['metadata']['name']}"


class Finding(NamedTuple):
    """A policy check that an object does not meet."""

    check: str
    title: str
    subject: str


def example_values() -> dict[str, dict[str, Any]]:
    """Values by example; ``defaults`` are the chart's own."""
    files = sorted((CHART / "examples").glob("*.yaml"))
    return {"defaults": {}} | {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in files}


def render(values: Mapping[str, Any]) -> list[Manifest]:
    """The objects that these values make.

    Raises:
        helm_python.HelmValuesError: The schema refuses the values.
        helm_python.HelmRenderError: The chart refuses them, or a template fails.
    """
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(dict(values))
        rendered = chart.render(dict(values), name="demo", namespace="search", is_install=True)
    return [
        Manifest(Path(template).name, content)
        for template, text in sorted(rendered.items())
        if template.endswith(".yaml")
        for content in yaml.safe_load_all(text)
        if content
    ]


def schema_errors(manifest: Manifest) -> Iterator[str]:
    """What is wrong with an object: against the API's schemas of :data:`VERSIONS`, or its operator's models."""
    model = _CUSTOM.get(manifest.content["kind"])
    if model is not None:
        yield from _custom_errors(manifest, model)
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(manifest.content, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{manifest.name} ({version}): {error.message}"


def _custom_errors(manifest: Manifest, model: Any) -> Iterator[str]:
    try:
        read = model.model_validate(manifest.content)
    except ValueError as error:
        yield f"{manifest.name}: {error}"
        return
    # The models leave out what they do not know: a name that is not there afterwards is misspelt.
    lost = set(_paths(manifest.content)) - set(_paths(read.model_dump(by_alias=True, exclude_unset=True, mode="json")))
    yield from (f"{manifest.name}: unknown field {path}" for path in sorted(lost))


def _paths(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner, f"{path}[]")
    yield path


def lint_messages() -> list[str]:
    """What Helm's own lint says, but that the optional dependency is not vendored, and that there is no icon."""
    known = ("icon is recommended", "missing these dependencies: milvus")
    found = helm_python.lint(CHART)
    told = [message["error"] for message in found["messages"]] + list(found["errors"])
    return [text for text in told if not any(one in text for one in known)]


def manifest_findings(manifests: list[Manifest]) -> tuple[int, list[Finding]]:
    """Number of policy checks that passed, and those that did not."""
    with tempfile.TemporaryDirectory() as folder:
        objects = (manifest.content for manifest in manifests)
        (Path(folder) / "objects.yaml").write_text(yaml.safe_dump_all(objects), encoding="utf-8")
        return _checkov(folder, "kubernetes")


def dockerfile_findings() -> tuple[int, list[Finding]]:
    """The same for the Dockerfiles."""
    return _checkov(str(ROOT / "docker"), "dockerfile")


def hadolint() -> list[str]:
    """What hadolint says of the Dockerfiles, a line each."""
    done = _run("hadolint", *(str(path) for path in DOCKERFILES))
    return [line.replace(f"{ROOT}/", "") for line in done.stdout.splitlines()]


def compose_services(profile: str, over: Path | None = None) -> list[str]:
    """Services that a profile starts, after Compose has checked the file against its schema.

    Args:
        profile: The profile.
        over: A file that is laid over it.

    Raises:
        ValueError: It does not pass.
    """
    files = ["-f", str(COMPOSE), *(["-f", str(over)] if over else [])]
    done = _run("docker-compose", *files, "--profile", profile, "config", "--services", **COMPOSE_VARIABLES)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return sorted(done.stdout.split())


def tool(name: str) -> str | None:
    """A program beside this Python, or on the path."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.is_file() else shutil.which(name)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool, of Debian's package `prometheus`."""
    return _run("promtool", *arguments)


def _checkov(folder: str, framework: str) -> tuple[int, list[Finding]]:
    done = _run("checkov", "-d", folder, "--framework", framework, "-o", "json", "--quiet", "--compact")
    report = json.loads(done.stdout)
    failed = report["results"]["failed_checks"]
    return report["summary"]["passed"], [Finding(one["check_id"], one["check_name"], one["resource"]) for one in failed]


def _run(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    program = tool(name)
    if program is None:
        raise FileNotFoundError(f"{name} is not installed; make deploy-check brings all but promtool")
    environment = os.environ | variables
    return subprocess.run(  # noqa: S603 - a fixed program
        [program, *arguments], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT, env=environment
    )
