"""Models with multi-head latent attention: one latent per token, shared by all heads."""

from __future__ import annotations

from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import latent
from tandemkv.geometry.families.registry import family
from tandemkv.geometry.layers import Layer


@family("DeepSeek V2", "deepseek_v2")
def deepseek_v2(config: ConfigView) -> tuple[Layer, ...]:
    """Read DeepSeek-V2 and V2-Lite."""
    return latent(config)


def _mtp(config: ConfigView) -> tuple[Layer, ...]:
    # The module is one decoder layer with the target's attention per predicted token
    # (DeepSeek-V3 technical report, section 2.2).
    return latent(config, count=config.layer_count("num_nextn_predict_layers"))


@family("DeepSeek V3 and R1, Kimi K2", "deepseek_v3", "kimi_k2", mtp_layers=_mtp)
def deepseek_v3(config: ConfigView) -> tuple[Layer, ...]:
    """Read DeepSeek-V3, R1 and Kimi K2."""
    return latent(config)
