"""``canopy probe``: does a server answer? Also ``python -m canopy_client.cli.probe``, which imports far less.

Exit code 0: every server that was asked answered rightly and in time. 1: one did not. 2: the command was wrong.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Final

import msgspec
import typer

from canopy_backend.errors import CanopyError, InvalidRequest
from canopy_client import canary
from canopy_client.canary import CRITIC, EVIDENCE, Canary
from canopy_client.cli.options import AsJson, takes
from canopy_client.settings import Settings

_SETTINGS: Final = ("url", "critic_url", "tls", "tls_roots", "tls_key", "tls_certificate")


@takes(*_SETTINGS)
def probe(
    settings: Settings,
    evidence: Annotated[bool, typer.Option(help="Ask the evidence server.")] = True,
    critic: Annotated[bool, typer.Option(help="Ask the critic server.")] = False,
    timeout_s: Annotated[
        float, typer.Option(envvar="CANOPY_PROBE_TIMEOUT_S", min=0.1, help="Seconds for all answers.", show_envvar=True)
    ] = 10.0,
    busy_passes: Annotated[
        bool, typer.Option("--busy-passes", help="Pass a server that has too much to do: it needs no restart.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Infer through every model of a server, once; exit code 1 if that fails, whatever the server's health says."""
    servers = {EVIDENCE: settings.url} if evidence else {}
    servers |= {CRITIC: settings.critic_url} if critic else {}
    if not servers:
        raise InvalidRequest("--no-evidence without --critic leaves no server to ask")
    seen = ask(servers, settings, timeout_s)
    passed = all(one.passed or (busy_passes and one.busy) for one in seen.values())
    if as_json:
        typer.echo(msgspec.json.encode({"passed": passed, "servers": seen}).decode())
    else:
        typer.echo("; ".join(told(server, one) for server, one in seen.items()))
    if not passed:
        raise typer.Exit(1)


def ask(servers: dict[str, str], settings: Settings, timeout_s: float) -> dict[str, Canary]:
    """Canaries of servers, sent together.

    Args:
        servers: gRPC endpoint by server.
        settings: For TLS.
        timeout_s: Seconds for all of them.
    """
    tls = settings.tls_options()

    def one(server: str) -> Canary:
        return canary.result(server, servers[server], timeout_s=timeout_s, tls=tls)

    with ThreadPoolExecutor(max_workers=len(servers)) as pool:
        return dict(zip(servers, pool.map(one, servers), strict=True))


def told(server: str, seen: Canary) -> str:
    """A result in words, on one line."""
    words = "answers" if seen.passed else f"{'is BUSY' if seen.busy else 'FAILS'}: {' '.join(seen.error.split())}"
    return f"{server} {words} ({seen.seconds:.2f} s)"


def main() -> None:
    """The command on its own, without what the other commands import."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(probe)
    try:
        app(prog_name="canopy probe")
    except CanopyError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
