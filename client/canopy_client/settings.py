"""Every setting once: its flag, its environment variable, its default and its help come from one line here."""

from __future__ import annotations

import os
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias, get_args, get_origin, get_type_hints

from canopy_backend.addresses import MASK, shown_address
from canopy_backend.errors import InvalidRequest
from canopy_client.channels import Tls
from canopy_client.options import LoopOptions, Tables
from canopy_client.sight import BYTES, PICTURES, PIXELS, Sight

_CHECKOUT: Final = Path(__file__).resolve().parents[2]
#: The state of the local stack: in the checkout that this package runs from, else in the working folder.
HOME: Final = _CHECKOUT / ".canopy" if (_CHECKOUT / "pyproject.toml").is_file() else Path(".canopy")

#: Where the local stack's ports were moved, its clients follow, unless an endpoint is named.
_PORTS: Final = {"url": "CANOPY_GRPC_PORT", "critic_url": "CANOPY_CRITIC_GRPC_PORT"}

#: The local stack's language model, by its folder.
SMALL_MODEL: Final = "smollm2-135m-instruct"
#: Items of a round that looks names up: they stand at the top or are not there (docs/results/loop.md).
NAMED_ITEMS: Final = 3

#: Who judges the evidence: the language model, the critic that follows names, or whichever does better.
CriticKind: TypeAlias = Literal["auto", "llm", "titles"]

#: Settings of what the language model is shown, by the field of :class:`canopy_client.sight.Sight` that each fills.
_SIGHT: Final = {"pictures": "llm_pictures", "pixels": "llm_picture_pixels", "bytes": "llm_picture_bytes"}
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


def _about(text: str, *, env: str = "", secret: bool = False) -> dict[str, Any]:
    """Metadata of a setting: what flags and tables tell of it."""
    return {"help": text, "env": env, "secret": secret}


@dataclass(frozen=True, slots=True)
class Description:
    """One setting as shown to people."""

    name: str
    flag: str
    env: str
    default: str
    help: str
    secret: bool


@dataclass(frozen=True, kw_only=True, repr=False)
class Settings:
    """Where the servers are and how questions are worked on. Made by :meth:`load`; secrets never show in its repr."""

    url: str = field(default="localhost:8001", metadata=_about("gRPC endpoint of the evidence server"))
    critic_url: str = field(default="localhost:9001", metadata=_about("gRPC endpoint of the critic server"))
    llm_url: str = field(
        default="", metadata=_about("OpenAI-compatible endpoint, with its /v1, used instead of the critic server")
    )
    llm_model: str = field(default="", metadata=_about("model name at that endpoint"))
    llm_key: str = field(default="", metadata=_about("bearer token for that endpoint", secret=True))
    llm_parallel: int = field(
        default=32, metadata=_about("most requests to the language model in flight; further ones wait for a place")
    )
    llm_sees: bool = field(
        default=False, metadata=_about("the language model sees: show it images and frames, not their words alone")
    )
    llm_pictures: int = field(
        default=PICTURES, metadata=_about("most pictures in one prompt; no more than its server takes")
    )
    llm_picture_pixels: int = field(
        default=PIXELS, metadata=_about("most pixels of a picture in a prompt; larger ones are made smaller")
    )
    llm_picture_bytes: int = field(
        default=BYTES, metadata=_about("most bytes of all pictures in one prompt, in base64")
    )
    milvus_uri: str = field(
        default="", metadata=_about("Milvus: a file (Lite), http://host:19530, or a cluster", env="MILVUS_URI")
    )
    milvus_token: str = field(
        default="", metadata=_about("user:password or API key for Milvus", env="MILVUS_TOKEN", secret=True)
    )
    corpus: str = field(default="canopy", metadata=_about("name of the indexed corpus; its collections start with it"))
    home: Path = field(default=HOME, metadata=_about("environments, models, logs and state of the local stack"))
    model_folder: Path | None = field(
        default=None, metadata=_about("the critic's model folder, for its chat template and tokenizer")
    )
    k: int = field(default=10, metadata=_about("items retrieved in a round"))
    follow_up_k: int | None = field(
        default=None,
        metadata=_about(f"items retrieved in rounds after the first; by default as many, {NAMED_ITEMS} by titles"),
    )
    max_rounds: int = field(default=3, metadata=_about("most rounds of a question; 1 never searches again"))
    critic: CriticKind = field(
        default="auto",
        metadata=_about(
            f"who judges the evidence: llm, titles, which follows names without a model, or auto: titles with "
            f"{SMALL_MODEL}, else llm"
        ),
    )
    compress: bool = field(default=True, metadata=_about("keep of each item only what answers the query"))
    tables: Tables = field(
        default="classify",
        metadata=_about("how tables are kept: as the model classifies the question, whole, or as other items (lookup)"),
    )
    routed: bool = field(default=False, metadata=_about("let a router choose which modalities to search"))
    budget_tokens: int = field(
        default=0, metadata=_about("most evidence tokens in a prompt; 0: 16000, or what the model can hold")
    )
    deadline_s: float = field(default=60.0, metadata=_about("seconds that one call to the evidence server may take"))
    answer_deadline_s: float = field(default=300.0, metadata=_about("seconds that one question may take"))
    pixels: bool | None = field(
        default=None,
        metadata=_about("bring pictures and clips along with their pixels; by default where the server's encoder sees"),
    )
    picture_hosts: str = field(
        default="", metadata=_about("hosts that pictures and clips may be fetched from, with commas; empty: none")
    )
    picture_http: bool = field(default=False, metadata=_about("fetch pictures and clips over plain HTTP too"))
    tracing_url: str = field(
        default="",
        metadata=_about("collector that spans are sent to, OTLP over HTTP: http://host:4318/v1/traces; empty: none"),
    )
    tracing_rate: float = field(default=0.01, metadata=_about("share of the questions that are traced, 0 to 1"))
    tls: bool = field(default=False, metadata=_about("encrypt the connections to both servers"))
    tls_roots: Path | None = field(default=None, metadata=_about("authorities to trust, PEM"))
    tls_key: Path | None = field(default=None, metadata=_about("the client's own key, PEM"))
    tls_certificate: Path | None = field(default=None, metadata=_about("the certificate of that key, PEM"))

    @classmethod
    def load(cls, overrides: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Self:
        """Settings from arguments, then the environment, then defaults.

        Args:
            overrides: Values by name; ``None`` values count as not given.
            environment: Variables; those of the process where not given.

        Raises:
            InvalidRequest: A value is not of its setting's type, or a name is unknown.
        """
        environment = os.environ if environment is None else environment
        hints = get_type_hints(cls)
        given = {name: value for name, value in (overrides or {}).items() if value is not None}
        known = {description.name: description for description in cls.describe()}
        if unknown := sorted(given.keys() - known.keys()):
            raise InvalidRequest(f"setting {unknown[0]!r} is unknown")
        for name, description in known.items():
            text = environment.get(description.env, "")
            if name not in given and text:
                given[name] = _parse(text, hints[name], description.env)
        for name, variable in _PORTS.items():
            if name not in given and environment.get(variable):
                given[name] = f"localhost:{_parse(environment[variable], int, variable)}"
        settings = cls(**given)
        for name in ("llm_parallel", "deadline_s", "answer_deadline_s"):
            if getattr(settings, name) <= 0:
                raise InvalidRequest(f"{known[name].flag}: {getattr(settings, name)} is not more than 0")
        if settings.critic not in get_args(CriticKind):
            raise InvalidRequest(f"{known['critic'].flag}: {settings.critic!r:.40} is none of auto, llm, titles")
        try:
            settings.loop_options()
            settings.limits_of_sight()
        except InvalidRequest as error:
            name, _, problem = str(error).partition(": ")
            raise InvalidRequest(f"{known[_SIGHT.get(name, name)].flag}: {problem}") from None
        return settings

    @classmethod
    def describe(cls) -> Iterator[Description]:
        """All settings, in order."""
        for one in fields(cls):
            yield Description(
                name=one.name,
                flag=f"--{one.name.replace('_', '-')}",
                env=one.metadata["env"] or f"CANOPY_{one.name.upper()}",
                default="" if one.default is None else str(one.default),
                help=one.metadata["help"],
                secret=one.metadata["secret"],
            )

    def shown(self) -> dict[str, str]:
        """Values by name, as text; secrets are masked, and so are user, password and query of addresses."""
        values = {one.name: (one.secret, getattr(self, one.name)) for one in self.describe()}
        return {
            name: MASK if secret and value else "" if value is None else shown_address(str(value))
            for name, (secret, value) in values.items()
        }

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.shown().items())})"

    def loop_options(self, *, trace: bool = False) -> LoopOptions:
        """The switches of a question.

        Args:
            trace: Keep every visited node in the evidence.

        Raises:
            InvalidRequest: A value is out of its range; begins with the setting's name.
        """
        follow_up_k = self.follow_up_k
        if follow_up_k is None and self.judged_by() == "titles":
            follow_up_k = min(NAMED_ITEMS, self.k)
        return LoopOptions(
            k=self.k,
            follow_up_k=follow_up_k,
            max_rounds=self.max_rounds,
            compress=self.compress,
            tables=self.tables,
            routed=self.routed,
            trace=trace,
        )

    def limits_of_sight(self) -> Sight:
        """What the language model is shown at most, by the settings alone.

        Raises:
            InvalidRequest: A value is out of its range; begins with the field's name.
        """
        return Sight(pictures=self.llm_pictures, pixels=self.llm_picture_pixels, bytes=self.llm_picture_bytes)

    def sight(self) -> Sight | None:
        """What the language model is shown; ``None`` where it does not see.

        Raises:
            CriticError: The description of its processor cannot be read.
        """
        if not self.llm_sees:
            return None
        # Beside an endpoint elsewhere, the local stack's own model has nothing to say.
        folder = self.model_folder if self.llm_url else self.model_files()
        return self.limits_of_sight().of_processor(folder)

    def judged_by(self) -> Literal["llm", "titles"]:
        """Who judges the evidence: what ``critic`` says, or by the model that would.

        Following names finds as many of the missing items as the small model of the local stack does, with its adapter
        and without it, and takes no time (docs/loop.md, "Which critic").
        """
        if self.critic != "auto":
            return self.critic
        folder = None if self.llm_url else self.model_files()
        return "titles" if folder is not None and folder.name == SMALL_MODEL else "llm"

    def tls_options(self) -> Tls | None:
        """How to encrypt; ``None`` for plain text."""
        return Tls(self.tls_roots, self.tls_key, self.tls_certificate) if self.tls else None

    def milvus(self) -> str:
        """Where Milvus is: a Lite file under ``home`` when nothing else is said."""
        return self.milvus_uri or str(self.home / "milvus" / "canopy.db")

    def model_files(self) -> Path | None:
        """The critic's model folder, the local stack's when nothing else is said; ``None`` when there is none."""
        folder = self.model_folder or self.home / "models" / SMALL_MODEL
        return folder if folder.is_dir() else None


def _parse(text: str, kind: Any, env: str) -> Any:
    """A variable's text as its setting's type."""
    if isinstance(kind, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not types.NoneType)
    if get_origin(kind) is Literal:
        return text  # Whether it is one of them is checked with the rest.
    if kind is bool:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise InvalidRequest(f"{env}: {text!r} is neither true nor false")
    try:
        return kind(text)
    except ValueError:
        raise InvalidRequest(f"{env}: {text!r:.80} is not a number") from None
