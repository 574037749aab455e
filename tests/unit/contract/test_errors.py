"""One error tree, one table of codes; limits that travel as strings."""

from __future__ import annotations

import grpc
import pytest

from canopy_backend import errors
from canopy_backend.errors import CanopyError, InvalidItem, InvalidRequest, LimitExceeded, code_of
from canopy_backend.limits import Limits


def tree(kind: type[CanopyError]) -> list[type[CanopyError]]:
    return [kind] + [below for child in kind.__subclasses__() for below in tree(child)]


@pytest.mark.parametrize("kind", tree(CanopyError))
def test_every_error_has_a_real_grpc_code_and_stands_in_the_drawing(kind: type[CanopyError]) -> None:
    code = code_of(kind.__new__(kind))
    assert hasattr(grpc.StatusCode, code)
    assert kind.__name__ in (errors.__doc__ or "")


def test_a_subclass_takes_its_parents_code_and_a_stranger_is_internal() -> None:
    assert code_of(InvalidItem("bad")) == code_of(InvalidRequest("bad")) == "INVALID_ARGUMENT"
    assert code_of(ZeroDivisionError()) == "INTERNAL"


def test_an_item_is_named_with_what_is_known_of_it() -> None:
    assert str(InvalidItem("is odd")) == "item: is odd"
    assert str(InvalidItem("is odd", item_id="a", field="text").at(3)) == "item 3 ('a'), field 'text': is odd"


def test_limits_travel_as_strings() -> None:
    limits = Limits(max_items=3, max_fragments=9)
    assert Limits.from_parameters({**limits.to_parameters(), "other": "x"}) == limits
    assert Limits.from_parameters({}) == Limits()


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "many"])
def test_a_limit_that_is_no_number_is_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidRequest, match="max_items"):
        Limits.from_parameters({"max_items": value})


def test_a_limit_lets_its_own_value_pass() -> None:
    Limits(max_items=2).check("max_items", 2, "items")
    with pytest.raises(LimitExceeded, match="items: 3 is over the limit max_items=2"):
        Limits(max_items=2).check("max_items", 3, "items")
