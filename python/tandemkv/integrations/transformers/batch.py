"""The caches of one generation, and the models that use them."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from tandemkv.integrations.transformers.cache import PagedCache
from tandemkv.integrations.transformers.errors import PagedCacheError
from tandemkv.integrations.transformers.geometry import (
    check_model,
    check_rewinds,
    windows_of,
)
from tandemkv.integrations.transformers.rows import PagedRows
from tandemkv.integrations.transformers.states import StateStore
from tandemkv.integrations.transformers.store import KvStore
from tandemkv.managers import Managers


class PagedBatch:
    """Sequences that run in lockstep, with a cache for the target and one for the draft.

    A context manager: at the end the pages are freed, and stay reusable. The models' forwards are
    observed with hooks while it is open, which is how the ledger learns the tokens.

    Args:
        managers: pools of `build_managers(..., backend="torch")`.
        prompts: tokens of each sequence, without padding. Inputs of forwards are padded on the
            left to the longest.
        model: the target.
        assistant_model: the draft, whose KV is in the draft's pools; None: none.
        max_new_tokens: most tokens that follow a prompt.
        cache_salt: only prompts with equal ones share; None is one of its own.
        share: whether to reuse what others left, and leave it to others.

    Attributes:
        cache: the target's `PagedCache`.
        draft_cache: the draft's, or None.
        reused_tokens: int64 `[rows]`, prompt tokens of each row that were found cached.

    Raises:
        OutOfPagesError: the prompts do not fit.
        PagedCacheError: a model that is not the one of the plan, or a pair with recurrent states.
    """

    def __init__(
        self,
        managers: Managers,
        prompts: Sequence[Sequence[int]],
        model: Any,
        *,
        assistant_model: Any = None,
        max_new_tokens: int,
        cache_salt: bytes | str | None = None,
        share: bool = True,
    ) -> None:
        views, models = [managers.target], [model]
        if assistant_model is not None:
            if managers.draft is None:
                raise PagedCacheError("an assistant_model is given, but the plan has no draft")
            views, models = [managers.target, managers.draft], [model, assistant_model]
            for each in models:
                check_rewinds(each)
        stores = []
        for view, each in zip(views, models, strict=True):
            check_model(each, view)
            stores.append((KvStore(view), StateStore(view, each), windows_of(each)))
        self.rows = PagedRows(
            managers,
            prompts,
            max_new_tokens=max_new_tokens,
            cache_salt=cache_salt,
            share=share,
            with_draft=assistant_model is not None,
        )
        self.reused_tokens = self.rows.hits.copy()
        self.cache, *others = (PagedCache(self.rows, *each) for each in stores)
        self.draft_cache: PagedCache | None = others[0] if others else None
        self._hooks = _observe(model, self.cache, self.rows, adopt=False)
        if self.draft_cache is not None:
            self._hooks += _observe(assistant_model, self.draft_cache, self.rows, adopt=True)

    def __enter__(self) -> PagedBatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        if kind is None:
            self.rows.finish()
        else:
            self.rows.abort()

    def finish(self, sequences: torch.Tensor) -> None:
        """Free the rows, given all their tokens: the last one was sampled, and never run.

        Args:
            sequences: int `[rows, columns]`, as `generate` returns them.
        """
        self.rows.finish(sequences.cpu().numpy().astype(np.int64))


def _observe(model: Any, cache: PagedCache, rows: PagedRows, *, adopt: bool) -> list[Any]:
    """Announce to `cache` every forward of `model` that uses it.

    `adopt`: give the cache to forwards that come with an empty one of transformers' own, which is
    what `generate` makes for an assistant.
    """

    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = kwargs.get("cache")
        if given is not cache:
            if not adopt or not isinstance(given, DynamicCache):
                return None
            if given.get_seq_length():
                raise PagedCacheError("the assistant goes on with a cache that is not paged")
            kwargs = {**kwargs, "cache": cache}
        ids = args[0] if args else kwargs.get("input_ids")
        if ids is None:
            raise PagedCacheError("a forward without input_ids: the ledger needs the tokens")
        skip = _already_there(ids, kwargs.get("position_ids"), cache, rows)
        if skip:
            ids = ids[:, skip:]
            kwargs = {**kwargs, "position_ids": kwargs["position_ids"][..., skip:]}
        args = (ids, *args[1:]) if args else args
        kwargs = kwargs if args else {**kwargs, "input_ids": ids}
        cache.begin_forward(ids)
        return args, kwargs

    def after(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if kwargs.get("cache") is cache:
            cache.end_forward()

    return [
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(after, with_kwargs=True),
    ]


def _already_there(
    ids: torch.Tensor, position_ids: torch.Tensor | None, cache: PagedCache, rows: PagedRows
) -> int:
    """Return how many of the tokens' columns the cache has; assisted decoding brings them all."""
    if position_ids is None or not cache.length or position_ids.shape[-1] != ids.shape[1]:
        return 0
    last_column = int(position_ids[..., -1].flatten()[0]) + int(rows.pads[0])
    return cache.length if last_column + 1 == ids.shape[1] else 0
