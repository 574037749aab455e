"""Every fuzz target for some hundred inputs, without atheris: what `make fuzz` runs a million times stays runnable."""

from __future__ import annotations

import importlib.util

import pytest
from canopy_fuzz import parent, report
from canopy_fuzz.kinds import Target
from canopy_fuzz.mutations import mutations
from canopy_fuzz.targets import TARGETS

EXECUTIONS = 250
#: Targets whose inputs are dear: pictures and clips.
DEAR = 25
LIBRARIES = {"images": ["PIL"], "clips": ["av", "PIL"]}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_only_errors_with_a_name_come_out(name: str) -> None:
    if any(importlib.util.find_spec(library) is None for library in LIBRARIES.get(name, [])):
        pytest.skip("pixels need Pillow and PyAV")
    target = TARGETS[name]
    taken = [target.execute(data) for data in mutations(target, DEAR if target.seconds else EXECUTIONS)]
    # Seeds are good and bad ones; a target that refuses everything, or nothing, would not see its decoder's insides.
    assert any(taken)
    assert not all(taken) or not target.allowed


def test_names_are_unique_and_limits_hold_the_seeds() -> None:
    assert len({target.decodes for target in TARGETS.values()}) == len(TARGETS)
    for target in TARGETS.values():
        if target.name not in LIBRARIES:
            assert all(len(seed) <= target.max_len for seed in target.seeds()), target.name


def test_an_error_that_is_not_allowed_is_a_finding() -> None:
    def run(data: bytes) -> None:
        raise KeyError(data)

    target = Target(name="x", decodes="x", run=run, allowed=(ValueError,), seeds=lambda: [b""])
    with pytest.raises(KeyError):
        target.execute(b"a")


def test_a_row_of_the_page_tells_a_run() -> None:
    outcome = parent.Outcome("x", "a thing", 1_000_000, 250_000, 50.0, 123, 45, 0.0125, 80 << 20, 85 << 20, 0, "")
    assert report.line(outcome) == (
        "| x | a thing | 1,000,000 | 25.0% | 50 | 20,000 | 123 | 12.5 | 80 | 85 | 0.0 | none |"
    )
    kept = {"x": {**{name: getattr(outcome, name) for name in parent.Outcome.__dataclass_fields__}, "seed": 1}}
    kept["x"]["libraries"] = {"atheris": "3"}
    page = report.text(kept, {"x": TARGETS["items"], "images": TARGETS["images"]})
    assert report.line(outcome) in page
    assert "Seed 1; atheris 3." in page


def test_the_page_is_what_the_figures_say() -> None:
    if not report.PAGE.is_file():
        pytest.skip("nothing was run yet")
    kept = report.read()
    assert report.PAGE.read_text(encoding="utf-8") == report.text(kept, TARGETS)
    assert kept.keys() <= TARGETS.keys()
    for name, row in kept.items():
        assert row["finding"] == "", name
        assert row["executions"] >= row["runs"] or TARGETS[name].seconds, name
