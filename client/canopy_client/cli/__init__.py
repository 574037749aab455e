"""The ``canopy`` command: :func:`main` is its entry point."""


def main() -> None:
    """Run the command. Imported here, so that ``python -m canopy_client.cli.probe`` starts with little."""
    from canopy_client.cli.app import main as run

    run()
