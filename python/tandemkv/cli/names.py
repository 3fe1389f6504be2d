"""Errors in the words of the command line: `--tp` where Python says `tp_size`."""

from __future__ import annotations

import re

from tandemkv.errors import BudgetError, ConfigError, GeometryError

_PHRASES = {
    "but draft is None": "but no --draft is given",
    "but speculative is None": "but no --spec is given",
    "there is no draft": "no draft is given",
}
"""What an error says of an argument that was left out."""

_OPTIONS = {
    "max_gpu_total_bytes": "--gpu-memory",
    "device_bytes": "--gpu-memory",
    "host_cache_size": "--host-memory",
    "host_bytes": "--host-memory",
    "disk_cache_size": "--disk-memory",
    "tp_size": "--tp",
    "pp_size": "--pp",
    "cp_size": "--cp",
    "draft_tp_size": "--draft-tp",
    "pp_partition": "--pp-partition",
    "tokens_per_block": "--tokens-per-block",
    "max_batch_size": "--max-batch-size",
    "max_seq_len": "--max-seq-len",
    "max_num_tokens": "--max-num-tokens",
    "max_tokens": "--max-tokens",
    "max_encoder_len": "--max-encoder-len",
    "max_draft_len": "the draft length of --spec",
    "cached_endpoints": "--cached-endpoints",
    "state_snapshot_interval": "--state-snapshot-interval",
    "max_util_for_resume": "--max-util-for-resume",
    "request_len": "--request-len",
}
"""The option that sets an argument."""

_ARGUMENT = re.compile(rf"(?<![\w'./-])({'|'.join(_OPTIONS)})(?![\w'/-])")


def in_option_names(error: Exception) -> str:
    """Return the message of an error of `plan`, naming options where it names arguments.

    What names an option already is left alone, and so is what names fields of a file: only the
    advice to pass a dtype is the reader's own there.
    """
    text = str(error)
    if isinstance(error, GeometryError):
        return _dtype_option(error, text)
    if isinstance(error, BudgetError) or (
        isinstance(error, ConfigError) and not error.field.startswith("--")
    ):
        for phrase, words in _PHRASES.items():
            text = text.replace(phrase, words)
        return _ARGUMENT.sub(lambda found: _OPTIONS[found[1]], text)
    return text


def _dtype_option(error: GeometryError, text: str) -> str:
    if not error.source and error.field == "kv_dtype":
        return re.sub("^kv_dtype is ", "the KV dtype is ", text)
    return re.sub(r"\bpass kv_dtype\b", "pass --kv-dtype (of a draft: --draft-kv-dtype)", text)
