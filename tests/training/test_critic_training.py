"""The critic's model: packed chats, fitting, going on after a kill, merging; and the command's refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from critic_toys import two_hops, write_chat_model

from canopy_backend.errors import InvalidData, TrainingError
from canopy_backend.items import TextItem
from canopy_client.llm.base import Message
from canopy_export.source import Source
from canopy_local.critic_conversion import merge
from canopy_training.critic import command
from canopy_training.critic.corpus import Encoder, Pool
from canopy_training.critic.judging import judge_all, scores_of
from canopy_training.critic.model import ChatModel
from canopy_training.critic.packing import pack
from canopy_training.critic.record import CriticRun
from canopy_training.critic.samples import Sample, stories
from canopy_training.critic.states import items_of, search_all
from canopy_training.critic.train import CriticSettings, Progress, fit
from canopy_training.data import Gold, Question


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture(autouse=True)
def in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)


def short(*answers: str) -> list[Sample]:
    shown = [Message("system", "Read."), Message("user", "Evidence: A B")]
    longer = [Message("system", "Read."), Message("user", "Evidence: A B C" + "D" * 300)]
    return [Sample("critic", longer if place else shown, answer) for place, answer in enumerate(answers)]


def test_a_pack_shares_what_chats_have_in_common() -> None:
    packed = pack([([1, 2, 3, 4], [9]), ([1, 2, 3, 5, 6], [7, 8]), ([1, 2, 3, 4], [6])])
    assert packed.ids.tolist() == [1, 2, 3, 5, 6, 7, 8, 4, 9, 4, 6]
    assert packed.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 3, 4, 3, 4]
    assert packed.spans == ((0, 7, 0), (7, 9, 3), (9, 11, 3))
    assert packed.at.tolist() == [7, 4, 5, 9]
    assert packed.targets.tolist() == [9, 7, 8, 6]
    assert packed.owner.tolist() == [0, 1, 1, 2]


def test_a_pack_means_what_its_chats_mean_apart(folder: Path) -> None:
    model = ChatModel(folder)
    story = [*short("yes", "no", "maybe so"), *stories([two_hops()], seed=1)[0]]
    together = model.losses(model.pack(story))
    apart = torch.cat([model.losses(model.pack([sample])) for sample in story])
    assert torch.allclose(together, apart, atol=1e-4)
    # And what they mean to the library's own attention.
    prompt, answer = model.chat(story[1])
    model._model.config._attn_implementation = "eager"
    logits = model._model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    own = torch.nn.functional.cross_entropy(logits, torch.tensor(answer), reduction="none")
    assert torch.allclose(together[model.pack(story).owner == 1], own, atol=1e-4)


def settings(**changed: object) -> CriticSettings:
    values = {"rank": 4, "alpha": 8.0, "first_layer": 1, "learning_rate": 0.05, "batch": 1, "check_every": 4, **changed}
    return CriticSettings(**values)  # type: ignore[arg-type]


def chat_model(folder: Path, rank: int = 4) -> ChatModel:
    return ChatModel(folder, rank=rank, alpha=8.0, first_layer=1)


def test_the_loss_falls_and_a_killed_run_ends_alike(folder: Path, tmp_path: Path) -> None:
    many = [short("yes", "no") for _ in range(12)]
    whole = chat_model(folder)
    seen: list[Progress] = []
    fitted = fit(whole, settings(), many, report=seen.append)
    assert fitted.history[-1]["loss"] < 0.75 * fitted.history[0]["loss"]
    assert (fitted.steps, fitted.stories, fitted.oversized, len(seen)) == (12, 12, 0, 12)

    def stop(progress: Progress) -> None:
        if progress.step == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(chat_model(folder), settings(), many, state_folder=tmp_path, fingerprint="a", report=stop)
    broken = chat_model(folder)
    again = fit(broken, settings(), many, state_folder=tmp_path, fingerprint="a")
    assert [one["loss"] for one in again.history] == pytest.approx([one["loss"] for one in fitted.history])
    assert all(torch.equal(broken.state()[name], weight) for name, weight in whole.state().items())
    with pytest.raises(TrainingError, match="choose another --out"):
        fit(chat_model(folder), settings(), many, state_folder=tmp_path, fingerprint="b")


def test_nothing_to_learn_from(folder: Path) -> None:
    with pytest.raises(TrainingError, match="no story of at most 256 tokens"):
        fit(chat_model(folder), settings(max_tokens=256), [short("yes", "no" * 200)])


def test_merged_weights_answer_as_the_adapter_does(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = chat_model(folder)
    fit(model, settings(), [short("yes", "no")] * 4)
    model.save(tmp_path, "tiny")
    story = short("yes", "no")
    tuned, plain = model.losses(model.pack(story)), ChatModel(folder).losses(ChatModel(folder).pack(story))
    assert not torch.allclose(tuned, plain, atol=0.05)
    with model.as_it_comes():
        assert torch.allclose(model.losses(model.pack(story)), plain, atol=1e-5)
    loaded = ChatModel(folder, start=tmp_path)
    assert torch.allclose(loaded.losses(loaded.pack(story)), tuned, atol=2e-3)

    merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert merge(merged, tmp_path) == 7
    bare = ChatModel(folder)
    bare._model.load_state_dict(merged.state_dict())
    assert torch.allclose(bare.losses(bare.pack(story)), tuned, atol=2e-3)


def test_an_adapter_that_cannot_be_merged_is_refused(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    chat_model(folder).save(tmp_path, "tiny")
    other = LlamaForCausalLM(
        LlamaConfig(vocab_size=8, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2)
    )
    with pytest.raises(ValueError, match="does not fit the model"):
        merge(other, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(ValueError, match="only plain LoRA"):
        merge(AutoModelForCausalLM.from_pretrained(folder), tmp_path)


def questions() -> list[Question]:
    """Questions n0 .. of two gold items each, the second half of them held out."""
    made = []
    for place in range(4):
        a, b = f"n{2 * place}", f"n{2 * place + 1}"
        items = (
            TextItem(id=a, title=a, text=f"{a} is near {b}. {a} is far."),
            TextItem(id=b, title=b, text=f"{b} is far. {b} is near."),
        )
        gold = (Gold(item_id=a, span=(0, 4)), Gold(item_id=b, span=(0, 4)))
        split = "train" if place < 2 else "dev"
        made.append(
            Question(
                id=f"q{place}",
                dataset="d",
                split=split,
                question=f"{a} is near",
                answers=("far",),
                items=items,
                gold=gold,
                meta={},
            )
        )
    return made


def test_states_come_from_what_the_questions_hold(source: Source, folder: Path) -> None:
    train = [question for question in questions() if question.split == "train"]
    encoder = Encoder(source.path, None, folder / "tokenizer.json")
    pool = Pool(encoder, items_of(train))
    found = search_all(train, encoder, pool)
    assert [one.id for one in found] == ["q0", "q1"]
    seen = {hit.item_id for one in found for search in (one.first, *one.follow, one.astray) for hit in search.found}
    assert seen <= {"n0", "n1", "n2", "n3"}
    assert [one.title for one in found[0].gold] == ["n0", "n1"]
    whole = {"n0": "n0 is near n1. n0 is far.", "n1": "n1 is far. n1 is near."}
    hits = [hit for hit in found[0].first.found if hit.item_id in whole]
    assert hits
    assert all(hit.text and hit.whole == (hit.text == whole[hit.item_id]) for hit in hits)
    with pytest.raises(TrainingError, match="no question whose gold names two items"):
        search_all([], encoder, pool)


def test_verdicts_are_scored_by_what_they_find(source: Source, folder: Path) -> None:
    every = questions()
    encoder = Encoder(source.path, None, folder / "tokenizer.json")
    pool = Pool(encoder, items_of(every))
    found = search_all(every, encoder, pool)
    complete = scores_of(judge_all(lambda _: '{"sufficient": "yes"}', found, encoder, pool))
    assert (complete.right, complete.stops, complete.goes_on, complete.unreadable) == (1.0, 1.0, None, 0)
    assert scores_of(judge_all(lambda _: "?", found, encoder, pool)).unreadable == 4


def write_data(folder: Path) -> Path:
    lines = []
    for one in questions():
        items = [{"id": i.id, "modality": "text", "title": i.title, "text": i.text} for i in one.items]
        gold = [{"item_id": g.item_id, "span": g.span} for g in one.gold]
        line = {"id": one.id, "split": one.split, "question": one.question, "answers": one.answers}
        lines.append(json.dumps(line | {"items": items, "gold": gold}))
    file = folder / "data.jsonl"
    file.write_text("\n".join(lines))
    return file


def run(data: Path, model: Path, out: Path, source: Source, **changed: object) -> None:
    given = {
        "tables": None, "start": None, "encoder": source.path, "encoder_adapter": Path("none"), "split": "train",
        "dev_split": "", "limit": None, "dev_limit": None, "passes": 1, "at_most": 0, "table_questions": 0, "rank": 2,
        "alpha": None, "first_layer": 0, "learning_rate": 0.01, "batch": 1, "max_tokens": 9000, "seed": 0,
    }  # fmt: skip
    command.train_critic(data=[data], model=model, out=out, **(given | changed))  # type: ignore[arg-type]


def test_the_command_leaves_an_adapter_and_its_record(
    folder: Path, tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run(write_data(tmp_path), folder, out, source)
    assert sorted(file.name for file in out.iterdir()) == [
        "README.md", "adapter_config.json", "adapter_model.safetensors", "run.json",
    ]  # fmt: skip
    record = CriticRun.load(out)
    assert (record.questions, record.stories, record.settings.alpha) == (2, 2, 4.0)
    assert set(record.files) == {"data.jsonl"}
    assert record.dev is None
    monkeypatch.setattr(command, "MAX_TOKENS", 4)
    run(tmp_path / "data.jsonl", folder, tmp_path / "second", source, start=out, dev_split="dev", dev_limit=1)
    second = CriticRun.load(tmp_path / "second")
    assert second.dev == second.dev_base
    assert second.dev is not None
    assert (second.dev.questions, second.dev.unreadable) == (1, 1)
    assert "| verdict right | 0.0 % | 0.0 % |" in (tmp_path / "second" / "README.md").read_text()
    assert len(second.started_from) == 64
    assert second.history[0]["loss"] < record.history[0]["loss"]
    with pytest.raises(TrainingError, match="start from it with --rank 2 --alpha 4 --first-layer 0"):
        run(tmp_path / "data.jsonl", folder, tmp_path / "third", source, start=out, rank=3)
    before = (out / "run.json").stat().st_mtime_ns
    run(tmp_path / "data.jsonl", folder, out, source)
    assert (out / "run.json").stat().st_mtime_ns == before


def test_the_command_refuses_what_it_cannot_use(folder: Path, tmp_path: Path, source: Source) -> None:
    data = write_data(tmp_path)
    with pytest.raises(TrainingError, match="no question of split 'test'"):
        run(data, folder, tmp_path / "out", source, split="test")
    with pytest.raises(TrainingError, match="--rank"):
        run(data, folder, tmp_path / "out", source, rank=0)
    with pytest.raises(TrainingError, match=r"model\.safetensors"):
        run(data, tmp_path, tmp_path / "out", source)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "1", "question": "q", "items": [{"id": "a", "modality": "text", "text": 3}]}')
    with pytest.raises(InvalidData, match=r"bad\.jsonl"):
        run(bad, folder, tmp_path / "out", source)
    merged = write_chat_model(tmp_path / "merged")
    (merged / "canopy_adapter.txt").write_text("0" * 64)
    with pytest.raises(TrainingError, match="an adapter is merged into this model"):
        run(data, merged, tmp_path / "out", source)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"no config\.json"):
        ChatModel(tmp_path)
    with pytest.raises(TrainingError, match="no adapter here"):
        ChatModel(write_chat_model(tmp_path / "model"), start=tmp_path)
