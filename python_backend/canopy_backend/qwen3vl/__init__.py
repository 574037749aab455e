"""The host's side of a Qwen3-VL encoder: pixels to patches, grids to positions, contents to token rows.

Everything that depends on a grid is computed here and handed to the graphs as tensors, so that they have no
data-dependent shape. Nothing here needs torch or transformers.
"""
