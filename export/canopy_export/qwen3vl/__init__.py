"""Qwen3-VL-Embedding to ONNX: the language backbone and the vision tower, with a tiny model to prove it on."""
