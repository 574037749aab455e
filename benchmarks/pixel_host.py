"""What the host does for an item with pixels, in processor time of one core, and what seeking saves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks import estimate, pixel_media
from benchmarks.timing import cpu_ms
from canopy_backend.items import VideoItem
from canopy_backend.limits import Limits
from canopy_backend.pixels import clip_of, decode_image, read_clip, with_clip
from canopy_backend.qwen3vl.grids import grid_inputs
from canopy_backend.qwen3vl.nodes import Look, Shown
from canopy_backend.qwen3vl.patches import image_patches, image_size, row_patches

#: Patches of a call of the tower, for which grids are computed together.
_CALL: Final = 4096


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One item.

    Attributes:
        label: In words.
        form: The format of its files.
        file_mb: Their size.
        sent: Whether a server takes them as they are; larger ones are written smaller where items are made.
        decode_ms: Files to pixels.
        resize_ms: To the size that the encoder looks at.
        patch_ms: To patches.
        grid_ms: Positions of the patches.
        encoder_ms: What the encoder takes by estimate, by GPU.
    """

    label: str
    form: str
    file_mb: float
    sent: bool
    decode_ms: float
    resize_ms: float
    patch_ms: float
    grid_ms: float
    encoder_ms: dict[str, float]

    @property
    def ms(self) -> float:
        """All of it."""
        return self.decode_ms + self.resize_ms + self.patch_ms + self.grid_ms

    def ratio(self, gpu: str) -> float:
        """Cores that keep one GPU busy with such items; at most 1 is the aim."""
        return self.ms / self.encoder_ms[gpu]


class Seeking(msgspec.Struct, frozen=True, kw_only=True):
    """One clip, cut into frames by seeking and decoded whole.

    Attributes:
        label: In words.
        frames: Of the clip.
        taken: That an item has.
        decoded: Decoded for those.
        seek_ms: To read its packets, seek, decode, scale and write the frames that are taken.
        all_ms: To decode every frame, and nothing else.
    """

    label: str
    frames: int
    taken: int
    decoded: int
    seek_ms: float
    all_ms: float

    @property
    def ratio(self) -> float:
        """How often seeking goes into decoding everything."""
        return self.all_ms / self.seek_ms


@dataclass(frozen=True)
class HostExtent:
    """Sizes of a run.

    Attributes:
        repeats: Times that each step is measured; the median counts.
        megapixels: Of the pictures.
        clips: Seconds of the clips whose frames are looked at.
        seek_s: Seconds of the clips that are decoded.
        keys_s: Seconds between their key frames.
        rate: Their frames a second.
    """

    repeats: int
    megapixels: tuple[float, ...]
    clips: tuple[int, ...]
    seek_s: int
    keys_s: tuple[int, ...]
    rate: int


def images(extent: HostExtent) -> Iterator[Host]:
    """Every size in every format."""
    for megapixels in extent.megapixels:
        picture = pixel_media.photograph(*pixel_media.SIZES[megapixels])
        for form in pixel_media.FORMATS:
            payload = pixel_media.picture_file(picture, form)
            yield image_host(
                f"image, {megapixels:g} megapixel{'' if megapixels == 1 else 's'}", form, payload, extent.repeats
            )


def image_host(label: str, form: str, payload: bytes, repeats: int) -> Host:
    """What the host does for a picture file."""
    pixels = decode_image(payload)
    fitted = np.zeros((*image_size(*pixels.shape[:2], estimate.SETTINGS), 3), np.uint8)
    _, grid = image_patches(fitted, estimate.SETTINGS)
    cut_ms = cpu_ms(lambda: image_patches(fitted, estimate.SETTINGS), repeats)
    both_ms = cpu_ms(lambda: image_patches(pixels, estimate.SETTINGS), repeats)
    work = estimate.image_work(*pixels.shape[:2])
    return Host(
        label=label,
        form=form,
        file_mb=len(payload) / 1e6,
        sent=len(payload) <= Limits().max_picture_bytes,
        decode_ms=cpu_ms(lambda: decode_image(payload), repeats),
        resize_ms=max(0.0, both_ms - cut_ms),
        patch_ms=cut_ms,
        grid_ms=cpu_ms(lambda: grid_inputs([grid], estimate.SETTINGS), repeats),
        encoder_ms={gpu: work.ms(gpu) for gpu in estimate.PEAKS},
    )


def clips(extent: HostExtent) -> Iterator[Host]:
    """Clips as a server gets them: their frames as JPEG."""
    for seconds in extent.clips:
        # What lies between the frames that are taken is of no account here.
        payload = pixel_media.clip_file(seconds, rate=1, key_every_s=10)
        yield clip_host(with_clip(VideoItem(id="clip", duration_s=seconds), payload), extent.repeats)


def clip_host(item: VideoItem, repeats: int) -> Host:
    """What the host does for a clip with frames: those that its nodes show, each pair once at each size."""
    found = clip_of(item)
    assert found is not None
    frames, _ = found
    distinct = _distinct(item, frames)
    fitted = {shown: [np.zeros(_size(shown), np.uint8)] * len(shown.frames) for shown in distinct}
    cut_ms = cpu_ms(lambda: [row_patches(one, estimate.SETTINGS) for one in fitted.values()], repeats)
    # Looks keep frames that they have resized, so new ones are made for each call.
    both_ms = cpu_ms(lambda: [look.patches(shown) for shown, look in _distinct(item, frames).items()], repeats)
    work = estimate.clip_work(item.duration_s)
    byte_count = sum(len(frame.image) for frame in item.frames)
    return Host(
        label=f"clip, {item.duration_s:g} s, {len(item.frames)} frames of {frames.shape[2]} x {frames.shape[1]}",
        form="JPEG",
        file_mb=byte_count / 1e6,
        sent=byte_count <= Limits().max_picture_bytes,
        decode_ms=cpu_ms(lambda: clip_of(item), repeats),
        resize_ms=max(0.0, both_ms - cut_ms),
        patch_ms=cut_ms,
        grid_ms=cpu_ms(lambda: _grids(list(distinct)), repeats),
        encoder_ms={gpu: work.ms(gpu) for gpu in estimate.PEAKS},
    )


def _distinct(item: VideoItem, frames: npt.NDArray[np.uint8]) -> dict[Shown, Look]:
    """What the nodes of a clip show, each once, and a look that has it."""
    looks = [look for look in estimate.looks_of(item, frames) if estimate.fits(look) is not None]
    return {shown: look for look in looks for shown in look.shown}


def _size(shown: Shown) -> tuple[int, int, int]:
    side = estimate.SETTINGS.patch
    return shown.height * side, shown.width * side, 3


def seeking(extent: HostExtent) -> Iterator[Seeking]:
    """Clips of 720p with their key frames at different distances."""
    for every_s in extent.keys_s:
        payload = pixel_media.clip_file(extent.seek_s, rate=extent.rate, key_every_s=every_s)
        label = f"{extent.seek_s} s of 1280 x 720, {extent.rate} frames a second, a key frame every {every_s} s"
        yield seek(label, payload, extent.repeats)


def seek(label: str, payload: bytes, repeats: int) -> Seeking:
    """One clip both ways."""
    clip = read_clip(payload)
    return Seeking(
        label=label,
        frames=pixel_media.decode_all(payload),
        taken=len(clip.frames),
        decoded=clip.decoded,
        seek_ms=cpu_ms(lambda: read_clip(payload), repeats),
        all_ms=cpu_ms(lambda: pixel_media.decode_all(payload), 1),
    )


def _grids(shown: list[Shown]) -> None:
    """Positions, a call of the tower at a time."""
    each = max(1, _CALL // shown[0].patches)
    for place in range(0, len(shown), each):
        grid_inputs([(1, one.height, one.width) for one in shown[place : place + each]], estimate.SETTINGS)
