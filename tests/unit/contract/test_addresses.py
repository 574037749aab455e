"""What is shown of an address, and what its credentials are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_backend.addresses import shown_address, split_credentials


@pytest.mark.parametrize(
    ("address", "shown", "parts"),
    [
        ("localhost:8001", "localhost:8001", ("localhost:8001", "", "")),
        ("/srv/milvus/canopy.db", "/srv/milvus/canopy.db", ("/srv/milvus/canopy.db", "", "")),
        ("http://h:1/v1", "http://h:1/v1", ("http://h:1/v1", "", "")),
        ("https://u:p@h:1/v1", "https://***@h:1/v1", ("https://h:1/v1", "u", "p")),
        ("https://u:p%40q@h/v1", "https://***@h/v1", ("https://h/v1", "u", "p@q")),
        ("https://u@h", "https://***@h", ("https://h", "u", "")),
        ("https://:p@h", "https://***@h", ("https://h", "", "p")),
        ("https://a@b:c@h/", "https://***@h/", ("https://h/", "a@b", "c")),
        ("https://@h/", "https://***@h/", ("https://h/", "", "")),
        ("https://h/v1?key=k#f", "https://h/v1?***", ("https://h/v1?key=k#f", "", "")),
        ("https://h/a@b", "https://***@b", ("https://h/a@b", "", "")),
        ("https://u:p/q?r#s@h", "https://***@h", ("https://u:p/q?r#s@h", "", "")),
        ("unix:/a?b@c", "unix:/a?b@c", ("unix:/a?b@c", "", "")),
    ],
)
def test_credentials_are_split_off_and_masked(address: str, shown: str, parts: tuple[str, str, str]) -> None:
    assert split_credentials(address) == parts
    assert shown_address(address) == shown


@given(st.text(), st.sampled_from(["http", "https", "milvus+x"]))
def test_no_address_shows_its_password(rest: str, scheme: str) -> None:
    address = f"{scheme}://user:pa55word-of-it@{rest}"
    assert "pa55word-of-it" not in shown_address(address)
    assert "pa55word-of-it" not in split_credentials(address)[0]
