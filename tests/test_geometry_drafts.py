"""Draft heads and multi-token-prediction modules keep their own layers, in their own dtype."""

from __future__ import annotations

import dataclasses
import json

import pytest
from geometry_cases import CONFIGS, GQA, LLAMA, MLA, layer

import tandemkv as tkv


def test_drafting_depth_is_no_layer_count() -> None:
    """A head with one layer keeps 4,096 B per token however many tokens it drafts."""
    head = tkv.ModelGeometry.from_hf(
        CONFIGS / "DRAFT__SpecForge__llama3-8B-eagle3.json", role="draft"
    )
    assert head.num_layers == 1
    assert head.bytes_per_token() == 4096
    # Only an explicit count makes it four layers, and then they cost four layers.
    four = dataclasses.replace(head, layers=head.layers * 4)
    assert four.bytes_per_token() == 16_384


def test_draft_without_a_layer_count_is_refused_unless_told() -> None:
    config = {field: value for field, value in LLAMA.items() if field != "num_hidden_layers"}
    config["architectures"] = ["LlamaForCausalLMEagle3"]
    with pytest.raises(tkv.GeometryError, match="num_hidden_layers is missing"):
        tkv.ModelGeometry.from_hf(config, role="draft")
    assert tkv.ModelGeometry.from_hf(config, role="draft", num_layers=1).num_layers == 1


def test_mtp_module_has_its_own_layers_and_not_the_targets() -> None:
    """93 layers with one next-token layer: the draft keeps one layer."""
    target = json.loads((CONFIGS / "deepseek-ai__DeepSeek-V3.json").read_text(encoding="utf-8"))
    target["num_hidden_layers"] = 93
    assert tkv.ModelGeometry.from_hf(target).num_layers == 93
    for module in (
        tkv.ModelGeometry.mtp_from_hf(target),
        tkv.ModelGeometry.from_hf(target, role="draft"),
    ):
        assert module.role == "draft"
        assert module.layers == (layer(**MLA),)
        assert module.bytes_per_token(tp_size=8) == 576 * 2
    assert tkv.ModelGeometry.mtp_from_hf(target, num_layers=3).num_layers == 3
    target["num_nextn_predict_layers"] = 2
    assert tkv.ModelGeometry.mtp_from_hf(target).num_layers == 2
    assert tkv.ModelGeometry.mtp_from_hf(target, num_layers=1).num_layers == 1


def test_mtp_module_of_glm() -> None:
    module = tkv.ModelGeometry.mtp_from_hf(CONFIGS / "zai-org__GLM-4.5-Air.json", kv_dtype="fp8")
    assert module.layers == (layer(**GQA, kv_dtype="fp8"),)


def test_model_without_an_mtp_module_says_so() -> None:
    with pytest.raises(tkv.UnsupportedModelError, match=r"'llama'.*no multi-token-prediction"):
        tkv.ModelGeometry.mtp_from_hf(LLAMA)
    with pytest.raises(tkv.GeometryError, match="num_nextn_predict_layers is 0"):
        tkv.ModelGeometry.mtp_from_hf(CONFIGS / "moonshotai__Kimi-K2.5.json", num_layers=1)


def test_eagle_head_written_from_its_targets_config_is_no_mtp_module() -> None:
    target = json.loads((CONFIGS / "deepseek-ai__DeepSeek-V3.json").read_text(encoding="utf-8"))
    head = {**target, "architectures": ["Eagle3DeepseekV2ForCausalLM"], "num_hidden_layers": 2}
    assert tkv.ModelGeometry.from_hf(head, role="draft").num_layers == 2


def test_draft_dtype_is_its_own() -> None:
    """fp8 target 2,048 B per layer and token, bf16 draft 4,096: nothing is inherited."""
    target = tkv.ModelGeometry.from_hf(LLAMA, kv_dtype="fp8")
    draft = tkv.ModelGeometry.from_hf(LLAMA, role="draft", num_layers=1)
    assert target.bytes_per_token() == 32 * 2048
    assert draft.bytes_per_token() == 4096
