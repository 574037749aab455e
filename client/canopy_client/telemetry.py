"""Spans of OpenTelemetry: one trace a question, from here through Triton's own spans to the language model's.

Names and numbers alone are written into spans, never a text: no query, no item, no prompt, no answer, and of an error
its type. Without the package ``opentelemetry-api`` everything here does nothing; with it, spans go to whatever provider
the program has set up. :func:`exporting` sets one up for the command (extra ``telemetry``).

A server gets the context of a sampled span alone, as the header ``traceparent`` of the W3C: it records every request
that brings one, whatever its own rate.
"""

from __future__ import annotations

import base64
import importlib
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Literal, TypeAlias

from canopy_backend.addresses import split_credentials
from canopy_backend.errors import InvalidRequest

Kind: TypeAlias = Literal["INTERNAL", "CLIENT"]
Attribute: TypeAlias = str | int | float | bool

#: Name of the instrumentation, and of the service that the command tells of itself.
SCOPE: Final = "canopy_client"
SERVICE: Final = "canopy-client"
#: Seconds that sending spans may keep a command from ending.
FLUSH_S: Final = 3.0


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_api: Final = _module("opentelemetry.trace")
_w3c: Final = _module("opentelemetry.trace.propagation.tracecontext")
#: The provider of :func:`exporting`; otherwise the program's own is used.
_provider: Any = None


class Span:
    """A span that is begun and ended by hand, since a question is worked on in a generator.

    Args:
        span: OpenTelemetry's; ``None`` where the package is not installed.
    """

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def set(self, **attributes: Attribute) -> None:
        """Add attributes; an underscore of a name becomes a full stop after its first word."""
        if self._span is not None:
            self._span.set_attributes(_named(attributes))

    def fail(self, error: BaseException | str) -> None:
        """Mark it as failed, by the error's type alone."""
        if self._span is not None:
            kind = error if isinstance(error, str) else type(error).__name__
            self._span.set_attribute("error.type", kind)
            self._span.set_status(_api.StatusCode.ERROR, kind)

    def end(self) -> None:
        """End it; safe to repeat."""
        if self._span is not None and self._span.is_recording():
            self._span.end()

    def active(self) -> AbstractContextManager[Any]:
        """A block whose spans are children of this one."""
        if self._span is None:
            return nullcontext()
        return _api.use_span(  # type: ignore[no-any-return]
            self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )


def begin(name: str, parent: Span | None, *, kind: Kind = "INTERNAL", **attributes: Attribute) -> Span:
    """Begin a span that is not yet the current one.

    Args:
        name: What is done.
        parent: The span around it; ``None`` for the current one.
        kind: ``CLIENT`` for a call of a server.
        attributes: As in :meth:`Span.set`.
    """
    if _api is None:
        return Span()
    around = _api.get_current_span() if parent is None or parent._span is None else parent._span
    known = around.get_span_context()
    if known.is_valid and not known.trace_flags.sampled:
        return Span(around)  # of a trace that nobody records: a span of its own would be made for nothing
    context = None if parent is None or parent._span is None else _api.set_span_in_context(parent._span)
    tracer = (_provider or _api).get_tracer(SCOPE)
    span = tracer.start_span(name, context=context, kind=_api.SpanKind[kind], attributes=_named(attributes))
    return Span(span)


@contextmanager
def span(name: str, *, kind: Kind = "INTERNAL", **attributes: Attribute) -> Iterator[Span]:
    """A block as a span; what is raised in it marks the span and goes on."""
    one = begin(name, None, kind=kind, **attributes)
    try:
        with one.active():
            yield one
    except BaseException as error:
        one.fail(error)
        raise
    finally:
        one.end()


def trace_id() -> str:
    """The trace that is being recorded here, 32 hex digits; empty for none."""
    context = None if _api is None else _api.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context is not None and context.trace_flags.sampled else ""


def headers() -> dict[str, str]:
    """The W3C's headers of the current span; none where it is not recorded."""
    carrier: dict[str, str] = {}
    if trace_id():
        _w3c.TraceContextTextMapPropagator().inject(carrier)
    return carrier


def metadata() -> dict[str, Any]:
    """:func:`headers` as the keyword argument of a gRPC call; nothing where there are none."""
    found = headers()
    return {"metadata": tuple(found.items())} if found else {}


@contextmanager
def exporting(url: str, rate: float) -> Iterator[None]:
    """Send the spans of the block to a collector; what is left of them is sent at its end, within :data:`FLUSH_S`.

    Args:
        url: OTLP over HTTP, with its path: ``http://localhost:4318/v1/traces``. Empty sends nothing.
        rate: Share of the traces that are recorded, 0 to 1.

    Raises:
        InvalidRequest: The rate is no share, the address holds a query, or the packages of the extra ``telemetry`` are
            not installed.
    """
    global _provider
    if math.isnan(rate) or not 0 <= rate <= 1:
        raise InvalidRequest(f"tracing rate: {rate!r:.40} is not a share from 0 to 1")
    if not url:
        yield
        return
    provider = _sdk_provider(url, rate)
    _provider, before = provider, _provider
    try:
        yield
    finally:
        _provider = before
        provider.force_flush(int(FLUSH_S * 1000))
        provider.shutdown()


def _sdk_provider(url: str, rate: float) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError as error:
        raise InvalidRequest(
            f"tracing: {error.name} is not installed; pip install 'canopy-triton[telemetry]'"
        ) from None
    endpoint, headers = _collector(url)
    resource = Resource.create({"service.name": SERVICE})
    provider = TracerProvider(resource=resource, sampler=ParentBased(TraceIdRatioBased(rate)))
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, headers=headers, timeout=FLUSH_S))
    )
    return provider


def _collector(url: str) -> tuple[str, dict[str, str]]:
    """A collector's address without credentials, since libraries log addresses, and the headers that carry them."""
    bare, user, password = split_credentials(url)
    if "@" in bare or "?" in bare:
        raise InvalidRequest(
            "tracing url: write special characters of user and password as %XX, and give tokens in the variable "
            "OTEL_EXPORTER_OTLP_HEADERS, not in a query"
        )
    if not (user or password):
        return bare, {}
    return bare, {"authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def _named(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Attributes in OpenTelemetry's spelling: ``canopy_round`` is ``canopy.round``."""
    return {name.replace("_", ".", 1): value for name, value in attributes.items()}
