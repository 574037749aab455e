"""ONNX graphs to TensorRT: optimisation profiles, plans for the server, and a compile check without a GPU."""
