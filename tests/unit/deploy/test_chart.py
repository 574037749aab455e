"""The chart as Helm renders it: real schemas, refusals in plain words, and what must hold in every example."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deploy_files import ROOT

pytest.importorskip("helm_python", reason="Helm is not installed: make deploy-check")
pytest.importorskip("kubernetes_validate", reason="the API schemas are not installed: make deploy-check")
pytest.importorskip("cloudcoil.models.keda", reason="the operators' models are not installed: make deploy-check")
sys.path.insert(0, str(ROOT / "kubernetes"))

import helm_python
import validation
from validation import Manifest

EXAMPLES = validation.example_values()
SERVER = Path(".canopy/venvs/server/lib")
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@pytest.fixture(scope="module", params=EXAMPLES, ids=str)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return validation.render(EXAMPLES[request.param])


def pods(manifests: list[Manifest]) -> list[dict[str, Any]]:
    """Specifications of all pods."""
    found = []
    for one in manifests:
        spec = one.content.get("spec", {})
        if one.content["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if one.content["kind"] in ("Deployment", "Job", "CronJob"):
            found.append(spec["template"]["spec"])
    return found


def servers(manifests: list[Manifest]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pod and container of each server."""
    return [(pod, pod["containers"][0]) for pod in pods(manifests) if pod["containers"][0]["name"] == "tritonserver"]


def kinds(manifests: list[Manifest]) -> list[str]:
    return [one.content["kind"] for one in manifests]


def refused(values: dict[str, Any]) -> str:
    with pytest.raises((helm_python.HelmValuesError, helm_python.HelmRenderError)) as raised:
        validation.render(values)
    return str(raised.value)


def test_every_object_fits_its_schema(manifests: list[Manifest]) -> None:
    assert [error for one in manifests for error in validation.schema_errors(one)] == []


def test_a_wrong_field_is_found(manifests: list[Manifest]) -> None:
    for one in manifests:
        if isinstance(one.content.get("spec"), dict):
            wrong = Manifest(one.template, one.content | {"spec": one.content["spec"] | {"nonsense": 1}})
            assert list(validation.schema_errors(wrong)), one.name


def test_names_are_unique(manifests: list[Manifest]) -> None:
    names = [one.name for one in manifests]
    assert len(names) == len(set(names))


def test_pods_are_restricted(manifests: list[Manifest]) -> None:
    """Kubernetes' own 'restricted' standard, a read-only root, and no access to the cluster."""
    for pod in pods(manifests):
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} <= container["resources"].keys()


def test_every_mount_has_its_volume(manifests: list[Manifest]) -> None:
    for pod in pods(manifests):
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounted = set()
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            mounted |= {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == volumes


def test_shared_memory_is_sized(manifests: list[Manifest]) -> None:
    for pod, container in servers(manifests):
        shm = next(volume for volume in pod["volumes"] if volume["name"] == "shm")
        assert shm["emptyDir"]["medium"] == "Memory"
        assert shm["emptyDir"]["sizeLimit"]
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]


def test_probes_are_real_inferences_with_time_to_answer(manifests: list[Manifest]) -> None:
    for _, container in servers(manifests):
        environment = {one["name"]: one.get("value") for one in container["env"]}
        for name in PROBES:
            probe = container[name]
            assert probe["exec"]["command"][1:3] == ["-m", "canopy_client.cli.probe"]
            assert probe["timeoutSeconds"] > float(environment["CANOPY_PROBE_TIMEOUT_S"])
        passing = {name: "--busy-passes" in container[name]["exec"]["command"] for name in PROBES}
        assert passing == {"startupProbe": False, "readinessProbe": True, "livenessProbe": True}


def test_busy_servers_can_be_taken_out() -> None:
    ((_, container),) = servers(validation.render({"evidence": {"probes": {"busyIsReady": False}}}))
    assert "--busy-passes" not in container["readinessProbe"]["exec"]["command"]


def test_the_drain_outlasts_the_slowest_request(manifests: list[Manifest]) -> None:
    for pod, container in servers(manifests):
        values = EXAMPLES["defaults"] or validation.yaml.safe_load((validation.CHART / "values.yaml").read_text())
        server = values["critic" if "--load-model=critic" in container["args"] else "evidence"]
        drain = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
        assert drain >= server["slowestRequestSeconds"] + server["connectionAgeSeconds"]
        assert pod["terminationGracePeriodSeconds"] > drain + server["exitTimeoutSeconds"]


def test_only_health_metadata_and_inference_are_open(manifests: list[Manifest]) -> None:
    closed = {"shared-memory", "model-config", "model-repository", "statistics", "trace", "logging"}
    for _, container in servers(manifests):
        flags = dict(argument.split("=", 1) for argument in container["args"] if "=" in argument)
        assert set(flags["--grpc-restricted-protocol"].partition(":")[0].split(",")) == closed
        assert set(flags["--http-restricted-api"].partition(":")[0].split(",")) == closed | {"inference"}
        assert flags["--grpc-restricted-protocol"].endswith("canopy-admin=$(CANOPY_ADMIN_KEY)"), "not the key itself"


def test_services_select_their_pods_and_policies_admit_them(manifests: list[Manifest]) -> None:
    labels = [
        one.content["spec"]["template"]["metadata"]["labels"]
        for one in manifests
        if one.content["kind"] == "Deployment"
    ]
    for one in manifests:
        spec = one.content.get("spec", {})
        if one.content["kind"] == "Service":
            assert spec["clusterIP"] == "None"
            assert any(spec["selector"].items() <= pod.items() for pod in labels)
        if one.content["kind"] == "PodDisruptionBudget":
            assert any(spec["selector"]["matchLabels"].items() <= pod.items() for pod in labels)
        if one.content["kind"] == "NetworkPolicy":
            assert set(spec["policyTypes"]) == {"Ingress", "Egress"}


def test_flags_are_known_to_a_real_server(manifests: list[Manifest]) -> None:
    found = sorted((ROOT / SERVER).glob("python3*/site-packages/pytriton/tritonserver/bin/tritonserver"))
    if not found:
        pytest.skip("no tritonserver: make up installs it")
    libraries = found[0].parents[3] / "nvidia_pytriton.libs"
    shown = subprocess.run(
        [str(found[0]), "--help"], env={"LD_LIBRARY_PATH": str(libraries)}, capture_output=True, text=True, check=False
    )
    known = set(re.findall(r"^\s+(--[a-z0-9-]+)", shown.stdout + shown.stderr, re.M))
    assert "--model-repository" in known
    for _, container in servers(manifests):
        assert {argument.partition("=")[0] for argument in container["args"]} <= known


def test_replicas_are_left_to_the_autoscaler() -> None:
    for kind, target in (("keda", "ScaledObject"), ("hpa", "HorizontalPodAutoscaler")):
        scaling = {"kind": kind, "prometheusUrl": "http://prometheus:9090"}
        manifests = validation.render({"evidence": {"autoscaling": scaling}})
        assert target in kinds(manifests)
        deployment = next(one for one in manifests if one.content["kind"] == "Deployment")
        assert "replicas" not in deployment.content["spec"]
    assert not {"ScaledObject", "HorizontalPodAutoscaler"} & set(kinds(validation.render({})))


def test_the_scalers_query_is_read_by_promtool(tmp_path: Path) -> None:
    if not validation.tool("promtool"):
        pytest.skip("no promtool: Debian's package prometheus has it")
    manifests = validation.render(EXAMPLES["autoscaled"])
    scaled = next(one for one in manifests if one.content["kind"] == "ScaledObject")
    query = next(one["metadata"]["query"] for one in scaled.content["spec"]["triggers"] if one["type"] == "prometheus")
    path = tmp_path / "rules.yaml"
    path.write_text(validation.yaml.safe_dump({"groups": [{"name": "x", "rules": [{"record": "x", "expr": query}]}]}))
    assert validation.promtool("check", "rules", str(path)).returncode == 0


def test_an_indexed_job_gives_each_pod_its_shard() -> None:
    manifests = validation.render(EXAMPLES["autoscaled"])
    job = next(one.content for one in manifests if one.content["kind"] == "Job")
    assert job["spec"]["completionMode"] == "Indexed"
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (64, 8)
    assert job["spec"]["template"]["spec"]["containers"][0]["args"][:2] == [
        "index",
        "/items/shard-$(JOB_COMPLETION_INDEX)",
    ]


def test_plans_are_built_from_the_graphs_before_the_server_starts() -> None:
    manifests = validation.render(EXAMPLES["gpu"])
    pod = next(pod for pod, container in servers(manifests) if "--load-model=compress" in container["args"])
    copy, *plans = pod["initContainers"]
    assert copy["command"][:2] == ["cp", "-r"]
    assert [plan["name"] for plan in plans] == ["plan-query-encoder", "plan-node-encoder"]
    for plan, model in zip(plans, ("query_encoder", "node_encoder"), strict=True):
        assert plan["command"][1:3] == ["-m", "canopy_export.tensorrt.build"]
        assert plan["command"][3:5] == [f"/plans/{model}/1/model.onnx", f"/plans/{model}/1"]
        assert plan["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_the_vision_tower_is_loaded_where_the_encoder_sees(manifests: list[Manifest]) -> None:
    for pod, container in servers(manifests):
        if "--load-model=compress" in container["args"]:
            sees = "--load-model=vision_encoder" in container["args"]
            assert sees is (pod["volumes"][0]["emptyDir"]["sizeLimit"] == "4Gi")
            assert sees is (container["resources"]["limits"]["memory"] == "24Gi")


def test_pixels_bring_the_tower_its_plan_and_its_sizes() -> None:
    ((pod, container),) = servers(validation.render(EXAMPLES["pixels"]))
    assert container["args"].count("--load-model=vision_encoder") == 1
    _, *plans = pod["initContainers"]
    assert [plan["name"] for plan in plans] == ["plan-query-encoder", "plan-node-encoder", "plan-vision-encoder"]
    assert plans[-1]["command"][3:5] == ["/plans/vision_encoder/1/model.onnx", "/plans/vision_encoder/1"]
    sizes = {volume["name"]: volume.get("emptyDir", {}).get("sizeLimit") for volume in pod["volumes"]}
    assert (sizes["shm"], sizes["plans"]) == ("4Gi", "36Gi")
    for one in (container, *plans):
        assert one["resources"]["requests"] == {"cpu": "8", "memory": "24Gi"}
        assert one["resources"]["limits"] == {"memory": "24Gi", "nvidia.com/gpu": 1}


def test_the_sizes_of_pixels_are_values() -> None:
    pixels = {"enabled": True, "sharedMemory": "6Gi", "memory": "40Gi"}
    ((pod, container),) = servers(validation.render({"evidence": {"pixels": pixels}}))
    assert pod["volumes"][0]["emptyDir"]["sizeLimit"] == "6Gi"
    assert container["resources"]["limits"] == {"memory": "40Gi"}


def test_the_local_stack_loads_the_same_models() -> None:
    """What it reads off the repository's manifest, the chart is told by a value."""
    source = (ROOT / "local" / "canopy_local" / "triton_server.py").read_text(encoding="utf-8")
    local = re.search(r"^MODELS: Final = \{EVIDENCE: \((.*?)\)", source, re.M)
    assert local is not None
    names = re.findall(r'"(\w+)"', local[1])
    assert names
    for sees in (False, True):
        ((_, container),) = servers(validation.render({"evidence": {"pixels": {"enabled": sees}}}))
        loaded = [flag.partition("=")[2] for flag in container["args"] if flag.startswith("--load-model=")]
        assert loaded == ([*names, "vision_encoder"] if sees else names)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"evidence": {"replicas": "two"}}, "'/evidence/replicas': got string, want integer"),
        ({"evidence": {"profile": "cuda"}}, "must be one of 'onnx', 'tensorrt', 'embedded'"),
        ({"evidnce": {}}, "'evidnce' not allowed"),
        ({"evidence": {"sharedMemory": "1 GB"}}, "'/evidence/sharedMemory': '1 GB' does not match"),
        ({"evidence": {"image": {"digest": "sha256:1"}}}, "'/evidence/image/digest'"),
        ({"evidence": {"extraArguments": ["log-verbose=1"]}}, "'/evidence/extraArguments/0'"),
        ({"retrieval": {"milvusUri": "milvus:19530"}}, "'/retrieval/milvusUri'"),
        ({"evidence": {"profile": "tensorrt"}}, "needs a GPU: set evidence.gpu.enabled=true"),
        ({"evidence": {"profile": "tensorrt", "gpu": {"enabled": True}}}, "needs plans: set evidence.plan.enabled"),
        ({"evidence": {"plan": {"enabled": True}}}, "evidence.profile=onnx does not load"),
        ({"evidence": {"pixels": True}}, "'/evidence/pixels': got boolean, want object"),
        ({"evidence": {"pixels": {"memory": "24 GB"}}}, "'/evidence/pixels/memory': '24 GB' does not match"),
        (
            {"evidence": {"pixels": {"enabled": True}, "extraArguments": ["--load-model=vision_encoder"]}},
            "leave --load-model=vision_encoder out of evidence.extraArguments",
        ),
        ({"evidence": {"autoscaling": {"kind": "keda"}}}, "needs evidence.autoscaling.prometheusUrl"),
        ({"evidence": {"autoscaling": {"kind": "hpa", "cpuPercent": 0, "queueRatio": 0}}}, "needs a metric"),
        ({"evidence": {"autoscaling": {"minReplicas": 9}}}, "minReplicas is above maxReplicas"),
        ({"evidence": {"probes": {"inferenceSeconds": 60}}}, "evidence.probes.startup.timeoutSeconds must be above"),
        ({"critic": {"enabled": True}}, "needs critic.model.existingClaim"),
        ({"security": {"tls": {"enabled": True}}}, "needs security.tls.existingSecret"),
        ({"security": {"tls": {"mutual": True}}}, "needs security.tls.enabled=true"),
        ({"ingest": {"job": {"enabled": True}}}, "needs ingest.existingClaim"),
        ({"ingest": {"cronJob": {"enabled": True}, "existingClaim": "items"}}, "needs a Milvus"),
        ({"tracing": {"enabled": True}}, "needs tracing.url"),
        ({"tracing": {"rate": 2}}, "'/tracing/rate'"),
        ({"logging": {"format": "xml"}}, "must be one of 'text', 'json'"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_values_are_refused_in_plain_words(values: dict[str, Any], words: str) -> None:
    assert words in refused(values)


@pytest.mark.parametrize(("share", "number"), [(0.01, "100"), (0.3, "3"), (1, "1"), (0, "0"), (0.00001, "100000")])
def test_a_share_of_traces_is_given_to_triton_as_one_in_so_many(share: float, number: str) -> None:
    values = {"tracing": {"enabled": True, "url": "http://collector:4318/v1/traces", "rate": share}}
    ((_, container),) = servers(validation.render(values))
    assert f"--trace-config=rate={number}" in container["args"]


def test_traces_may_leave_and_nothing_else_may() -> None:
    traced = {"tracing": {"enabled": True, "url": "http://collector:14318/v1/traces"}}
    for values, ports in (({}, []), (traced, [53, 53, 14318])):
        policies = [one for one in validation.render(values) if one.content["kind"] == "NetworkPolicy"]
        rules = policies[0].content["spec"]["egress"]
        assert [port["port"] for rule in rules for port in rule["ports"]] == ports


def test_the_jobs_trace_and_log_as_the_servers_do() -> None:
    values = EXAMPLES["autoscaled"] | {
        "tracing": {"enabled": True, "url": "http://collector:4318/v1/traces"},
        "logging": {"format": "json", "level": "warning"},
    }
    manifests = validation.render(values)
    job = next(one.content for one in manifests if one.content["kind"] == "Job")
    environment = {one["name"]: one.get("value") for one in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert environment["CANOPY_TRACING_RATE"] == "0.01"
    for one in (
        environment,
        *({e["name"]: e.get("value") for e in container["env"]} for _, container in servers(manifests)),
    ):
        assert (one["CANOPY_LOG_FORMAT"], one["CANOPY_LOG_LEVEL"]) == ("json", "warning")
    # The probe runs in the server's pod, and has no packages to send spans with.
    assert all("CANOPY_TRACING_URL" not in {e["name"] for e in container["env"]} for _, container in servers(manifests))


def test_helm_has_nothing_to_say() -> None:
    assert validation.lint_messages() == []


def test_every_value_has_a_type_in_the_schema() -> None:
    """A value without one would be taken whatever it is; nothing but what is free on purpose is."""
    schema = validation.json.loads((validation.CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = validation.yaml.safe_load((validation.CHART / "values.yaml").read_text(encoding="utf-8"))

    def walk(value: Any, part: dict[str, Any], path: str) -> None:
        if "$ref" in part:
            part = schema["definitions"][part["$ref"].rpartition("/")[2]]
        assert "type" in part, path
        if isinstance(value, dict) and "properties" in part:
            assert value.keys() <= part["properties"].keys(), path
            for key, inner in value.items():
                walk(inner, part["properties"][key], f"{path}.{key}")

    walk(values, schema, "")
