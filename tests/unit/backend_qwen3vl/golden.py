"""What transformers' own processor and model make of some contents, for the tests beside this file.

``python tests/unit/backend_qwen3vl/golden.py`` writes ``golden.json`` again; that needs transformers with torchvision,
which the tests do not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("golden.json")
#: Every how many numbers of a patch one is kept.
STEP = 191
#: A content by its parts: texts, images by seed and size, videos by seed, size and times of their frames.
CASES: dict[str, dict[str, Any]] = {
    "text": {"text": "The harbour of Lindisfall, 1872: isn't it old?\nYes."},
    "image": {"text": "one image", "images": [[1, 70, 100]]},
    "image alone": {"text": "", "images": [[2, 64, 64]]},
    "two images": {"text": "two images", "images": [[3, 33, 250], [4, 300, 200]]},
    "video": {"text": "a clip", "videos": [[5, 64, 96, [0, 10, 20, 30, 40]]]},
    "video resized": {"text": "", "videos": [[6, 90, 50, [0.5, 11.25]]]},
    "mixed": {
        "text": "  Grüße, 日本",
        "videos": [[7, 64, 64, [0, 10]], [8, 96, 64, [20, 30, 40]]],
        "images": [[9, 96, 96], [10, 40, 40]],
    },
}


def pixels(seed: int, *shape: int) -> np.ndarray:
    """Smooth random pixels uint8 ``[*shape, 3]``, so that resizing has something to interpolate."""
    random = np.random.default_rng(seed)
    rows, columns = np.meshgrid(np.linspace(0, 7, shape[-2]), np.linspace(0, 9, shape[-1]), indexing="ij")
    waves = [np.sin(rows * a + columns * b + c) for a, b, c in random.uniform(0, 3, (3 * int(np.prod(shape[:-2])), 3))]
    noise = random.uniform(-20, 20, (*shape, 3))
    planes = np.stack(waves, axis=-1).reshape(*shape[-2:], -1, 3)
    frames = np.moveaxis(planes, 2, 0).reshape(*shape, 3)
    return np.clip(127 + 100 * frames + noise, 0, 255).astype(np.uint8)


def content(case: dict[str, Any]) -> tuple[list[np.ndarray], list[tuple[np.ndarray, list[float]]]]:
    """The images of a case, and its videos with the times of their frames."""
    images = [pixels(*image) for image in case.get("images", [])]
    videos = [(pixels(seed, len(times), *size), times) for seed, *size, times in case.get("videos", [])]
    return images, videos


def main() -> None:
    import tempfile

    import transformers
    from transformers import AutoProcessor, Qwen3VLModel
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.video_utils import VideoMetadata

    from canopy_backend.templates import NODE_INSTRUCTION, QUERY_INSTRUCTION
    from canopy_export.qwen3vl.tiny import tiny_qwen3vl

    with tempfile.TemporaryDirectory() as name:
        folder = tiny_qwen3vl(Path(name))
        processor = AutoProcessor.from_pretrained(folder)
        by_pillow = Qwen2VLImageProcessorPil.from_pretrained(folder)
        model = Qwen3VLModel.from_pretrained(folder)
    written: dict[str, Any] = {"transformers": transformers.__version__, "cases": {}}
    for name, case in CASES.items():
        images, videos = content(case)
        user = [{"type": "video"} for _ in videos] + [{"type": "image"} for _ in images]
        user += [{"type": "text", "text": case["text"]}] if case["text"] else []
        found: dict[str, Any] = {}
        for instruction, key in ((NODE_INSTRUCTION, "ids"), (QUERY_INSTRUCTION, "query_ids")):
            turns = [{"role": "system", "content": instruction}, {"role": "user", "content": user}]
            chat = processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            # As the processor of the model's own release does it: a video's marker is replaced with its brackets.
            chat = chat.replace("<|vision_start|><|video_pad|><|vision_end|>", "<|video_pad|>")
            options: dict[str, Any] = {}
            if videos:
                # Times in hundredths of a second as frame numbers of a hundred frames a second.
                options["videos"] = [frames for frames, _ in videos]
                options["video_metadata"] = [
                    VideoMetadata(total_num_frames=9999, fps=100.0, frames_indices=[round(100 * at) for at in times])
                    for _, times in videos
                ]
                options |= {"do_sample_frames": False, "cap_pixels_per_frame": True}
            made = processor(text=[chat], images=images or None, return_tensors="pt", **options)
            found[key] = made["input_ids"][0].tolist()
            if key == "query_ids":
                continue
            grids = made.get("image_grid_thw"), made.get("video_grid_thw")
            positions, _ = model.get_rope_index(made["input_ids"], made["mm_token_type_ids"], *grids)
            found["positions"] = positions[:, 0].tolist()
            if images:
                found["image_grids"] = made["image_grid_thw"].tolist()
                exact = by_pillow(images, return_tensors="pt")["pixel_values"]
                found["images"] = np.round(exact[:, ::STEP].numpy().astype(float), 6).tolist()
            if videos:
                found["video_grids"] = made["video_grid_thw"].tolist()
                found["videos"] = np.round(made["pixel_values_videos"][:, ::STEP].numpy().astype(float), 6).tolist()
        written["cases"][name] = found
    FILE.write_text(json.dumps(written, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
