"""Writes the Grafana dashboard: ``python kubernetes/dashboard.py`` after a change of the panels below."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

PATH: Final = Path(__file__).parent / "canopy" / "files" / "dashboard.json"
_PODS: Final = 'namespace=~"$namespace",pod=~"$pod"'
#: Milvus' pods are none of those that are chosen.
_MILVUS: Final = 'namespace=~"$namespace"'
_SEARCHES: Final = f'function_name=~"Search|HybridSearch",{_MILVUS}'
_WIDTH: Final = 24
_COLUMNS: Final = 3
_HEIGHT: Final = 8


class Panel(NamedTuple):
    """One graph: title, unit, and query by legend. ``$pods`` stands for the chosen pods."""

    title: str
    unit: str
    queries: dict[str, str]
    about: str = ""


def _rate(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{$pods{more}}}[$__rate_interval]))"


def _share(part: str, whole: str, by: str) -> str:
    return f"{_rate(part, by)} / ({_rate(whole, by)} > 0)"


#: Panels by row, left to right.
ROWS: Final[dict[str, list[Panel]]] = {
    "Service": [
        Panel("Requests", "reqps", {"{{model}}": _rate("nv_inference_request_success", "model")}),
        Panel(
            "Failures by reason",
            "reqps",
            {"{{model}} {{reason}}": _rate("nv_inference_request_failure", "model, reason") + " > 0"},
            "BACKEND: a model failed or its process died. REJECTED: a queue was full. OTHER: a step of an ensemble.",
        ),
        Panel("Errors by code", "reqps", {"{{code}}": _rate("canopy_errors_total", "code")}),
        Panel(
            "Latency, 99 of 100",
            "µs",
            {"{{model}} {{pod}}": 'max by (model, pod) (nv_inference_request_summary_us{$pods,quantile="0.99"})'},
            "The server's own quantiles; they do not add up over pods, so each pod has its line.",
        ),
        Panel(
            "Latency, median",
            "µs",
            {"{{model}} {{pod}}": 'max by (model, pod) (nv_inference_request_summary_us{$pods,quantile="0.5"})'},
        ),
        Panel(
            "Ready pods",
            "short",
            {"{{pod}}": 'max by (pod) (kube_pod_status_ready{$pods,condition="true"})'},
            "From kube-state-metrics. A pod is ready when its canary inference passes.",
        ),
    ],
    "Evidence": [
        Panel("Items", "ops", {"{{modality}} {{outcome}}": _rate("canopy_items_total", "modality, outcome")}),
        Panel(
            "Tokens",
            "ops",
            {
                "in": f"sum({_rate('canopy_tokens_in_total', 'pod')})",
                "kept": f"sum({_rate('canopy_tokens_kept_total', 'pod')})",
            },
        ),
        Panel(
            "Share of tokens kept",
            "percentunit",
            {"{{pod}}": _share("canopy_tokens_kept_total", "canopy_tokens_in_total", "pod")},
        ),
        Panel("Nodes scored", "ops", {"{{pod}}": _rate("canopy_nodes_total", "pod")}),
        Panel(
            "Stages, 95 of 100",
            "s",
            {"{{stage}}": f"histogram_quantile(0.95, {_rate('canopy_stage_seconds_bucket', 'stage, le')})"},
            "Time of a request in a Python model, its queue not counted.",
        ),
        Panel(
            "Stages, mean",
            "s",
            {"{{stage}}": _share("canopy_stage_seconds_sum", "canopy_stage_seconds_count", "stage")},
        ),
    ],
    "Encoders": [
        Panel(
            "Queue over compute",
            "short",
            {"{{pod}}": "canopy_encoder_queue_ratio{$pods}"},
            "Above 1, cold requests wait longer for the node encoder than they are worked on.",
        ),
        Panel(
            "Time in the queue",
            "µs",
            {"{{model}}": _share("nv_inference_queue_duration_us", "nv_inference_request_success", "model")},
        ),
        Panel(
            "Time in the model",
            "µs",
            {"{{model}}": _share("nv_inference_compute_infer_duration_us", "nv_inference_request_success", "model")},
        ),
        Panel(
            "Rows an execution",
            "short",
            {"{{model}}": _share("nv_inference_count", "nv_inference_exec_count", "model")},
            "What the dynamic batcher merges.",
        ),
        Panel("Pending requests", "short", {"{{model}}": "sum by (model) (nv_inference_pending_request_count{$pods})"}),
        Panel(
            "Query vectors from the cache",
            "percentunit",
            {
                "{{model}}": "sum by (model) (rate(nv_cache_num_hits_per_model{$pods}[$__rate_interval])) / "
                "((sum by (model) (rate(nv_cache_num_hits_per_model{$pods}[$__rate_interval])) + "
                "sum by (model) (rate(nv_cache_num_misses_per_model{$pods}[$__rate_interval]))) > 0)"
            },
        ),
    ],
    "Machines": [
        Panel(
            "Memory of pods, /dev/shm included",
            "bytes",
            {"{{pod}}": 'max by (pod) (container_memory_working_set_bytes{$pods,container="tritonserver"})'},
            "From cAdvisor. Regions of /dev/shm grow with the largest request and are not given back.",
        ),
        Panel(
            "Cores used",
            "short",
            {"{{pod}}": _rate("container_cpu_usage_seconds_total", "pod", ',container="tritonserver"')},
        ),
        Panel(
            "CPU of the node, as Triton sees it", "percentunit", {"{{pod}}": "max by (pod) (nv_cpu_utilization{$pods})"}
        ),
        Panel("GPU", "percentunit", {"{{pod}} {{gpu_uuid}}": "nv_gpu_utilization{$pods}"}),
        Panel("GPU memory", "bytes", {"{{pod}} {{gpu_uuid}}": "nv_gpu_memory_used_bytes{$pods}"}),
        Panel("GPU power", "watt", {"{{pod}} {{gpu_uuid}}": "nv_gpu_power_usage{$pods}"}),
    ],
    "Critic": [
        Panel("Requests", "reqps", {"answered": _rate("nv_inference_request_success", "model", ',model="critic"')}),
        Panel(
            "Failures",
            "reqps",
            {"{{reason}}": _rate("nv_inference_request_failure", "reason", ',model="critic"')},
        ),
        Panel(
            "Tokens, as the vLLM backend counts them",
            "ops",
            {
                "prompt": "sum(rate(vllm:prompt_tokens_total{$pods}[$__rate_interval]))",
                "generated": "sum(rate(vllm:generation_tokens_total{$pods}[$__rate_interval]))",
            },
        ),
    ],
    "Milvus": [
        Panel(
            "Searches",
            "reqps",
            {"{{status}}": f"sum by (status) (rate(milvus_proxy_req_count{{{_SEARCHES}}}[$__rate_interval]))"},
            "By how they ended, and all of them together (total).",
        ),
        Panel(
            "Search, 99 of 100",
            "ms",
            {
                "{{query_type}}": "histogram_quantile(0.99, sum by (query_type, le) "
                f"(rate(milvus_proxy_sq_latency_bucket{{{_MILVUS}}}[$__rate_interval])))"
            },
            "At Milvus' proxy.",
        ),
        Panel(
            "Refused by rate limits",
            "reqps",
            {
                "{{msg_type}}": "sum by (msg_type) "
                f'(rate(milvus_proxy_rate_limit_req_count{{status="fail",{_MILVUS}}}[$__rate_interval]))'
            },
        ),
    ],
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "id": len(panels) + 1, "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1}})  # fmt: skip
        y += 1
        for place, panel in enumerate(row):
            column = place % _COLUMNS
            width = _WIDTH // _COLUMNS
            box = {"x": column * width, "y": y, "w": width, "h": _HEIGHT}
            panels.append(_panel(panel, len(panels) + 1, box))
            if column == _COLUMNS - 1 or place == len(row) - 1:
                y += _HEIGHT
    return {
        "uid": "canopy",
        "title": "CANOPY",
        "tags": ["canopy", "triton"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, box: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "type": "timeseries",
        "id": number,
        "title": panel.title,
        "description": panel.about,
        "datasource": source,
        "gridPos": box,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 8}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": source, "legendFormat": legend, "editorMode": "code",
             "range": True, "expr": query.replace("$pods", _PODS)}
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
    }  # fmt: skip


def _variables() -> list[dict[str, Any]]:
    def pick(name: str, query: str) -> dict[str, Any]:
        return {
            "name": name,
            "label": name,
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            # Outside Kubernetes the labels are absent: this takes series without them too.
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }

    return [
        {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus", "current": {}},
        pick("namespace", "label_values(nv_inference_request_success, namespace)"),
        pick("pod", 'label_values(nv_inference_request_success{namespace=~"$namespace"}, pod)'),
    ]


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
