"""The scheduler's side of vLLM's connector: the loads and saves of a step, and their cost.

A request's blocks are looked up when it arrives, long before it is scheduled: those that the tier
has are leased and prefetched into its memory, due when the requests before it are expected to be
done. When the request is scheduled, measured times decide whether its prefix is fetched or
recomputed. Everything here runs on the scheduler's thread, except the completions of lookups, which
run on the object client's and set single fields.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from offstage.host.connectors.choice import Choice, Decision
from offstage.host.connectors.objects import Completion, ObjectClient, State
from offstage.host.connectors.vllm.events import Events, Gone, Saved
from offstage.host.connectors.vllm.groups import Groups, Object
from offstage.host.connectors.vllm.hints import hints_of
from offstage.host.connectors.vllm.kept import Kept, Landing
from offstage.host.connectors.vllm.keys import chain, salt_of
from offstage.host.connectors.vllm.requests import RequestLog
from offstage.host.connectors.vllm.steps import PATIENCE_S, Landed, Report, Step
from offstage.host.model.identity import Adapters, Weights

__all__ = ["Plans"]

LEASE_S = 10.0  # of blocks found by a lookup, until they are loaded
AGAIN_S = 0.01  # between two lookups of the next block that another engine prefills
PATIENCE_MIN_S = 0.25  # with less, a pause of the machine would look like a slow tier
IDLE_S = 0.001  # wait for a load when vLLM has nothing else to do
LOOK_IDLE_S = 0.005  # the same for a lookup, whose answer ends the wait
EXPECT_IDLE_S = 0.005  # the same, for another engine
GROW = 8  # factor for the number of blocks to look up, after all of the last ones were found
BlocksOf = Callable[[str], Sequence[Sequence[int]]]  # vLLM's blocks of a request, of each group


class Plans:
    """The scheduler's side. `client` is None where there is no daemon."""

    def __init__(
        self,
        client: ObjectClient | None,
        groups: Groups,
        *,
        ahead: bool = True,
        choose: bool = True,
        events: bool = False,
        hash_tokens: int = 0,
        adapters: Adapters | None = None,
        patience_s: float = PATIENCE_S,
        patience_min_s: float = PATIENCE_MIN_S,
        log: RequestLog | None = None,
    ) -> None:
        """`ahead`: a request is looked up when it arrives, not when it is scheduled; `choose`: what
        is faster computed is computed; `events`: vLLM's subscribers learn what the tier has, by
        hashes of `hash_tokens` (0: of a unit); `adapters`: which ones vLLM holds, None: requests
        with one are left to vLLM. A load or lookup may take as long as computing would, and
        `patience_min_s` in any case: `patience_s` until that is known, and a lookup never longer.
        `log` records the requests."""
        self._log = log
        self._client, self._groups, self._block_tokens = client, groups, groups.unit
        self._ahead, self._choose, self._adapters = ahead, choose, adapters
        self._patience_s, self._patience_min_s = patience_s, patience_min_s
        self.choice = Choice(groups.token_bytes)
        self.counts: Counter[str] = Counter()
        self._requests: dict[str, Kept] = {}
        self._step = Step.of(len(groups))
        self._numbers = 0
        self._running: set[str] = set()  # in the last step
        self._loading: list[Decision] = []
        self._landing: dict[str, Landing] = {}
        self._deciding: dict[int, list[Decision]] = {}
        self._short: dict[str, Any] = {}  # requests with nothing to load, until their first step
        self._asking: dict[str, Any] = {}  # has ended, and from then on until the next is planned
        self._events = Events(groups, on=events, hash_tokens=hash_tokens)

    def arrive(self, request: Any) -> None:
        """A new request: look up its blocks, and prefetch those that are stored. One that has none
        to load costs nothing until its first token is out."""
        if self._log is not None:
            self._log.arrive(request)
        if self._client is None or not _is_text(request):
            return
        short = request.num_tokens <= self._block_tokens and request.max_tokens > 2
        if not short or request.lora_request is not None:
            return self._enter(request)
        self._short[request.request_id] = request
        if self._log is not None:
            self._log.matched(request.request_id, 0, 0, 0, 0)

    def _enter(self, request: Any) -> None:
        """Keep a request, and look it up if it is long enough to load something."""
        adapter = self._held(request)
        if adapter is None and request.lora_request is not None:
            self.counts["adapter_unknown"] += 1
            return
        salt = salt_of(request, adapter)
        keys = chain(request.all_token_ids, self._block_tokens, salt)
        hints = hints_of(request)
        one = Kept(request, adapter, salt, keys, hints, time.monotonic() + hints.expect_s)
        one.there = [[] for _ in self._groups]
        self._requests[request.request_id] = one
        self.counts["requests"] += 1
        if self._ahead and request.num_tokens > self._block_tokens:
            self._look(one, 0)

    def _held(self, request: Any) -> Weights | None:
        """The adapter that vLLM computes a request with; None: without one, or not known."""
        if request.lora_request is None or self._adapters is None:
            return None
        return self._adapters.of(request.lora_request)

    def _known(self, request_id: str) -> Kept | None:
        """A request that the tier serves; not any more when its adapter's files have changed."""
        one = self._requests.get(request_id)
        if one is not None and one.adapter is not None and self._held(one.request) != one.adapter:
            self.counts["adapter_unknown"] += 1
            self._release(self._requests.pop(request_id))
            return None
        return one

    def _look(self, one: Kept, first: int, count: int | None = None) -> None:
        """Look up all blocks from `first` on, or `count` of them."""
        assert self._client is not None
        if self._log is not None:
            self._log.asked(one.request.request_id)
        units = one.keys[first:] if count is None else one.keys[first : first + count]
        last = (int(one.request.num_tokens) - 1) // self._block_tokens
        one.looked_s = time.monotonic()
        one.answered.clear()
        one.within_s = min(self._patience_s, self._bound_s(one.request.num_tokens))
        there = [[*row[:first], *[True] * len(units)] for row in one.there]
        soon, rest = self._groups.objects_by_need(units, first, last, all_soon=not self._ahead)
        unanswered = 1 + bool(rest)

        def ended(objects: list[Object], completion: Completion) -> None:
            nonlocal unanswered
            if State.LATE in completion.states:
                return  # `match` detects a missing answer itself
            for each, done in zip(objects, completion.done, strict=True):
                there[each.group][first + each.unit] &= done
            unanswered -= 1
            if unanswered == 0:
                one.there = there
                whole = all(has for row in there for has in row[first:])
                one.window = GROW * one.window if whole else 1
                one.found = self._groups.usable(there, last)
                one.saved = max(one.saved, one.found)
                one.answered.set()

        if self._ahead:
            self._ask(self._client.prefetch, soon, one, ended, **self._due(one))
            if rest:
                self._ask(self._client.exists, rest, one, ended)
        else:
            self._ask(self._client.exists, soon, one, ended)

    def _ask(
        self,
        call: Callable[..., int],
        objects: list[Object],
        one: Kept,
        ended: Callable[[list[Object], Completion], None],
        **more: float,
    ) -> None:
        """Look up objects of a request, which are leased."""
        tell = partial(ended, objects)
        call(*_names(objects), lease_s=LEASE_S, tell=tell, within_s=one.within_s, **more)

    def _due(self, one: Kept) -> dict[str, float]:
        """When a request is expected to need what it loads, and how likely."""
        before = sum(
            other.request.num_tokens
            for other in self._requests.values()
            if not other.begun and other is not one
        )
        due_s = before * self.choice.compute.fit[1] if self.choice.compute.known else 0.0
        return {"due_s": due_s, "chance": one.hints.chance}

    def _bound_s(self, tokens: int) -> float:
        """Time limit for `tokens`: the estimated time of computing them, if known."""
        if not self.choice.compute.known or self.choice.compute.fit[1] <= 0:
            return self._patience_s
        return max(self._patience_min_s, tokens * self.choice.compute.fit[1])

    def match(self, request: Any, computed: int) -> int | None:
        """Tokens beyond the first `computed` that the tier has and that are worth their fetch; None
        while that is not known. The last token is always computed, since it is what the next one
        follows from."""
        one = self._known(request.request_id)
        if one is None:
            return 0
        last = (int(request.num_tokens) - 1) // self._block_tokens
        one.computed = computed
        one.asked = request.num_tokens - computed
        most = max(0, min(last, len(one.keys)) * self._block_tokens - computed)
        # vLLM takes no hit for a request that wants figures of each token of its prompt.
        computes_all = getattr(request, "skip_reading_prefix_cache", False)
        if most == 0 or computes_all:  # whatever the tier has, so nothing waits for its answer
            if self._log is not None:
                self._log.matched(request.request_id, computed, 0, 0, 0)
            return 0
        if one.looked_s == 0.0:
            self._look(one, 0)
        if one.found is None and not self._running:
            one.answered.wait(LOOK_IDLE_S)
        expected = one.found is not None and self._is_expected(one, min(last, len(one.keys)))
        if one.found is None and time.monotonic() - one.looked_s > one.within_s:
            one.found = 0  # no answer: compute it
            self.counts["lookup_late"] += 1
        if one.found is None or expected:
            if expected and not self._running:
                time.sleep(EXPECT_IDLE_S)
            return None
        tokens = max(0, min(one.found, last) * self._block_tokens - computed)
        others = len(self._requests) > 1 or bool(self._short)
        one.apart = others or bool(self._running - {request.request_id}) or self._groups.whole
        if tokens and (one.decision is None or one.decision.tokens != tokens):
            waiting = len(self._step.loads) * self._block_tokens
            waiting += sum(other.decision.tokens for other in self._landing.values())
            one.decision = self.choice.decide(tokens, waiting, apart=one.apart)
            one.decision.fetched |= not self._choose
        fetched = one.decision is not None and one.decision.fetched
        if self._log is not None:
            missing = max(0, last - one.found)
            wasted = tokens // self._block_tokens if self._ahead and not fetched else 0
            self._log.matched(request.request_id, computed, tokens, missing, wasted)
        return tokens if fetched else 0

    def is_apart(self, request: Any) -> bool:
        """Whether to load the match asynchronously, since other requests would wait for it in the
        step."""
        one = self._requests.get(request.request_id)
        return one is not None and one.apart

    def _is_expected(self, one: Kept, last: int) -> bool:
        """Whether blocks are still to come from an engine that prefills them. The next one is
        looked for, and when it is there more at a time: they come in order, and often together."""
        assert one.found is not None
        wanted = min(one.hints.expect_tokens // self._block_tokens, last)
        now_s = time.monotonic()
        if one.found >= wanted or now_s > one.until_s:
            return False
        if one.window > 1 or now_s - one.looked_s > AGAIN_S:
            first, one.found = one.found, None
            self._look(one, first, one.window)
        return True

    def load(self, request: Any, blocks: Sequence[Sequence[int]], tokens: int) -> None:
        """Plan the load of `tokens` that were matched into the request's `blocks`, of each
        group."""
        one = self._requests.get(request.request_id)
        if one is not None and tokens > 0:
            pairs = [
                self._groups.loads(group, one.keys, held, one.computed, one.computed + tokens)
                for group, held in enumerate(blocks)
            ]
            self.counts["fetched_tokens"] += tokens
            if self._log is not None and not one.apart:
                self._log.loads(request.request_id)
            if not one.apart:
                self._step.loads.extend(pairs[0])
                return
            for step, its in zip(self._step.groups, pairs, strict=True):
                if its:
                    step.apart.append((request.request_id, its, self._bound_s(tokens)))
            self._check_adapter(one)
            if one.decision is not None:
                self.counts["matched_tokens"] += 0 if one.begun else one.decision.tokens
                workers = self._groups.ranks * sum(map(bool, pairs))
                self._landing[request.request_id] = Landing(one.decision, workers)
                one.decision = None

    def _check_adapter(self, one: Kept) -> None:
        """The worker looks whether it is still what the keys name."""
        if one.adapter is not None and one.adapter not in self._step.adapters:
            self._step.adapters.append(one.adapter)

    def plan(self, computed: dict[str, int], blocks_of: BlocksOf, tokens: int = 0) -> Step:
        """Plan the next step, which computes `tokens`; `computed`: the computed tokens of each
        request after it. Of prompts with nothing to load it is asked here what need not be saved:
        after their first token, so that the answer comes while the next step computes."""
        asking, self._asking = self._asking, {}
        for request_id, request in asking.items():
            if request_id not in self._requests:
                self._enter(request)
            one = self._known(request_id)
            if one is not None and one.looked_s == 0.0:
                one.asked = request.num_prompt_tokens
                self._look(one, 0)
        for request_id, count in computed.items():
            one = self._known(request_id)
            if one is None:
                continue
            self._begin(one)
            self._check_adapter(one)
            known = one.request.all_token_ids
            full = min(count, len(known)) // self._block_tokens
            if one.hints.share_tokens >= 0:
                full = min(full, one.hints.share_tokens // self._block_tokens)
            if full > one.saved and not self._may_have(one):
                one.keys = chain(known, self._block_tokens, one.salt, one.keys)
                for group, held in enumerate(blocks_of(request_id)):
                    saves = self._groups.saves(group, one.keys, held, one.saved, full)
                    self._step.groups[group].saves.append(saves)
                self._events.saves(one.request, one.keys, one.saved, full)
                one.saved = full
        self._numbers += 1
        if self._log is not None:
            self._log.step(self._numbers, computed)
        self._running = set(computed)
        if not computed and self._landing:
            time.sleep(IDLE_S)  # vLLM asks again at once
        step, self._step = self._step, Step.of(len(self._groups))
        for each in step.groups:
            each.number, each.tokens, each.adapters = self._numbers, tokens, step.adapters
        step.patience_s = self._bound_s(len(step.loads) * self._block_tokens)
        if self._loading:
            self._deciding[step.number], self._loading = self._loading, []
        return step

    def _may_have(self, one: Kept) -> bool:
        """Whether the tier may say yet that it has the request's blocks: a later step saves those
        that it has not. A request of one token, as of a prefill engine, has no later step, and one
        of two none after an answer."""
        if one.found is not None or one.request.max_tokens <= 2:
            return False
        if one.looked_s == 0.0:  # it has nothing to load: it is asked after this step
            self._short[one.request.request_id] = one.request
            return True
        return time.monotonic() - one.looked_s <= one.within_s

    def _begin(self, one: Kept) -> None:
        """A request is scheduled, for the first time or once more."""
        if one.decision is not None:
            self._loading.append(one.decision)
            if not one.decision.fetched:
                self.counts["recomputed_tokens"] += one.decision.tokens
            if not one.begun:
                self.counts["matched_tokens"] += one.decision.tokens
            one.decision = None
        if not one.begun:
            one.begun = True
            self.counts["asked_tokens"] += one.asked

    def learn(self, report: Report) -> None:
        """Learn from the report of a completed step, whose tokens are not sent yet."""
        for request_id in self._running & self._short.keys():
            if self._short[request_id].num_tokens >= self._block_tokens:
                self._asking[request_id] = self._short.pop(request_id)
        if self._log is not None:
            self._log.step_ended(report.number, report.there)
        computed_s = report.took_s - report.waited_s
        if report.tokens >= self._block_tokens:
            self.choice.compute.learn(report.tokens, computed_s)
        elif report.tokens and not report.loaded_bytes:
            self.choice.compute.begins(computed_s)
        if report.loaded_bytes:
            self.choice.fetch.learn(report.loaded_bytes, report.waited_s)
        for landed in report.landed:
            self._learn_landed(landed)
        ended = self._deciding.pop(report.number, [])
        fetched = sum(one.tokens for one in ended if one.fetched)
        for one in ended:
            whole, seconds = (
                (fetched, report.waited_s)
                if one.fetched
                else (max(report.tokens, one.tokens), computed_s)
            )
            self.choice.ended(one, seconds * one.tokens / max(1, whole))
            self.counts["regret_seconds"] += one.regret_s  # type: ignore[assignment]
        self._events.stored(report.stored)

    def _learn_landed(self, landed: Landed) -> None:
        one = self._landing.get(landed.request)
        if self._log is not None:
            self._log.landed(landed.request, landed.there)
        if one is None:
            return
        one.loaded_bytes += landed.loaded_bytes
        one.took_s, one.alone_s = max(one.took_s, landed.took_s), max(one.alone_s, landed.alone_s)
        one.workers -= landed.took_s >= 0
        if one.workers == 0:
            del self._landing[landed.request]
            if one.loaded_bytes:
                self.choice.fetch.learn(one.loaded_bytes, one.alone_s)
            self.choice.ended(one.decision, one.took_s)
            self.counts["regret_seconds"] += one.decision.regret_s  # type: ignore[assignment]

    def fail_whole(self, request_id: str) -> None:
        """A request's load failed, of which vLLM keeps nothing: all is computed and saved again."""
        one = self._requests.get(request_id)
        if one is not None:
            one.saved = one.found = 0
            self._release(one)

    def fail(self, blocks: set[int], blocks_of: BlocksOf) -> None:
        """These blocks failed to load: they are recomputed and saved again."""
        self._step.noted |= blocks
        for request_id, one in self._requests.items():
            for place, block in enumerate(blocks_of(request_id)[0]):
                if block in blocks:
                    one.saved = min(one.saved, place)
                    one.found = min(one.found or 0, place)
                    self._release(one)  # what is leased could not be replaced
                    self._events.gone(one.keys[place])
                    break

    def finish(self, request: Any) -> None:
        """Forget a request; retain or prefetch its KV as its hints say."""
        if self._log is not None:
            self._log.finish(request.request_id)
        one = self._requests.pop(request.request_id, None)
        self._short.pop(request.request_id, None)
        self._asking.pop(request.request_id, None)
        self._running.discard(request.request_id)
        self._landing.pop(request.request_id, None)
        if one is None:
            return
        self._release(one)
        hints, objects = one.hints, self._groups.objects(one.keys[: one.saved])
        if self._client is None or not objects or (hints.retain_s <= 0 and hints.resume_s < 0):
            return
        keys, sizes = _names(objects)
        lease_s = max(hints.retain_s, hints.resume_s + LEASE_S)
        if hints.resume_s >= 0:
            self.counts["paused"] += 1
            due_s, chance = hints.resume_s, hints.resume_chance
            self._client.prefetch(
                keys, sizes, lease_s=lease_s, due_s=due_s, chance=chance, tell=_nothing
            )
        else:
            self._client.exists(keys, sizes, lease_s=hints.retain_s, tell=_nothing)

    def hint(self, tokens: Sequence[int], held: int, in_s: float) -> None:
        """A router's hint, of any thread: a request without adapter or salt will come in `in_s`,
        and the engine holds its first `held` tokens."""
        if self._client is None:
            return
        salt = salt_of(SimpleNamespace(lora_request=None, cache_salt=None))
        keys = chain(tokens, self._block_tokens, salt)[held // self._block_tokens :]
        names, sizes = _names(self._groups.objects(keys))
        self._client.prefetch(names, sizes, lease_s=in_s + LEASE_S, due_s=in_s, tell=_nothing)

    def events(self) -> list[Saved | Gone]:
        """Events not yet reported to vLLM's subscribers."""
        return self._events.take()

    def _release(self, one: Kept) -> None:
        if self._client is not None:
            self._client.release([each.key for each in self._groups.objects(one.keys)])


def _names(objects: list[Object]) -> tuple[list[bytes], list[int]]:
    return [each.key for each in objects], [each.size for each in objects]


def _is_text(request: Any) -> bool:
    """Whether the tokens alone say what a request's KV is."""
    return not request.mm_features and request.prompt_embeds is None


def _nothing(_: Completion) -> None:
    """Ignore the completion."""
