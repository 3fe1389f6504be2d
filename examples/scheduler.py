"""A small scheduler on the tandemkv managers: continuous batching with chunked prefill and drafts.

It keeps a queue of requests, gives each step a budget of tokens, and lets a stand-in for the model
accept some of the drafted tokens. The managers decide what fits: a request that is refused waits
for a later step. When nothing at all can run, the running request that was admitted last is
preempted and comes back later, what is left of its prefix still cached.

Run it with `python examples/scheduler.py`.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import tandemkv as tkv

DRAFT_LEN = 3
STEP_TOKENS = 48  # most tokens that one step runs


@dataclass
class Request:
    """One request: its tokens so far, and how many of them the cache holds.

    What it knows when it is admitted, after a preemption too, is its prompt and runs in chunks.
    """

    name: str
    tokens: list[int]
    max_total: int
    cached: int = 0
    prompt_len: int = 0
    preemptions: int = 0
    reused: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether all its tokens are there."""
        return len(self.tokens) >= self.max_total


@dataclass
class Work:
    """What one request does in one step: a prompt chunk, or a decode step with drafts."""

    request: Request
    chunk_len: int
    is_new: bool = False


class Scheduler:
    """Serves requests in order of arrival; a model is replaced by a random number generator."""

    def __init__(self, managers: tkv.Managers, requests: list[Request], seed: int = 0) -> None:
        self.managers = managers
        self.waiting = deque(requests)
        self.running: list[Request] = []
        self.finished: list[Request] = []
        self.random = random.Random(seed)
        self.steps = 0

    def serve(self) -> None:
        """Run steps until all requests are finished."""
        while self.waiting or self.running:
            self.step()

    def step(self) -> None:
        """Schedule one step, run it, and commit what came out of it."""
        work = self.schedule()
        batch = self.batch(work)
        granted = self.managers.prepare_resources(batch)
        while not granted.any():
            # Nothing ran in this step, so what the victim gives up is free at once.
            self.managers.skip_step()
            if not self.waits_for_pages():
                self.preempt(work)
            work = self.schedule()
            batch = self.batch(work)
            granted = self.managers.prepare_resources(batch)

        self.managers.run_moves()  # copies of partly shared blocks, before the model runs
        runs = [item for item, ok in zip(work, granted, strict=True) if ok]
        self.admitted([item.request for item in runs if item.is_new])
        accepted = [self.model(item) if ok else [] for item, ok in zip(work, granted, strict=True)]
        self.managers.update_resources(batch, accepted)
        self.steps += 1

        for request in [request for request in self.running if request.done]:
            self.managers.free_resources(request.name)
            self.running.remove(request)
            self.finished.append(request)

    def schedule(self) -> list[Work]:
        """Choose what to run: decode steps first, then prompt chunks, then new requests."""
        room = STEP_TOKENS
        work: list[Work] = []
        for request in self.running:
            if request.cached >= request.prompt_len:
                work.append(Work(request, 0))
                room -= 1 + DRAFT_LEN
        for request in self.running:
            left = request.prompt_len - request.cached
            if left > 0 and room > 0:
                work.append(Work(request, min(left, room)))
                room -= work[-1].chunk_len
        for request in self.waiting:
            if room <= 0:
                break
            work.append(Work(request, min(len(request.tokens), room), is_new=True))
            room -= work[-1].chunk_len
        return work

    def batch(self, work: list[Work]) -> tkv.Batch:
        """Return the step as the managers take it."""
        return tkv.Batch(
            [item.request.name for item in work],
            chunk_lens=[item.chunk_len for item in work],
            draft_lens=[self.drafts(item) for item in work],
            prompts=[item.request.tokens if item.is_new else [] for item in work],
            max_total_tokens=[item.request.max_total for item in work],
        )

    @staticmethod
    def drafts(item: Work) -> int:
        """Return the draft slots: none in a chunk, and none beyond the end of the request."""
        if item.chunk_len:
            return 0
        return min(DRAFT_LEN, item.request.max_total - len(item.request.tokens) - 1)

    def admitted(self, requests: list[Request]) -> None:
        """Move admitted requests to the running ones; their hit need not be computed."""
        hits = self.managers.hit_lengths([request.name for request in requests])
        for request, hit in zip(requests, hits.tolist(), strict=True):
            self.waiting.remove(request)
            self.running.append(request)
            request.cached, request.prompt_len = hit, len(request.tokens)
            request.reused.append(hit)

    def waits_for_pages(self) -> bool:
        """Wait if nothing is missing but pages that are on their way from host or disk."""
        reasons = {refusal.reason for refusal in self.managers.refusals.values()}
        if reasons != {"loading"}:
            return False
        self.managers.tiers.collect(wait=True)
        return True

    def preempt(self, work: list[Work]) -> None:
        """Preempt the running request admitted last; it waits in front, to be computed again."""
        if not self.running:
            raise RuntimeError(f"nothing fits: {self.managers.refusals}")
        victim = self.running.pop()
        self.managers.preempt([victim.name])
        victim.preemptions += 1
        victim.cached = 0
        self.waiting.appendleft(victim)

    def model(self, item: Work) -> list[int]:
        """Stand in for target and draft: return the tokens that a step yields."""
        request = item.request
        if item.chunk_len:
            left = request.prompt_len - request.cached
            request.cached += min(item.chunk_len, left)
            if request.cached < request.prompt_len:
                return []  # the prompt goes on
            accepted = 1  # the token sampled after the prompt
        else:
            accepted = 1
            while accepted <= self.drafts(item) and self.random.random() < 0.7:
                accepted += 1
            request.cached += accepted
        new = [self.random.randrange(1000) for _ in range(accepted)]
        request.tokens += new
        return new


def build() -> tkv.Managers:
    """Return managers for a small model with an EAGLE-3 head, in 40 blocks of 8 tokens."""
    layer = tkv.Layer(kind="attention", kv_dtype="fp16", num_kv_heads=2, head_dim=16)
    plan = tkv.plan(
        tkv.ModelGeometry(layers=(layer,) * 4, name="small"),
        tkv.ModelGeometry(layers=(layer,), name="small-eagle3", role="draft"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=40 * 8 * 5 * 2 * 2 * 16 * 2,
            tokens_per_block=8,
            max_batch_size=16,
            max_seq_len=256,
        ),
        speculative=tkv.SpeculativeConfig(mode="eagle3", max_draft_len=DRAFT_LEN),
    )
    return tkv.build_managers(plan)


def main() -> None:
    """Serve 40 requests that share a system prompt, and report."""
    system = list(range(2000, 2032))
    chooser = random.Random(1)
    requests = []
    for number in range(40):
        question = [chooser.randrange(1000) for _ in range(chooser.randrange(4, 60))]
        prompt = system + question
        requests.append(Request(f"request-{number}", prompt, len(prompt) + 40))
    scheduler = Scheduler(build(), requests)
    scheduler.serve()

    stats = scheduler.managers.stats().to_dict()
    preemptions = sum(request.preemptions for request in scheduler.finished)
    print(f"{len(scheduler.finished)} requests in {scheduler.steps} steps")
    print(f"{stats['hit_tokens']} of {stats['prompt_tokens']} prompt tokens reused")
    print(f"{stats['accepted_tokens']} tokens generated, {stats['rewound_tokens']} rewound")
    print(f"{preemptions} preemptions, {stats['evicted_blocks']} blocks evicted")


if __name__ == "__main__":
    main()
