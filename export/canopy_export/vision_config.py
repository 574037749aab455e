"""Configurations of the vision tower, in the profiles that encoders have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from canopy_export.model_config import DataType, InstanceGroup, Kind, ModelConfig, Parameter, Tensor
from canopy_export.tensorrt.profiles import vision_profiles

#: The file of each profile in a model's folder; the default one is TensorRT's.
TENSORRT, ONNX, EMBEDDED = "config.pbtxt", "configs/onnx.pbtxt", "configs/embedded.pbtxt"
#: Configuration, platform, file and device of each profile.
PROFILES: Final = (
    (TENSORRT, "tensorrt_plan", "model.plan", Kind.GPU),
    (ONNX, "onnxruntime_onnx", "model.onnx", Kind.CPU),
    (EMBEDDED, "", "model.py", Kind.CPU),
)
#: Maps of the vision tower: what takes a visual token's place, and what three decoder layers add to it.
MAPS: Final = 4
#: Patches of one call of the vision tower in the embedded profile: the largest picture that is let through has 7,200.
CALL_PATCHES: Final = 8192
_UINT8, _INT64, _FP32 = DataType.UINT8, DataType.INT64, DataType.FP32


@dataclass(frozen=True, slots=True)
class Sight:
    """The vision tower of encoders that see pixels.

    Attributes:
        hidden: Numbers of a visual embedding.
        patch: Numbers of a patch.
    """

    hidden: int
    patch: int = 1536


#: What stands in the vision tower's configuration until one is exported: the published model's.
PUBLISHED: Final = Sight(2048)


def vision_configs(sight: Sight) -> list[tuple[str, str, ModelConfig]]:
    """Name, profile's file and configuration of each profile.

    A call holds frames of any number and size, one after another, so the tower has no batch axis.
    """
    configs = []
    profiles = tuple(map(str, range(vision_profiles())))
    for profile, platform, filename, kind in PROFILES:
        embedded = {"threads": Parameter("0"), "call_patches": Parameter(str(CALL_PATCHES))}
        config = ModelConfig(
            name="vision_encoder",
            platform=platform,
            backend="" if platform else "python",
            default_model_filename=filename,
            input=(
                Tensor("patches", _UINT8, (-1, sight.patch)),
                Tensor("pos_idx", _INT64, (-1, 4)),
                Tensor("pos_w", _FP32, (-1, 4)),
                Tensor("pos_ids", _INT64, (-1, 2)),
                Tensor("seg", _INT64, (-1,)),
            ),
            output=(
                Tensor("visual", _FP32, (-1, sight.hidden)),
                Tensor("deepstack", _FP32, (MAPS - 1, -1, sight.hidden)),
            ),
            instance_group=(InstanceGroup(1, kind, profiles if profile == TENSORRT else ()),),
            parameters={} if platform else embedded,
        )
        configs.append((config.name, profile, config))
    return configs
