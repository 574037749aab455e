"""The ``canopy`` command."""

from canopy_client.cli.app import main

__all__ = ["main"]
