"""Status messages of a server that is none of ours: long numbers, and long texts that nearly fit a pattern."""

from __future__ import annotations

from canopy_backend.errors import InvalidRequest
from canopy_client.status import error_from_status, shifted

NINES = "9" * 5000


def test_numbers_longer_than_python_reads_are_text() -> None:
    for message in (
        f"item {NINES}: is not there",
        f"items: {NINES} is over the limit max_items={NINES}",
        f"message larger than max ({NINES} vs. {NINES})",
    ):
        error = error_from_status("INVALID_ARGUMENT", message)
        assert isinstance(shifted(error, 1), InvalidRequest)


def test_a_status_is_read_in_time_that_grows_with_its_length() -> None:
    # Ten times the longest status that gRPC carries: a pattern that tries each place would not end here.
    error = error_from_status("INVALID_ARGUMENT", ": 1" * 60_000)
    assert type(error) is InvalidRequest
