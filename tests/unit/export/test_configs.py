"""Every configuration of the repository: committed as generated, parsed by Triton's own schema, consistent."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import model_config_pb2

from canopy_backend.errors import ExportError
from canopy_backend.limits import Limits
from canopy_export.configs import fit, repository_configs, write_configs
from canopy_export.model_config import DataType, InstanceGroup, Kind, ModelConfig, Parameter, to_pbtxt
from canopy_export.vision_config import Sight

REPOSITORY = Path(__file__).resolve().parents[3] / "model_repository"
CONFIGS = repository_configs()
#: Those of encoders that see pixels, which an export writes.
SEEING = repository_configs(sight=Sight(2048))


def parse(text: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def parsed() -> dict[str, model_config_pb2.ModelConfig]:
    return {name: parse(to_pbtxt(config)) for name, config in CONFIGS.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_committed_file_is_the_generated_one(name: str) -> None:
    assert (REPOSITORY / name).read_text(encoding="utf-8") == to_pbtxt(CONFIGS[name])


def test_every_committed_file_is_generated_and_parses_and_names_its_folder() -> None:
    files = {path.relative_to(REPOSITORY).as_posix(): path for path in REPOSITORY.rglob("*.pbtxt")}
    assert set(files) == set(CONFIGS)
    for name, file in files.items():
        assert parse(file.read_text(encoding="utf-8")).name == name.split("/")[0]


def as_plain(value: object) -> object:
    """The typed objects in the shape of protobuf's JSON form, empty fields left out."""
    if dataclasses.is_dataclass(value):
        pairs = ((one.name, getattr(value, one.name)) for one in dataclasses.fields(value))
        return {name: as_plain(inner) for name, inner in pairs if inner}
    if isinstance(value, dict):
        return {key: as_plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        # 64-bit numbers are text in JSON.
        return [str(inner) if isinstance(inner, int) else as_plain(inner) for inner in value]
    if isinstance(value, bool | str):
        return value
    return getattr(value, "value", None) or (str(value) if isinstance(value, int) else value)


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_is_lost_on_the_way_through_protobuf(name: str) -> None:
    message = MessageToDict(parse(to_pbtxt(CONFIGS[name])), preserving_proto_field_name=True)
    expected = as_plain(CONFIGS[name])

    def numbers_as_text(value: object) -> object:
        if isinstance(value, dict):
            return {key: numbers_as_text(inner) for key, inner in value.items() if inner != "REJECT"}
        if isinstance(value, list):
            return [numbers_as_text(inner) for inner in value]
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    assert numbers_as_text(message) == numbers_as_text(expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_batch_sizes_and_instances_are_written_out(name: str) -> None:
    text = to_pbtxt(CONFIGS[name])
    config = parse(text)
    assert f"\nmax_batch_size: {config.max_batch_size}\n" in text
    if config.platform == "ensemble":
        assert not config.instance_group
    else:
        assert [group.count for group in config.instance_group] == [1]
        assert config.instance_group[0].kind != model_config_pb2.ModelInstanceGroup.KIND_AUTO


def test_profiles_of_an_encoder_differ_only_in_how_they_run() -> None:
    for encoder in ("query_encoder", "node_encoder"):
        profiles = [
            CONFIGS[f"{encoder}/{file}"] for file in ("config.pbtxt", "configs/onnx.pbtxt", "configs/embedded.pbtxt")
        ]
        assert [(one.platform, one.backend) for one in profiles] == [
            ("tensorrt_plan", ""), ("onnxruntime_onnx", ""), ("", "python"),
        ]  # fmt: skip
        for field in ("input", "output", "dynamic_batching", "response_cache"):
            assert len({repr(getattr(one, field)) for one in profiles}) == 1
        # A plan takes so many rows and no more; the others take any number.
        assert [one.max_batch_size for one in profiles] == [64, 1024, 1024]


def test_profiles_of_a_python_model_differ_only_in_their_limits() -> None:
    for model in ("hierarchy", "planner", "tokenizer", "refinement", "tree_writer"):
        profiles = [
            CONFIGS[f"{model}/{file}"] for file in ("config.pbtxt", "configs/onnx.pbtxt", "configs/embedded.pbtxt")
        ]
        assert profiles[1] == profiles[2]
        ours = {name: one.string_value for name, one in profiles[0].parameters.items()}
        theirs = {name: one.string_value for name, one in profiles[1].parameters.items()}
        assert {name for name in ours if ours[name] != theirs[name]} == {"max_rows", "max_queries"}
        assert dataclasses.replace(profiles[0], parameters={}) == dataclasses.replace(profiles[1], parameters={})


def test_the_vision_tower_has_the_profiles_of_an_encoder_and_is_a_step_of_nothing() -> None:
    profiles = [SEEING[f"vision_encoder/{file}.pbtxt"] for file in ("config", "configs/onnx", "configs/embedded")]
    assert [(one.platform, one.backend, one.default_model_filename) for one in profiles] == [
        ("tensorrt_plan", "", "model.plan"), ("onnxruntime_onnx", "", "model.onnx"), ("", "python", "model.py"),
    ]  # fmt: skip
    for field in ("input", "output", "max_batch_size"):
        assert len({repr(getattr(one, field)) for one in profiles}) == 1
    steps = {
        step.model_name for one in SEEING.values() if one.ensemble_scheduling for step in one.ensemble_scheduling.step
    }
    assert "vision_encoder" not in steps


def test_first_steps_say_whether_pixels_are_seen_and_only_they_differ_with_the_encoders() -> None:
    for configs, told in ((CONFIGS, "false"), (SEEING, "true")):
        for model in ("hierarchy", "planner", "tokenizer"):
            assert configs[f"{model}/config.pbtxt"].parameters["pixels"].string_value == told
    changed = {name.split("/")[0] for name, config in SEEING.items() if config != CONFIGS[name]}
    assert changed == {
        "compress", "compress_indexed", "embed_query", "hierarchy", "index", "node_encoder", "planner",
        "query_encoder", "tokenizer",
    }  # fmt: skip
    for name, config in SEEING.items():
        assert parse(to_pbtxt(config)).name == name.split("/")[0]


def test_warm_up_has_the_shapes_of_the_inputs() -> None:
    encoder = SEEING["node_encoder/config.pbtxt"]
    for warmup in encoder.model_warmup:
        for tensor in encoder.input:
            given = warmup.inputs[tensor.name]
            assert given.data_type == tensor.data_type
            assert [size for size in tensor.dims if size > 0] == [
                found for found, size in zip(given.dims, tensor.dims, strict=True) if size > 0
            ]
            assert min(given.dims) > 0


def test_profiles_of_the_critic_differ_only_in_how_they_run() -> None:
    served, embedded = (
        parse(to_pbtxt(CONFIGS[f"critic/{file}"])) for file in ("config.pbtxt", "configs/embedded.pbtxt")
    )
    assert (served.backend, served.default_model_filename) == ("vllm", "")
    assert (embedded.backend, embedded.default_model_filename) == ("python", "embedded.py")
    for one in (served, embedded):
        assert one.model_transaction_policy.decoupled
        assert [tensor.name for tensor in one.input if not tensor.optional] == ["text_input"]
        for field in ("backend", "default_model_filename", "instance_group", "parameters"):
            one.ClearField(field)
    assert served == embedded


@pytest.mark.parametrize("configs", [CONFIGS, SEEING], ids=["text", "pixels"])
def test_ensembles_connect_tensors_that_exist_with_one_producer_and_a_reader(configs: dict[str, ModelConfig]) -> None:
    for ensemble in (config for config in configs.values() if config.ensemble_scheduling):
        types = {tensor.name: tensor.data_type for tensor in ensemble.input}
        read: set[str] = set()
        for step in ensemble.ensemble_scheduling.step:
            model = configs[f"{step.model_name}/config.pbtxt"]
            given = set(step.input_map)
            assert {tensor.name for tensor in model.input if not tensor.optional} <= given
            assert given <= {tensor.name for tensor in model.input}
            # What an ensemble has no use for, it leaves out.
            assert set(step.output_map) <= {tensor.name for tensor in model.output}
            for tensor in model.output:
                if tensor.name not in step.output_map:
                    continue
                outer = step.output_map[tensor.name]
                assert outer not in types, f"{outer} is produced twice"
                types[outer] = tensor.data_type
        for step in ensemble.ensemble_scheduling.step:
            model = configs[f"{step.model_name}/config.pbtxt"]
            for tensor in model.input:
                if tensor.name in step.input_map:
                    assert types[step.input_map[tensor.name]] == tensor.data_type
                    read.add(step.input_map[tensor.name])
        outputs = {tensor.name for tensor in ensemble.output}
        assert outputs <= set(types)
        assert set(types) - read == outputs, "every tensor is read by a step or goes out"


def test_encoders_have_a_bounded_queue_and_models_without_batch_axis_no_batcher() -> None:
    for name, config in CONFIGS.items():
        if not config.max_batch_size:
            assert config.dynamic_batching is None, name
            continue
        policy = parse(to_pbtxt(config)).dynamic_batching.default_queue_policy
        assert 0 < policy.max_queue_size <= 256, name
        assert 0 < policy.default_timeout_microseconds <= 300_000_000, name
        assert policy.timeout_action == model_config_pb2.ModelQueuePolicy.REJECT, name
        assert policy.allow_timeout_override, name


def test_limits_are_published_and_bound_the_encoders() -> None:
    limits = Limits(max_items=7, max_rows=32, max_queries=16)
    configs = repository_configs(limits=limits)
    for model in ("hierarchy", "planner", "tokenizer", "refinement", "tree_writer"):
        parameters = {name: value.string_value for name, value in configs[f"{model}/config.pbtxt"].parameters.items()}
        assert Limits.from_parameters(parameters) == limits
    assert parse(to_pbtxt(configs["node_encoder/config.pbtxt"])).max_batch_size == 32


def test_writing_again_changes_nothing(tmp_path: Path) -> None:
    assert len(write_configs(tmp_path)) == len(CONFIGS)
    assert write_configs(tmp_path) == []
    assert fit(tmp_path, 384)
    assert not fit(tmp_path, 16)
    assert not fit(tmp_path, 384, window=2048)
    assert {path.parts[-2] for path in write_configs(tmp_path, dimension=16)} >= {"index", "refinement", "configs"}


def test_configurations_of_text_do_not_fit_an_encoder_that_sees(tmp_path: Path) -> None:
    write_configs(tmp_path, dimension=32)
    assert not fit(tmp_path, 32, sight=Sight(32))
    write_configs(tmp_path, dimension=32, sight=Sight(32))
    assert fit(tmp_path, 32, sight=Sight(32))
    assert not fit(tmp_path, 32)
    assert not fit(tmp_path, 32, sight=Sight(64))
    write_configs(tmp_path, dimension=32)
    (tmp_path / "vision_encoder" / "config.pbtxt").unlink()
    assert fit(tmp_path, 32), "a repository of text needs none"


def _patches(kind: DataType) -> dict[str, Any]:
    first, *others = SEEING["vision_encoder/configs/embedded.pbtxt"].input
    return {"input": (dataclasses.replace(first, data_type=kind), *others)}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("hierarchy/config.pbtxt", {"input": CONFIGS["hierarchy/config.pbtxt"].input}),
        ("vision_encoder/configs/embedded.pbtxt", _patches(DataType.FP32)),
        ("index/config.pbtxt", {"ensemble_scheduling": CONFIGS["index/config.pbtxt"].ensemble_scheduling}),
    ],
    ids=["no arrival", "patches as float32", "a step less"],
)
def test_other_tensors_or_steps_do_not_fit(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    write_configs(tmp_path, sight=Sight(2048))
    assert fit(tmp_path, 384, sight=Sight(2048))
    (tmp_path / name).write_text(to_pbtxt(dataclasses.replace(SEEING[name], **changes)))
    assert not fit(tmp_path, 384, sight=Sight(2048))


def test_what_an_operator_set_stands(tmp_path: Path) -> None:
    write_configs(tmp_path, sight=Sight(2048))
    name = "refinement/config.pbtxt"
    more = dataclasses.replace(SEEING[name], instance_group=(InstanceGroup(3, Kind.CPU),))
    (tmp_path / name).write_text(to_pbtxt(more))
    assert fit(tmp_path, 384, sight=Sight(2048))


def test_pictures_have_a_bounded_wait_and_text_has_the_steps_that_it_had() -> None:
    for ensemble, before, looks in (("compress", "tokenizer", "hierarchy"), ("index", "arrival", "planner")):
        chains = [
            [step.model_name for step in configs[f"{ensemble}/config.pbtxt"].ensemble_scheduling.step]
            for configs in (CONFIGS, SEEING)
        ]
        assert chains[1] == [before, *chains[0]]
        assert chains[0][0] == looks
        assert int(SEEING[f"{looks}/config.pbtxt"].parameters["max_wait_ms"].string_value) >= 1000
        assert "max_wait_ms" not in CONFIGS[f"{looks}/config.pbtxt"].parameters


def test_configurations_of_another_version_do_not_fit(tmp_path: Path) -> None:
    assert not fit(tmp_path, 384)
    write_configs(tmp_path)
    path = tmp_path / "node_encoder" / "config.pbtxt"
    path.write_text(path.read_text().replace('"slot_ids"', '"slots"'))
    assert not fit(tmp_path, 384)
    path.write_text("name: {")
    with pytest.raises(ExportError, match=r"node_encoder.config\.pbtxt"):
        fit(tmp_path, 384)


def test_text_is_quoted() -> None:
    config = ModelConfig(name='a"b\\c\nü', input=(), output=(), parameters={"k": Parameter('"\\\n')})
    message = parse(to_pbtxt(config))
    assert message.name == 'a"b\\c\nü'
    assert message.parameters["k"].string_value == '"\\\n'
