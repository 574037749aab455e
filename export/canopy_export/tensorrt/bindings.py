"""The one place that imports TensorRT: the container's own, else TensorRT for RTX, whose interface is the same here."""

from __future__ import annotations

from canopy_backend.errors import ExportError

try:
    import tensorrt as trt

    RTX = False
except ImportError:
    try:
        import tensorrt_rtx_bindings as trt

        RTX = True
    except ImportError:
        raise ExportError(
            "TensorRT is not installed: plans are built inside the Triton container, and the compile check needs "
            "`pip install 'canopy-triton[tensorrt-check]'`"
        ) from None

__all__ = ["RTX", "trt"]
