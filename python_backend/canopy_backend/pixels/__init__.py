"""Pixels of items: picture files and clips of any origin to RGB arrays, within bounds, or to an error with a name.

    bounds    what is decoded at most
    images    one picture file to RGB
    windows   which key frame stands for which stretch of a clip
    clips     a clip's file to picture files, a frame each
    jpeg      picture files that are too large, written again smaller
    items     pictures of items, frames of spans

A server decodes picture files, for which it needs Pillow. Clips are cut into picture files where items are made, which
needs PyAV as well. Both come with the extra ``pixels`` and are imported when the first picture is met.
"""

from canopy_backend.pixels.bounds import BOUNDS, PixelBounds
from canopy_backend.pixels.clips import Clip, read_clip
from canopy_backend.pixels.images import Header, decode_image, read_header
from canopy_backend.pixels.items import clip_of, frames_of, picture_of, with_clip, with_picture
from canopy_backend.pixels.jpeg import shrink

__all__ = [
    "BOUNDS",
    "Clip",
    "Header",
    "PixelBounds",
    "clip_of",
    "decode_image",
    "frames_of",
    "picture_of",
    "read_clip",
    "read_header",
    "shrink",
    "with_clip",
    "with_picture",
]
