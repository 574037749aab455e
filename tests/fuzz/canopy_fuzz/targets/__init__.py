"""All targets, in the order of the page."""

from __future__ import annotations

from typing import Final

from canopy_fuzz.kinds import Target
from canopy_fuzz.targets import content, files, kept, media, places, replies, requests, words

#: By name.
TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for module in (content, requests, files, places, media, words, replies, kept)
    for target in module.TARGETS
}
