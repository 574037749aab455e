"""A small chat model with LoRA matrices: read, taught, saved, and asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from canopy_backend.errors import CriticError, TrainingError
from canopy_client.llm.base import Message
from canopy_client.llm.chat_template import ChatTemplate
from canopy_export.adapter import UNREADABLE, quiet_peft
from canopy_training.critic.packing import ATTENTION, Pack, attention, pack
from canopy_training.critic.samples import Sample
from canopy_training.model import save_adapter

#: Layers that get LoRA matrices: all of a Llama-like block.
_LAYERS: Final = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class ChatModel:
    """A causal language model in a folder, frozen, with LoRA matrices that learn.

    Args:
        folder: Weights, ``tokenizer.json`` and chat template, as the local stack converts them.
        rank: Rank of the matrices; 0 for the model as it is.
        alpha: Their scale.
        first_layer: First layer that gets them.
        start: Folder of an adapter to load instead of matrices at nothing; with a rank it learns on, and its rank,
            scale and layers must be these.
        seed: Of the matrices.

    Raises:
        TrainingError: The folder holds no model of that kind, or the adapter does not fit it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int = 0,
        alpha: float = 0.0,
        first_layer: int = 0,
        start: Path | None = None,
        seed: int = 0,
    ) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention)
        for name in ("config.json", "tokenizer.json"):
            if not (folder / name).is_file():
                raise TrainingError(f"{folder}: no {name}; canopy up converts the critic's model, or name another")
        # Frozen weights in bfloat16, as they are served; on a processor without it that would only be slow.
        self.half = bool(torch.cuda.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        try:
            self._model: Any = AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=torch.bfloat16 if self.half else torch.float32, local_files_only=True
            )
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self.template = ChatTemplate.from_folder(folder)
        except (OSError, ValueError, KeyError, CriticError) as error:
            raise TrainingError(f"{folder}: no causal language model can be read here ({error})") from error
        self.end = _end_token(self._model)
        self.peft: Any = None
        torch.manual_seed(seed)
        if start is not None:
            self._load(start, (rank, alpha, first_layer) if rank else None)
        elif rank:
            self._attach(rank, alpha, first_layer)
        self._still(self._model)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a chat, up to where the answer begins."""
        ids: list[int] = self.tokenizer.encode(self.template.render(messages), add_special_tokens=False).ids
        return ids

    def chat(self, sample: Sample) -> tuple[list[int], list[int]]:
        """Tokens of a sample's prompt, and of its answer with the mark of its end."""
        answer = self.tokenizer.encode(sample.answer, add_special_tokens=False).ids
        return self.prompt(sample.messages), [*answer, self.end]

    def pack(self, story: Sequence[Sample]) -> Pack:
        """A story as one sequence."""
        return pack([self.chat(sample) for sample in story])

    def losses(self, packed: Pack) -> Tensor:
        """Cross entropy of each learned token, float32 ``[T]``; gradients where they are on."""
        base = self._model.get_base_model() if self.peft is not None else self._model
        self._model.config._attn_implementation = ATTENTION
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            hidden = base.model(
                input_ids=packed.ids[None],
                position_ids=packed.positions[None],
                attention_mask=torch.ones(1, 1, 1, 1),  # of four dimensions: no other is made
                use_cache=False,
                spans=packed.spans,
            )[0]
            # Of all tokens only the answers' need a distribution over the vocabulary.
            logits = base.lm_head(hidden[0, packed.at])
        return functional.cross_entropy(logits.float(), packed.targets, reduction="none")

    def generate(self, messages: Sequence[Message], max_tokens: int) -> str:
        """The likeliest answer, token by token."""
        ids = torch.tensor([self.prompt(messages)])
        self._model.config._attn_implementation = "sdpa"
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            output = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                eos_token_id=self.end,
                pad_token_id=self.end,
            )
        text: str = self.tokenizer.decode(output[0, ids.shape[1] :].tolist(), skip_special_tokens=True)
        return text

    def parameters(self) -> list[torch.nn.Parameter]:
        """The weights that learn, in a fixed order."""
        return [weight for _, weight in sorted(self._named())]

    def state(self) -> dict[str, Tensor]:
        """Copies of them by name."""
        return {name: weight.detach().cpu().clone() for name, weight in self._named()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Set them to what :meth:`state` gave."""
        own = dict(self._named())
        if set(own) != set(state):
            raise TrainingError("the saved state has other weights than this model and rank")
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(state[name])

    @contextmanager
    def as_it_comes(self) -> Iterator[None]:
        """The model without its matrices, for as long as the block runs."""
        with self.peft.disable_adapter() if self.peft is not None else nullcontext():
            yield

    def save(self, folder: Path, base: str) -> None:
        """Write the adapter as ``peft`` does, in half precision; ``base`` names the model it belongs to."""
        save_adapter(self.peft, folder, base)

    @staticmethod
    def _still(model: Any) -> None:
        model.eval()

    def _attach(self, rank: int, alpha: float, first_layer: int) -> None:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=rank,
            lora_alpha=alpha,  # type: ignore[arg-type]  # peft multiplies; it need not be whole
            target_modules=_LAYERS,
            layers_to_transform=list(range(first_layer, self._model.config.num_hidden_layers)),
            bias="none",
            task_type="CAUSAL_LM",
        )
        try:
            with quiet_peft():
                self.peft = self._model = get_peft_model(self._model, config)
        except ValueError as error:
            raise TrainingError(f"LoRA finds no layer to adapt ({error})") from error

    def _load(self, folder: Path, wanted: tuple[int, float, int] | None) -> None:
        from peft import LoraConfig, PeftModel

        if not (folder / "adapter_config.json").is_file():  # peft would look for it on a hub
            raise TrainingError(f"{folder}: no adapter here")
        try:
            stored: Any = LoraConfig.from_pretrained(str(folder))
            found = (stored.r, stored.lora_alpha, min(stored.layers_to_transform or [0]))
            if wanted is not None and found != wanted:
                rank, alpha, layer = found
                raise TrainingError(
                    f"{folder}: start from it with --rank {rank} --alpha {alpha:g} --first-layer {layer}"
                )
            with quiet_peft():
                self.peft = self._model = PeftModel.from_pretrained(
                    self._model, str(folder), is_trainable=wanted is not None
                )
        except UNREADABLE as error:
            raise TrainingError(f"{folder}: the adapter does not fit this model ({error})") from error

    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, weight) for name, weight in self._model.named_parameters() if weight.requires_grad]


def _end_token(model: Any) -> int:
    end = model.generation_config.eos_token_id
    end = model.config.eos_token_id if end is None else end
    return int(end[0] if isinstance(end, list) else end)
