"""Encoders to ONNX, parity gates, manifests and the typed configurations of the model repository."""
