"""Images, compose file, rules and dashboard agree with the code, with each other and with the documentation."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import deploy_files as files
import pytest
from deploy_files import CHART, ROOT

DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
#: Series of other exporters: Kubernetes', Prometheus' own, and what needs a GPU or a critic to be there.
#: Milvus counts refusals by its rate limits from the first one on.
OTHERS = re.compile(r"(kube|container|vllm|nv_gpu)_|vllm:|up$|milvus_proxy_rate_limit_req_count$")
SERIES = re.compile(r"(?<![\w$\"~/.-])((?:canopy|nv|kube|container|vllm|milvus)[_:][a-z0-9_:]+|up)(?=[{\[\s)]|$)")


def expressions() -> Iterator[tuple[str, str]]:
    """Every query of the rules and of the dashboard, with where it stands."""
    for rule in files.rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


@pytest.fixture(scope="module")
def recorded() -> set[str]:
    """Names of the series that a real evidence server gave after a few requests of each kind, some of them bad, and
    those of a real Milvus after a few searches.
    """
    files = (Path(__file__).with_name(name) for name in ("triton_metrics.txt", "milvus_metrics.txt"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return {re.split(r"[{ ]", line)[0] for line in lines}


def test_every_query_asks_for_series_that_exist(recorded: set[str]) -> None:
    known = recorded | {rule["record"] for rule in files.rules() if "record" in rule}
    asked = 0
    for where, expression in expressions():
        names = set(SERIES.findall(expression))
        assert names, f"{where}: no series in {expression}"
        unknown = {name for name in names - known if not OTHERS.match(name)}
        assert not unknown, f"{where} asks for {unknown}"
        asked += len(names)
    assert asked > 40


def test_the_projects_own_metrics_are_all_shown(recorded: set[str]) -> None:
    shown = {name for _, expression in expressions() for name in SERIES.findall(expression)}
    assert {name for name in recorded if name.startswith("canopy_")} <= shown


def test_the_dashboard_is_what_its_script_writes() -> None:
    script = runpy.run_path(str(ROOT / "kubernetes" / "dashboard.py"))
    assert (CHART / "files" / "dashboard.json").read_text(encoding="utf-8") == script["text"]()


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        box = panel["gridPos"]
        cells = {(x, y) for x in range(box["x"], box["x"] + box["w"]) for y in range(box["y"], box["y"] + box["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.parametrize("alert", files.alerts())
def test_every_alert_is_explained_and_tested(alert: str) -> None:
    assert f"### {alert}\n" in (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    tests = files.load(ROOT / "kubernetes" / "rules-test.yaml")["tests"]
    raised = [case for test in tests for case in test.get("alert_rule_test", []) if case["alertname"] == alert]
    assert any(case["exp_alerts"] for case in raised), "a test that raises it"


def test_alerts_carry_a_severity_and_a_summary() -> None:
    for rule in files.rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
            assert rule["annotations"]["summary"], rule["alert"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_have_pinned_bases_a_user_and_a_probe(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    arguments = dict(re.findall(r"^ARG (\w+_IMAGE)=(\S+)$", text, re.M))
    bases = re.findall(r"^FROM (\S+)(?: AS (\w+))?$", text, re.M)
    assert len(bases) > 1, "built in stages"
    assert {base for base, _ in bases} == {f"${{{name}}}" for name in arguments}
    for name, image in arguments.items():
        assert re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", image), f"{name} has a fixed tag"
    last = text.rpartition("FROM ")[2]
    assert "USER 10001:10001" in last
    assert "canopy_client.cli.probe" in last or "HEALTHCHECK NONE" in last
    assert "pip install" not in last
    assert "apt-get install" not in text


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_copy_what_exists(path: Path) -> None:
    for sources in re.findall(r"^COPY (?!--from)(.+)$", path.read_text(encoding="utf-8"), re.M):
        for source in sources.split()[:-1]:
            assert (ROOT / source).exists(), source


@pytest.mark.parametrize("name", ["probe", "jobs"])
def test_images_install_what_is_tested(name: str) -> None:
    assert files.pins(name).items() <= files.pins("locks/client").items()


def test_a_tag_of_the_server_is_recent_enough_for_its_locks() -> None:
    """numpy 2 needs 25.12 or later; below it every string is misread."""
    for path in DOCKERFILES:
        for year, month in re.findall(r"tritonserver:(\d\d)\.(\d\d)", path.read_text(encoding="utf-8")):
            assert (int(year), int(month)) >= (25, 12)


def test_compose_pins_images_and_opens_loopback_alone() -> None:
    services = files.load(ROOT / "docker" / "compose.yaml")["services"]
    assert {"evidence", "critic", "milvus", "etcd", "minio", "prometheus", "grafana"} <= services.keys()
    for name, service in services.items():
        assert re.search(r":v?[\w.-]*\d[\w.-]*$", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0] if isinstance(volume, str) else ""
            if source.startswith("."):
                assert (ROOT / "docker" / source).exists(), source


def test_composed_servers_trace_with_their_images_own_command() -> None:
    """The file for tracing replaces each command, so it has to repeat it."""
    services = files.load(ROOT / "docker" / "compose.tracing.yaml")["services"]
    for name in ("evidence", "critic"):
        text = (ROOT / "docker" / f"{name}.Dockerfile").read_text(encoding="utf-8")
        own = json.loads(re.findall(r"^CMD (\[.*\])$", text, re.M)[-1])
        assert services[name]["command"][: len(own)] == own
        assert all(flag.startswith("--trace-config=") for flag in services[name]["command"][len(own) :])
        assert f"--trace-config=opentelemetry,resource=service.name=canopy-{name}" in services[name]["command"]
        assert "--trace-config=rate=${CANOPY_TRACING_ONE_IN:-100}" in services[name]["command"]
    assert all(port.startswith("127.0.0.1:") for port in services["jaeger"]["ports"])


def test_the_composed_server_that_sees_has_its_images_own_command_and_the_vision_tower() -> None:
    service = files.load(ROOT / "docker" / "compose.pixels.yaml")["services"]["evidence"]
    text = (ROOT / "docker" / "evidence.Dockerfile").read_text(encoding="utf-8")
    own = json.loads(re.findall(r"^CMD (\[.*\])$", text, re.M)[-1])
    assert service["command"] == [*own, "--load-model=vision_encoder"]
    plain = files.load(ROOT / "docker" / "compose.yaml")["services"]["evidence"]
    assert (plain["shm_size"], service["shm_size"]) == ("1gb", "4gb")


def test_the_charts_version_is_the_packages() -> None:
    chart = files.load(CHART / "Chart.yaml")
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert declared is not None
    assert chart["appVersion"] == declared[1]
