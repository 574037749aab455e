"""Policies, linters and rule tests: the programs that operators run, on what this project ships."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deploy_files import CHART, ROOT

sys.path.insert(0, str(ROOT / "kubernetes"))


def program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: make deploy-check, and Debian's package prometheus for promtool")
    return found


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


def test_rules_are_read() -> None:
    done = promtool("check", "rules", str(CHART / "files" / "rules.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should_and_not_before() -> None:
    done = promtool("test", "rules", "kubernetes/rules-test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_composed_prometheus_reads_its_configuration() -> None:
    done = promtool("check", "config", "--syntax-only", "docker/prometheus/prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_panels_query_is_read(tmp_path: Path) -> None:
    panels = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries)
    ]
    path = tmp_path / "panels.yaml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    done = promtool("check", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(rules) > 25


def test_dockerfiles_pass_hadolint() -> None:
    files = [str(path) for path in sorted((ROOT / "docker").glob("*.Dockerfile"))]
    done = subprocess.run([program("hadolint"), *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_policy_findings_all_have_their_reason() -> None:
    program("checkov")
    pytest.importorskip("helm_python", reason="Helm is not installed: make deploy-check")
    import validation

    manifests = [one for values in validation.example_values().values() for one in validation.render(values)]
    passed, findings = validation.manifest_findings(manifests)
    images_passed, image_findings = validation.dockerfile_findings()
    assert passed > 500
    assert images_passed > 200
    assert {one.check for one in [*findings, *image_findings]} == set(validation.EXCEPTIONS), "neither more nor fewer"


@pytest.mark.parametrize(
    ("profile", "services"),
    [
        ("cpu", {"evidence", "etcd", "minio", "milvus", "prometheus", "grafana"}),
        ("gpu", {"evidence", "critic", "etcd", "minio", "milvus", "prometheus", "grafana"}),
        ("jobs", {"client"}),
    ],
)
def test_compose_starts_what_a_profile_promises(profile: str, services: set[str]) -> None:
    program("docker-compose")
    pytest.importorskip("helm_python", reason="the validators are not installed: make deploy-check")
    import validation

    assert set(validation.compose_services(profile)) == services
    traced = services | ({"jaeger"} if profile != "jobs" else set())
    assert set(validation.compose_services(profile, validation.COMPOSE_TRACING)) == traced
    assert set(validation.compose_services(profile, validation.COMPOSE_PIXELS)) == services


def test_compose_asks_for_passwords_by_name() -> None:
    done = subprocess.run(
        [program("docker-compose"), "-f", "docker/compose.yaml", "--profile", "cpu", "config", "-q"],
        capture_output=True, text=True, check=False, cwd=ROOT, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode != 0
    assert "set MINIO_ROOT_USER" in done.stderr
