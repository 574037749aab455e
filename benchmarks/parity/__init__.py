"""The parity chain of encoders that see pixels: torch with its adapter, merged, as files, and at the endpoint."""
