"""The scheduler: which requests run in a step, and what becomes of its results.

A step runs decode steps first, then chunks of prompts, then new requests, as far as `step_tokens`
goes. The managers say what fits. Draft tokens are verified greedily: the longest prefix of a draft
that the target would have said itself is kept, with the target's own next token. Where nothing can
run, the request that was admitted last is preempted: its pages are freed and stay reusable, and it
is admitted again later with all its tokens as the prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tandemkv.errors import TandemkvError
from tandemkv.integrations.engine.drafting import Draft, Drafter, DraftWork, NoDrafter
from tandemkv.integrations.engine.runner import ModelRunner, Run
from tandemkv.integrations.transformers.store import stream_of
from tandemkv.managers import Batch, Managers


class EngineError(TandemkvError, RuntimeError):
    """A request that cannot be served."""


@dataclass
class Request:
    """One request: its tokens so far, and where its KV stands.

    Args:
        name: any id of its own.
        prompt: its tokens.
        max_new_tokens: most tokens to generate.
        cache_salt: only prompts with equal ones share; None is one of its own.

    Attributes:
        tokens: prompt and what was generated.
        reused: prompt tokens that were found cached, at each admission.
        preemptions: how often it was preempted.
    """

    name: Hashable
    prompt: Sequence[int]
    max_new_tokens: int
    cache_salt: bytes | str | None = None
    tokens: list[int] = field(default_factory=list)
    reused: list[int] = field(default_factory=list)
    preemptions: int = 0
    prompt_left: int = 0  # tokens that must run before the next one can be sampled
    is_done: bool = False

    def __post_init__(self) -> None:
        self.tokens = self.tokens or list(self.prompt)

    @property
    def generated(self) -> list[int]:
        """Tokens behind the prompt."""
        return self.tokens[len(self.prompt) :]

    @property
    def max_total(self) -> int:
        """Most tokens that it can come to."""
        return len(self.prompt) + self.max_new_tokens


@dataclass(frozen=True, slots=True)
class Output:
    """Tokens that a step gave a request."""

    request: Request
    tokens: list[int]
    is_last: bool


@dataclass
class EngineStats:
    """Counters since the start; prompts count at every admission."""

    steps: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    decode_steps: int = 0
    preemptions: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Drafted tokens that the target would have said / drafted tokens."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    def accept_length(self) -> float:
        """Tokens per decode step of a request, the target's own included."""
        return 1 + self.accepted_tokens / self.decode_steps if self.decode_steps else 0.0


@dataclass(frozen=True, slots=True)
class _Work:
    """What one request does in one step."""

    request: Request
    chunk_len: int = 0  # prompt tokens; 0: a decode step
    draft_len: int = 0
    is_new: bool = False


class Engine:
    """Serves requests with one model, and maybe a drafter, on one rank's managers.

    Args:
        model: the target.
        managers: from `build_managers(plan, backend="torch")`.
        drafter: what guesses tokens; None: nothing does.
        draft_len: most tokens to guess, at most the plan's `max_draft_len`.
        step_tokens: most tokens that a step runs.
        eos_token_ids: tokens that end a request.
    """

    def __init__(
        self,
        model: Any,
        managers: Managers,
        *,
        drafter: Drafter | None = None,
        draft_len: int = 0,
        step_tokens: int = 256,
        eos_token_ids: Collection[int] = (),
    ) -> None:
        if draft_len > managers.limits.reserve_tokens:
            raise EngineError(
                f"draft_len is {draft_len}; the plan has max_draft_len "
                f"{managers.limits.reserve_tokens}"
            )
        self.managers = managers
        self.target = ModelRunner(model, managers, managers.target)
        if managers.tiers is not None:
            managers.tiers.stream = stream_of(managers)
        self.drafter: Drafter = NoDrafter() if drafter is None else drafter
        self.draft_len = 0 if drafter is None else draft_len
        self.step_tokens = step_tokens
        self.eos_token_ids = frozenset(eos_token_ids)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.stats = EngineStats()

    # --- requests -----------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            EngineError: it is empty, or longer than the plan's `max_seq_len`.
        """
        if not request.prompt or request.max_new_tokens < 1:
            raise EngineError(f"request {request.name!r} has no prompt, or no token to generate")
        if request.max_total > self.managers.limits.max_seq_len:
            raise EngineError(
                f"request {request.name!r} can come to {request.max_total} tokens; max_seq_len is "
                f"{self.managers.limits.max_seq_len}"
            )
        self.waiting.append(request)

    def stream(self, requests: Iterable[Request]) -> Iterator[Output]:
        """Serve requests and yield what each step gives."""
        for request in requests:
            self.submit(request)
        while self.waiting or self.running:
            yield from self.step()

    def serve(self, requests: Sequence[Request]) -> list[list[int]]:
        """Serve requests and return what each generated."""
        for _ in self.stream(requests):
            pass
        return [request.generated for request in requests]

    # --- one step -----------------------------------------------------------------------------

    def step(self) -> list[Output]:
        """Schedule a step, run it, commit what came out of it.

        Raises:
            EngineError: a waiting request can never fit.
        """
        work = self._schedule()
        batch = self._batch(work)
        granted = self.managers.prepare_resources(batch)
        while not granted.any():
            # Nothing ran in this step, so what a victim gives up is free at once.
            self.managers.skip_step()
            if not self._wait_for_pages():
                self._preempt()
            work = self._schedule()
            batch = self._batch(work)
            granted = self.managers.prepare_resources(batch)
        # Copies of partly shared blocks, before the models run.
        self.managers.run_moves(stream_of(self.managers))
        runs = [item for item, ok in zip(work, granted, strict=True) if ok]
        self._admitted([item.request for item in runs if item.is_new])
        results, valid = self._run(runs)
        accepted = [results.get(item.request.name, []) for item in work]
        ends = [valid.get(item.request.name, (0, 0)) for item in work]
        self.managers.update_resources(batch, accepted, valid=np.array(ends, np.int32))
        self.stats.steps += 1
        return self._deliver(runs, results)

    def _schedule(self) -> list[_Work]:
        room = self.step_tokens
        work: list[_Work] = []
        for request in self.running:
            if not request.prompt_left and room > 0:
                left = request.max_total - len(request.tokens)
                work.append(_Work(request, draft_len=min(self.draft_len, left - 1, room - 1)))
                room -= 1 + work[-1].draft_len
        for request in self.running:
            if request.prompt_left and room > 0:
                done = len(request.tokens) - request.prompt_left
                work.append(_Work(request, chunk_len=self._chunk(done, request.prompt_left, room)))
                room -= work[-1].chunk_len
        for request in self.waiting:
            if room <= 0:
                break
            chunk_len = self._chunk(0, len(request.tokens), room)
            work.append(_Work(request, chunk_len=chunk_len, is_new=True))
            room -= chunk_len
        return work

    def _chunk(self, done: int, left: int, room: int) -> int:
        """Return how many tokens of a prompt to run; a chunk ends where a snapshot is due."""
        interval = self.managers.limits.snapshot_interval
        due = interval - done % interval if interval else left
        return min(left, room, due)

    def _batch(self, work: list[_Work]) -> Batch:
        draft_from = 0 if self.drafter.keeps_kv else -1
        return Batch(
            [item.request.name for item in work],
            chunk_lens=[item.chunk_len for item in work],
            draft_lens=[item.draft_len for item in work],
            prompts=[item.request.tokens if item.is_new else [] for item in work],
            max_total_tokens=[item.request.max_total for item in work],
            cache_salts=[item.request.cache_salt for item in work],
            draft_from=[draft_from] * len(work),
        )

    def _admitted(self, requests: list[Request]) -> None:
        hits = self.managers.hit_lengths([request.name for request in requests])
        for request, hit in zip(requests, hits.tolist(), strict=True):
            self.waiting.remove(request)
            self.running.append(request)
            request.prompt_left = len(request.tokens) - hit
            request.reused.append(hit)
            self.stats.prompt_tokens += len(request.tokens)
            self.stats.reused_tokens += hit

    def _wait_for_pages(self) -> bool:
        """Wait for pages from host or disk if requests are refused for want of them alone."""
        reasons = {refusal.reason for refusal in self.managers.refusals.values()}
        if reasons != {"loading"} or self.managers.tiers is None:
            return False
        self.managers.tiers.collect(wait=True)
        return True

    def _preempt(self) -> None:
        """Free the last request's pages; with a host tier its full blocks come back from there."""
        if not self.running:
            refusals = self.managers.refusals
            raise EngineError(f"nothing fits: {refusals}")
        victim = self.running.pop()
        self.managers.preempt([victim.name])
        victim.preemptions += 1
        victim.prompt_left = 0
        self.stats.preemptions += 1
        self.waiting.appendleft(victim)

    # --- the models ---------------------------------------------------------------------------

    def _run(
        self, work: list[_Work]
    ) -> tuple[dict[Hashable, list[int]], dict[Hashable, tuple[int, int]]]:
        """Draft and verify.

        Returns:
            per request the tokens that it yields, and the ends of valid KV in target and draft.
        """
        names = [item.request.name for item in work]
        start, width = self.managers.tables.spans(names)
        drafts = self._draft(work, start, width)
        runs = []
        for item, first, count in zip(work, start.tolist(), width.tolist(), strict=True):
            tokens = item.request.tokens[first : first + count]
            guesses = drafts[item.request.name].tokens
            if not item.chunk_len:
                tokens = [item.request.tokens[-1], *guesses]
            runs.append(Run(item.request.name, first, tokens, num_logits=1 + len(guesses)))
        logits = self.target.run(runs)
        results: dict[Hashable, list[int]] = {}
        valid: dict[Hashable, tuple[int, int]] = {}
        for item, run, rows in zip(work, runs, logits, strict=True):
            request, draft = item.request, drafts[item.request.name]
            if item.chunk_len:
                request.prompt_left -= len(run.tokens)
            new = [] if request.prompt_left else self._accept(request, rows, draft.tokens)
            end = run.stop if item.chunk_len else run.start + len(new)
            results[request.name] = new
            valid[request.name] = (end, min(draft.valid, end))
        self.target.settle({name: ends[0] for name, ends in valid.items()})
        self.drafter.settle({name: ends[1] for name, ends in valid.items()})
        return results, valid

    def _draft(self, work: list[_Work], start: Any, width: Any) -> dict[Hashable, Draft]:
        names = [item.request.name for item in work]
        draft_start = start
        if self.drafter.keeps_kv:
            draft_start, _ = self.managers.tables.spans(names, role="draft")
        tasks = [
            DraftWork(
                item.request.name,
                item.request.tokens,
                int(draft_start[i]),
                int(start[i]) + (int(width[i]) if item.chunk_len else 1),
                item.draft_len,
            )
            for i, item in enumerate(work)
        ]
        return dict(self.drafter.draft(tasks))

    def _accept(self, request: Request, logits: torch.Tensor, guesses: list[int]) -> list[int]:
        """Return the guesses that the target agrees with, and its own next token."""
        own = logits.argmax(dim=-1).tolist()
        count = 0
        while count < len(guesses) and guesses[count] == own[count]:
            count += 1
        new = own[: count + 1]
        for index, token in enumerate(new):
            if token in self.eos_token_ids:
                new = new[: index + 1]
                break
        if len(request.tokens) > len(request.prompt):
            self.stats.decode_steps += 1
            self.stats.drafted_tokens += len(guesses)
            self.stats.accepted_tokens += len(new) - 1
        return new

    def _deliver(self, work: list[_Work], results: dict[Hashable, list[int]]) -> list[Output]:
        outputs = []
        for item in work:
            request, new = item.request, results[item.request.name]
            if not new:
                continue
            request.tokens += new
            ended = new[-1] in self.eos_token_ids
            request.is_done = ended or len(request.tokens) >= request.max_total
            if request.is_done:
                self.managers.free_resources(request.name)
                self.running.remove(request)
            outputs.append(Output(request, new, request.is_done))
        return outputs
