"""Chat messages to one prompt, by the model's own template. Triton's vLLM backend takes finished prompts only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Never

import jinja2
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from canopy_backend.errors import CriticError
from canopy_backend.reading import UNREADABLE, told
from canopy_client.llm.base import Message

#: The template of models that ship none.
CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_TOKENS: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
#: Words around a picture in the chat that shows how a template marks one.
_BEFORE, _BEHIND = "alpha", "omega"
_TOKEN: Final = re.compile(r"<[^<>\s]+>")


class ChatTemplate:
    """Renders chats as a model was trained to read them.

    Args:
        source: The template, in Jinja.
        special_tokens: The model's control tokens. Where content spells one out it is broken up with a space, so that
            no document can end its own turn or begin another.
        variables: Further values that the template reads, such as ``bos_token``.

    Raises:
        CriticError: The template cannot be parsed.
    """

    def __init__(
        self,
        source: str = CHATML,
        special_tokens: Iterable[str] = CHATML_TOKENS,
        variables: dict[str, str] | None = None,
    ) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise CriticError(f"chat template: {error}") from None
        self._variables = variables or {}
        marks = self._picture_marks()
        self._picture = max(marks, key=len, default="")
        tokens = sorted({token for token in (*special_tokens, *marks) if len(token) > 1}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, tokens))) if tokens else None

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate:
        """The template of a model folder: ``chat_template.jinja``, else ``tokenizer_config.json``, else ChatML.

        Raises:
            CriticError: A file is there and cannot be read.
        """
        config = _read_json(folder / "tokenizer_config.json")
        tokenizer = _read_json(folder / "tokenizer.json")
        special = {token["content"] for token in tokenizer.get("added_tokens", ()) if token.get("special")}
        variables = {
            name: text for name in ("bos_token", "eos_token", "pad_token") if (text := _token_text(config.get(name)))
        }
        file = folder / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
        if isinstance(source, list):  # several named templates: the default one
            source = next((one["template"] for one in source if one.get("name") == "default"), None)
        return cls(source or CHATML, special | set(variables.values()) | set(CHATML_TOKENS), variables)

    @property
    def takes_pictures(self) -> bool:
        """Whether a picture can stand in the middle of a text, as the template says."""
        return bool(self._picture)

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt, up to where the assistant's answer begins, with the model's own placeholder for each picture.

        Raises:
            CriticError: The template refuses these messages, or knows no pictures and there are some.
        """
        pictures = sum(len(message.pictures) for message in messages)
        if pictures and not self._picture:
            raise CriticError("chat template: it has no place for pictures; is this the template of a model that sees?")
        prompt = self._rendered([{"role": message.role, "content": self._content(message)} for message in messages])
        # The server puts the pictures where the placeholders are, in their order, so there is one for each.
        if pictures and (found := prompt.count(self._picture)) != pictures:
            raise CriticError(f"chat template: {found} placeholders for {pictures} pictures")
        return prompt

    def _rendered(self, chat: list[dict[str, Any]]) -> str:
        try:
            return self._template.render(messages=chat, add_generation_prompt=True, **self._variables)
        except jinja2.TemplateError as error:
            raise CriticError(f"chat template: {error}") from None

    def _content(self, message: Message) -> str | list[dict[str, str]]:
        if not message.pictures:
            return self._neutral(message.content)
        return [
            {"type": "text", "text": self._neutral(part)} if isinstance(part, str) else {"type": "image"}
            for part in message.parts()
        ]

    def _picture_marks(self) -> list[str]:
        """The tokens by which the template marks a picture; none where it takes texts alone."""
        texts = [{"type": "text", "text": word} for word in (_BEFORE, _BEHIND)]
        try:
            parts = self._rendered([{"role": "user", "content": texts}])
            shown = self._rendered([{"role": "user", "content": [texts[0], {"type": "image"}, texts[1]]}])
        except (CriticError, TypeError, ValueError):
            return []  # It expects content to be text.
        if "type" in parts:
            return []  # It printed the list.
        return _TOKEN.findall(shown.partition(_BEFORE)[2].partition(_BEHIND)[0])

    def _neutral(self, content: str) -> str:
        if self._special is None:
            return content
        return self._special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", content)


def _refuse(message: str) -> Never:
    raise jinja2.TemplateError(message)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, *UNREADABLE) as error:
        raise CriticError(f"{path.name}: {told(error)}") from None


def _token_text(token: Any) -> str:
    """A token as text; files hold it as text or as an object with ``content``."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
