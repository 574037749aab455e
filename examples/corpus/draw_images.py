"""Draw the images of the example corpus with the standard library alone.

Run it from anywhere: ``python examples/corpus/draw_images.py``. It writes the same bytes every time, so a change of a
drawing is a change of this file. Pass a folder to write somewhere else.
"""

from __future__ import annotations

import math
import struct
import sys
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

Colour = tuple[int, int, int]
Point = tuple[float, float]

WHITE: Colour = (255, 255, 255)
INK: Colour = (34, 40, 49)
RED: Colour = (196, 52, 45)
GREEN: Colour = (40, 128, 84)
BLUE: Colour = (44, 92, 160)
SEA: Colour = (172, 208, 226)
SAND: Colour = (226, 208, 164)
YELLOW: Colour = (240, 196, 60)
GREY: Colour = (150, 156, 164)


class Canvas:
    """An RGB picture that knows four shapes and its own PNG form."""

    def __init__(self, width: int, height: int, ground: Colour) -> None:
        self.width = width
        self.height = height
        self._rows = [bytearray(bytes(ground) * width) for _ in range(height)]

    def fill(self, inside: Callable[[float, float], bool], bounds: tuple[float, ...], colour: Colour) -> None:
        """Colour every pixel whose centre is ``inside``; ``bounds`` (left, top, right, bottom) only save work."""
        left, top, right, bottom = (math.floor(bounds[0]), math.floor(bounds[1]), *map(math.ceil, bounds[2:]))
        for y in range(max(0, top), min(self.height, bottom)):
            row = self._rows[y]
            for x in range(max(0, left), min(self.width, right)):
                if inside(x + 0.5, y + 0.5):
                    row[3 * x : 3 * x + 3] = bytes(colour)

    def box(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        """A rectangle; its right and bottom edges are outside."""
        self.fill(lambda x, y: left <= x < right and top <= y < bottom, (left, top, right, bottom), colour)

    def disc(self, centre_x: float, centre_y: float, radius: float, colour: Colour) -> None:
        """A filled circle."""
        bounds = (centre_x - radius, centre_y - radius, centre_x + radius, centre_y + radius)
        self.fill(lambda x, y: math.hypot(x - centre_x, y - centre_y) <= radius, bounds, colour)

    def line(self, points: list[Point], thickness: float, colour: Colour) -> None:
        """A line through ``points`` with round ends."""
        for start, end in pairwise(points):
            self._segment(start, end, thickness / 2, colour)

    def _segment(self, start: Point, end: Point, radius: float, colour: Colour) -> None:
        (x1, y1), (x2, y2) = start, end
        along_x, along_y = x2 - x1, y2 - y1
        squared = along_x**2 + along_y**2 or 1.0

        def near(x: float, y: float) -> bool:
            share = min(1.0, max(0.0, ((x - x1) * along_x + (y - y1) * along_y) / squared))
            return math.hypot(x - x1 - share * along_x, y - y1 - share * along_y) <= radius

        bounds = (min(x1, x2) - radius, min(y1, y2) - radius, max(x1, x2) + radius, max(y1, y2) + radius)
        self.fill(near, bounds, colour)

    def polygon(self, corners: list[Point], colour: Colour) -> None:
        """An area with straight edges, by the even-odd rule."""

        def inside(x: float, y: float) -> bool:
            odd = False
            for (x1, y1), (x2, y2) in zip(corners, corners[1:] + corners[:1], strict=True):
                if (y1 > y) != (y2 > y) and x < x1 + (y - y1) / (y2 - y1) * (x2 - x1):
                    odd = not odd
            return odd

        across, down = zip(*corners, strict=True)
        self.fill(inside, (min(across), min(down), max(across), max(down)), colour)

    def png(self) -> bytes:
        """The picture as an 8-bit RGB PNG."""

        def chunk(kind: bytes, body: bytes) -> bytes:
            return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in self._rows), 9)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def maren_head_daymark() -> Canvas:
    picture = Canvas(120, 180, SEA)
    picture.box(0, 150, 120, 180, SAND)
    for band in range(5):
        top = 50 + band * 20
        spread = 14 + band * 3
        colour = RED if band % 2 == 0 else WHITE
        picture.polygon(
            [(60 - spread, top), (60 + spread, top), (63 + spread, top + 20), (57 - spread, top + 20)], colour
        )
    picture.box(50, 32, 70, 50, YELLOW)
    picture.polygon([(46, 32), (74, 32), (60, 16)], INK)
    picture.box(42, 48, 78, 52, INK)
    return picture


def oskel_bridge_plan() -> Canvas:
    picture = Canvas(220, 120, WHITE)
    picture.box(0, 45, 220, 80, SEA)
    picture.line([(0, 45), (220, 45)], 1.5, INK)
    picture.line([(0, 80), (220, 80)], 1.5, INK)
    picture.box(88, 10, 102, 45, GREY)
    picture.box(88, 80, 102, 120, GREY)
    picture.line([(60, 62), (130, 62)], 10, RED)
    picture.disc(95, 62, 9, INK)
    picture.disc(95, 62, 5, WHITE)
    picture.box(150, 86, 190, 100, BLUE)
    picture.line([(140, 108), (215, 108)], 2, INK)
    return picture


def lantern_race_course() -> Canvas:
    picture = Canvas(200, 150, SEA)
    picture.polygon([(0, 0), (200, 0), (200, 18), (120, 26), (40, 20), (0, 36)], SAND)
    marks = [(40.0, 48.0), (168.0, 58.0), (96.0, 128.0)]
    picture.line([*marks, marks[0]], 2, INK)
    for (x, y), colour in zip(marks, (RED, YELLOW, GREEN), strict=True):
        picture.disc(x, y, 9, INK)
        picture.disc(x, y, 7, colour)
    return picture


def pilot_flag() -> Canvas:
    picture = Canvas(150, 100, BLUE)
    picture.line([(0, 0), (150, 100)], 18, WHITE)
    picture.line([(0, 100), (150, 0)], 18, WHITE)
    picture.disc(75, 50, 26, BLUE)
    picture.disc(75, 50, 21, YELLOW)
    picture.polygon([(57, 50), (75, 42), (93, 50), (75, 58)], BLUE)
    return picture


def plover_30_pump_curve() -> Canvas:
    picture = Canvas(200, 150, WHITE)
    for step in range(1, 6):
        picture.line([(30.5 + 30 * step, 12), (30.5 + 30 * step, 130)], 1.0, SEA)
        picture.line([(30, 130.5 - 22 * step), (190, 130.5 - 22 * step)], 1.0, SEA)
    picture.line([(30, 10), (30, 130), (190, 130)], 2, INK)
    picture.line([(x, 28 + ((x - 30) / 160) ** 2 * 82) for x in range(30, 191, 8)], 2.5, BLUE)
    picture.line([(x, 125 - 92 * math.sin((x - 30) / 160 * 2.5) ** 1.2) for x in range(30, 191, 8)], 2, GREEN)
    picture.disc(128, 59, 5, RED)
    return picture


def moon_over_kestrel_hill() -> Canvas:
    picture = Canvas(200, 140, (18, 24, 48))
    for star in range(40):
        picture.disc((star * 77 + star * star * 13) % 199, (star * 29) % 91, 0.9, WHITE)
    picture.disc(150, 38, 20, YELLOW)
    picture.disc(141, 34, 19, (18, 24, 48))
    picture.polygon([(0, 140), (0, 122), (90, 84), (130, 86), (200, 128), (200, 140)], INK)
    picture.disc(106, 84, 17, GREY)
    picture.box(86, 84, 127, 100, GREY)
    picture.polygon([(108, 66), (120, 70), (114, 84), (106, 84)], (18, 24, 48))
    return picture


def bay_line_diagram() -> Canvas:
    picture = Canvas(260, 90, WHITE)
    picture.line([(15, 30), (80, 30), (110, 55), (190, 55), (215, 35), (248, 35)], 5, RED)
    for x, y in ((15, 30), (80, 30), (135, 55), (190, 55), (248, 35)):
        picture.disc(x, y, 7, INK)
        picture.disc(x, y, 4, WHITE)
    picture.line([(15, 70), (80, 70), (135, 78), (190, 78), (248, 68)], 1.5, BLUE)
    return picture


DRAWINGS: tuple[Callable[[], Canvas], ...] = (
    maren_head_daymark,
    oskel_bridge_plan,
    lantern_race_course,
    pilot_flag,
    plover_30_pump_curve,
    moon_over_kestrel_hill,
    bay_line_diagram,
)


def draw_all(folder: Path) -> list[Path]:
    """Write every drawing into ``folder`` as ``<name>.png`` and return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for drawing in DRAWINGS:
        path = folder / f"{drawing.__name__}.png"
        path.write_bytes(drawing().png())
        paths.append(path)
    return paths


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images")
