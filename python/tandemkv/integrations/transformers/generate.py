"""`generate` with the KV of model and assistant in tandemkv's pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tandemkv.integrations.transformers.batch import PagedBatch
from tandemkv.integrations.transformers.errors import PagedCacheError
from tandemkv.integrations.transformers.geometry import check_rewinds
from tandemkv.managers import Managers


@dataclass(frozen=True, slots=True)
class GenerationReport:
    """What one `generate` call took.

    Attributes:
        prompt_tokens: of all rows.
        reused_tokens: prompt tokens that were found cached, of all rows.
        computed_tokens: tokens that the target ran: rows times columns of each forward.
        forwards: forwards of the target.
        new_tokens: tokens generated, of all rows.
        rewound_tokens: positions that a step had room for and gave back: rejected drafts, and
            drafts that were not made.
    """

    prompt_tokens: int
    reused_tokens: int
    computed_tokens: int
    forwards: int
    new_tokens: int
    rewound_tokens: int

    @property
    def tokens_per_forward(self) -> float:
        """Tokens of a row per forward of the target, the prompt's forward included."""
        return self.new_tokens / self.forwards if self.forwards else 0.0


class PagedGenerator:
    """A model, and maybe an assistant, on the pools of one rank.

    Args:
        model: a `PreTrainedModel` for causal language modelling.
        managers: from `build_managers(plan, backend="torch")`.
        assistant_model: the draft of assisted generation; needs a plan with a draft.

    Attributes:
        report: what the last `generate` took, or None.
    """

    def __init__(self, model: Any, managers: Managers, *, assistant_model: Any = None) -> None:
        self.model = model
        self.managers = managers
        self.assistant_model = assistant_model
        self.report: GenerationReport | None = None

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        max_new_tokens: int,
        cache_salt: bytes | str | None = None,
        share: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Return what `model.generate` returns for the same arguments.

        Args:
            input_ids: int `[sequences, columns]`, padded on the left.
            attention_mask: 0 where padding is, the same shape; None: no padding.
            max_new_tokens: most tokens to add.
            cache_salt: only prompts with equal ones share; None is one of its own.
            share: whether to reuse what others left, and leave it to others.
            kwargs: any other argument of `model.generate`.

        Raises:
            OutOfPagesError: the pools are too small; what ran is freed.
            PagedCacheError: padding on the right, an empty prompt, or arguments that the cache
                cannot serve.
        """
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        prompts = _prompts(input_ids, attention_mask)
        config = kwargs.get("generation_config", self.model.generation_config)
        options = {
            name: kwargs.get(name, getattr(config, name)) or 1
            for name in ("num_beams", "num_return_sequences")
        }
        repeats = max(options.values())
        if kwargs.get("prompt_lookup_num_tokens", config.prompt_lookup_num_tokens):
            check_rewinds(self.model)
        if self.assistant_model is not None:
            kwargs["assistant_model"] = self.assistant_model
        rewound = self.managers.stats().ledger["rewound_tokens"]
        batch = PagedBatch(
            self.managers,
            [prompt for prompt in prompts for _ in range(repeats)],
            self.model,
            assistant_model=self.assistant_model,
            max_new_tokens=max_new_tokens,
            cache_salt=cache_salt,
            share=share,
        )
        with batch:
            output = self.model.generate(
                input_ids,
                attention_mask=attention_mask,
                cache=batch.cache,
                max_new_tokens=max_new_tokens,
                **kwargs,
            )
            sequences = output if isinstance(output, torch.Tensor) else output.sequences
            if options["num_beams"] == 1:
                batch.finish(sequences)
        self.report = GenerationReport(
            prompt_tokens=sum(map(len, prompts)) * repeats,
            reused_tokens=int(batch.reused_tokens.sum()),
            computed_tokens=batch.cache.computed_tokens,
            forwards=batch.cache.forwards,
            new_tokens=(sequences.shape[1] - input_ids.shape[1]) * len(sequences),
            rewound_tokens=self.managers.stats().ledger["rewound_tokens"] - rewound,
        )
        return output


def _prompts(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> list[list[int]]:
    """Return the tokens of each row without its padding.

    Raises:
        PagedCacheError: names the row.
    """
    if attention_mask.shape != input_ids.shape:
        raise PagedCacheError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; "
            f"{tuple(input_ids.shape)} is needed"
        )
    lens = attention_mask.sum(dim=1).tolist()
    for row, length in enumerate(lens):
        if not length or not attention_mask[row, -length:].all():
            raise PagedCacheError(
                f"row {row} of attention_mask is {attention_mask[row].tolist()}; padding on the "
                "left, then at least one token, is needed"
            )
    return [row[-length:].tolist() for row, length in zip(input_ids, lens, strict=True)]
