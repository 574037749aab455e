"""Command-line options made from the settings: one definition for flag, variable and help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias, get_type_hints

import typer

from canopy_client import telemetry
from canopy_client.settings import Settings

SERVER: Final = ("url", "deadline_s", "tls", "tls_roots", "tls_key", "tls_certificate")
TRACING: Final = ("tracing_url", "tracing_rate")
PIXELS: Final = ("pixels", "picture_hosts", "picture_http")
STORE: Final = ("milvus_uri", "milvus_token", "corpus", "home")
MODEL: Final = (
    "critic_url", "llm_url", "llm_model", "llm_key", "llm_parallel", "llm_sees", "llm_pictures", "llm_picture_pixels",
    "llm_picture_bytes", "model_folder"
)  # fmt: skip
LOOP: Final = (
    "k", "follow_up_k", "max_rounds", "critic", "compress", "tables", "routed", "budget_tokens", "answer_deadline_s"
)  # fmt: skip

#: ``--json``, which every command has.
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

_DESCRIPTIONS: Final = {description.name: description for description in Settings.describe()}


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these settings; it receives them, loaded, as its argument ``settings``."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        kinds = get_type_hints(Settings)
        signature = inspect.signature(function, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "settings"]
        added = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kinds[name] | None, _option(name, kinds[name])],
            )
            for name in names
        ]
        ordered = sorted([*own, *added], key=lambda parameter: parameter.kind)

        def command(**values: Any) -> None:
            settings = Settings.load({name: values.pop(name) for name in names})
            # The probe stays out: it runs in the servers' pods, without the packages that send spans.
            url = settings.tracing_url if "tracing_url" in names else ""
            with telemetry.exporting(url, settings.tracing_rate):
                function(settings=settings, **values)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
        return command

    return decorate


def _option(name: str, kind: Any) -> Any:
    """The option of a setting; its value stays ``None`` when neither flag nor variable is given."""
    about = _DESCRIPTIONS[name]
    shown = about.default if about.default and not about.secret else False
    # A switch can be turned off on the command line too, where a variable or its default turned it on.
    flag = f"{about.flag}/--no-{about.flag.removeprefix('--')}" if kind in (bool, bool | None) else about.flag
    text = f"{about.help[0].upper()}{about.help[1:]}."
    return typer.Option(flag, envvar=about.env, help=text, show_default=shown, show_envvar=True)
