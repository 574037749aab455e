"""The critic's adapter without a server: what it reads out of a request's JSON and what it answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from canopy_backend.errors import ExportError, InvalidRequest
from canopy_backend.triton.critic import Job, engine_arguments, outputs
from canopy_backend.triton.model import Setting
from canopy_backend.triton.sampling import parse_sampling
from canopy_backend.triton.vllm_engine import Piece

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}}


def test_values_pass_as_given() -> None:
    given = {"temperature": 0.0, "max_tokens": 5, "stop": ["a", "b"], "logit_bias": {"3": -1.5}}
    assert parse_sampling(json.dumps(given)) == (given, None)
    assert parse_sampling("") == ({}, None)
    assert parse_sampling("{}") == ({}, None)


def test_numbers_may_be_text() -> None:
    assert parse_sampling('{"temperature": "0.5", "max_tokens": "7"}') == ({"temperature": 0.5, "max_tokens": 7}, None)


@pytest.mark.parametrize("key", ["structured_outputs", "guided_decoding"])
@pytest.mark.parametrize(
    "shape", [{"json": SCHEMA}, {"json": json.dumps(SCHEMA)}, {"regex": "[a-z]+"}, {"choice": ["x", "y"]}]
)
def test_both_names_of_the_structure(key: str, shape: dict[str, Any]) -> None:
    assert parse_sampling(json.dumps({"seed": 1, key: json.dumps(shape)})) == ({"seed": 1}, shape)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"temperature": "warm"}', "'temperature'"),
        ('{"stop": 3}', "'stop'"),
        ('{"best_of": 3}', "unknown parameter 'best_of'"),
        ('{"structured_outputs": {"regex": "a"}}', "'structured_outputs'"),
        ('{"structured_outputs": "{\\"rgex\\": \\"a\\"}"}', "unknown parameter 'rgex'"),
        ('{"structured_outputs": "{}"}', "exactly one of json, regex"),
        ('{"guided_decoding": "[]"}', "'guided_decoding'"),
        ("3", "sampling_parameters"),
        ('{"temperature": ', "not a JSON object"),
        ("[" * 100_000, "sampling_parameters"),
    ],
)
def test_refusals_name_the_parameter(text: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match="sampling_parameters") as caught:
        parse_sampling(text)
    assert named in str(caught.value)


def piece(text: str, tokens: int = 1, reason: str | None = None, logprobs: Any = None) -> Piece:
    return Piece(text, tokens, reason, logprobs, -0.5, 12)


def test_pieces_join_to_one_answer() -> None:
    extras = frozenset({"return_finish_reason", "return_num_input_tokens", "return_num_output_tokens"})
    job = Job("Q: ", False, True, {}, None, extras)
    found = outputs(job, [piece("Par", 2), piece("is"), piece("", 1, "stop")])
    assert found["text_output"].tolist() == [b"Q: Paris"]
    assert found["finish_reason"].tolist() == [b"stop"]
    assert found["num_input_tokens"].tolist() == [12]
    assert found["num_output_tokens"].tolist() == [4]
    assert {found[name].dtype for name in ("num_input_tokens", "num_output_tokens")} == {np.dtype(np.uint32)}


def test_only_what_was_asked_for() -> None:
    assert set(outputs(Job("Q", True, False, {}, None, frozenset()), [piece("a")])) == {"text_output"}


def test_log_probabilities_are_json() -> None:
    job = Job("Q", False, False, {}, None, frozenset({"return_logprobs", "return_cumulative_logprob"}))
    token = {7: {"logprob": -0.25, "rank": 1, "decoded_token": "a"}}
    found = outputs(job, [piece("a", logprobs=[token]), piece("a", reason="stop", logprobs=[token])])
    assert json.loads(found["logprobs"][0]) == [{"7": token[7]}] * 2
    assert found["cumulative_logprob"].tolist() == [-0.5]
    assert outputs(job, [piece("a")])["logprobs"].tolist() == [b"null"]


def test_model_folder_comes_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "critic" / "1").mkdir(parents=True)
    (tmp_path / "critic" / "1" / "engine.json").write_text('{"max_model_len": 64}')
    (tmp_path / "model").mkdir()
    setting = Setting(tmp_path, {"engine": "engine.json"}, tmp_path / "critic", "1", ("text_output",))
    with pytest.raises(ExportError, match="CANOPY_CRITIC_MODEL"):
        engine_arguments(setting, str(tmp_path / "model"))
    (tmp_path / "model" / "config.json").write_text("{}")
    arguments = engine_arguments(setting, str(tmp_path / "model"))
    assert arguments == {"max_model_len": 64, "model": str(tmp_path / "model")}
    (tmp_path / "critic" / "1" / "engine.json").write_text("{")
    with pytest.raises(ExportError, match=r"engine\.json"):
        engine_arguments(setting, str(tmp_path / "model"))
