"""The local sampler: in this process, on the model's own weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from llmclick.errors import TrainingStopped
from llmclick.interfaces import Completion, Features, Request, Sampling, SamplingInterrupted, WeightSource
from llmclick.modeling.llm.sampling.draw import Draw, draw, greedy
from llmclick.modeling.llm.sampling.random import completion_key, uniforms

if TYPE_CHECKING:
    from llmclick.modeling.llm.models.base import LanguageModel

DROP_SHARE = 8
"""Finished rows leave the batch once they are 1 / 8 of it: often enough to save their work, rarely enough to copy little."""


class LocalSampler:
    """Samples with `model`: one prefill per prompt, its cache fanned out to the group, one token a step for all rows.

    What lies together is a function of the requests and `Sampling.together` alone. Only the temperature shapes the
    distribution: what the checkpoint's generation_config says about top_k, top_p or penalties is ignored. `autocast` opens the
    precision to compute in (default: the weights' own), `refresh` renews the copies of the weights that `model` decodes with,
    and `own_precision` says that those are of another precision than what trains.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        seed: int,
        autocast: Callable[[], Any] = contextlib.nullcontext,
        refresh: Callable[[], None] = lambda: None,
        own_precision: bool = False,
    ) -> None:
        self.model = model
        self.seed = seed
        self.features = Features(entropy=True, exact=True, own_precision=own_precision)
        self._version = 0
        self._autocast = autocast
        self._refresh = refresh
        # Apple's GPUs have no float64, in which the distribution function is searched.
        self._draws_on = torch.device("cpu") if model.device.type == "mps" else model.device
        self._suppressed = torch.tensor(model.suppressed_ids, device=self._draws_on) if model.suppressed_ids else None
        self._stop_ids = torch.tensor(model.stop_ids, device=model.device)

    def sync(self, weights: WeightSource, version: int) -> None:
        """The weights are those of the learner already; only copies of them are renewed."""
        self._refresh()
        self._version = version

    def close(self) -> None:
        """Nothing is held that the learner does not hold."""

    def sample(
        self,
        requests: Sequence[Request],
        how: Sampling,
        *,
        on_tokens: Callable[[int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> list[list[Completion]]:
        """See `interfaces.Sampler`. Raises TrainingStopped on non-finite logits."""
        rows = [(index, sample) for index in range(len(requests)) for sample in range(how.group_size)]
        done: list[Completion] = []
        with torch.inference_mode(), self._autocast():
            for start in range(0, len(rows), how.together):
                chunk = rows[start : start + how.together]
                done += self._decode(requests, chunk, how, on_tokens or (lambda _: None), should_stop or (lambda: False))
        return [done[start : start + how.group_size] for start in range(0, len(done), how.group_size)]

    def _decode(
        self,
        requests: Sequence[Request],
        rows: Sequence[tuple[int, int]],
        how: Sampling,
        on_tokens: Callable[[int], None],
        should_stop: Callable[[], bool],
    ) -> list[Completion]:
        """All completions of one chunk of (request, sample) rows."""
        device = self.model.device
        prompts = sorted({index for index, _ in rows})
        place = {index: at for at, index in enumerate(prompts)}
        fan_out_B = torch.tensor([place[index] for index, _ in rows], device=device)
        ids_PS, mask_PS = pad_left([requests[index].ids for index in prompts], self.model.pad_id, device)
        logits_PV, cache = self._prefill(ids_PS, mask_PS)
        cache = self.model.widen(cache, fan_out_B, how.max_new_tokens)
        logits_BV = logits_PV.index_select(0, fan_out_B)
        mask_BS = mask_PS.index_select(0, fan_out_B)
        positions_B = mask_BS.sum(dim=1)
        keys_B = np.array([completion_key(self.seed, how.stream, requests[index].row_id, sample) for index, sample in rows])

        record = _Record(len(rows), self._version)
        live = np.arange(len(rows))  # rows of the chunk that are still in the batch
        finished_B = torch.zeros(len(rows), dtype=torch.bool, device=device)
        for position in range(how.max_new_tokens):
            if should_stop():
                raise SamplingInterrupted
            drawn = self._draw(logits_BV, keys_B[live], position, how.temperature)
            record.add(live, finished_B.cpu().numpy(), drawn)
            finished_B = finished_B | torch.isin(drawn.ids_B, self._stop_ids)
            on_tokens(position + 1)
            finished = int(finished_B.sum())
            if finished == len(live) or position + 1 == how.max_new_tokens:
                record.finish(live, finished_B.cpu().numpy())
                break
            next_ids_B = drawn.ids_B
            if finished * DROP_SHARE >= len(live):
                record.finish(live, finished_B.cpu().numpy())
                keep_B = (~finished_B).nonzero().squeeze(1)
                self.model.select(cache, keep_B)
                next_ids_B, mask_BS, positions_B = (t.index_select(0, keep_B) for t in (next_ids_B, mask_BS, positions_B))
                live, finished_B = live[keep_B.cpu().numpy()], finished_B.index_select(0, keep_B)
            mask_BS = torch.cat([mask_BS, torch.ones_like(mask_BS[:, :1])], dim=1)
            hidden_B1D = self.model.hidden(next_ids_B[:, None], positions_B[:, None], mask_BS, cache)
            logits_BV = self.model.logits(hidden_B1D[:, 0], cache)
            positions_B = positions_B + 1
        return record.completions()

    def _prefill(self, ids_PS: Tensor, mask_PS: Tensor) -> tuple[Tensor, Any]:
        """Logits [P, V] after each prompt and the prompts' cache."""
        cache = self.model.new_cache(training=False)
        hidden_PSD = self.model.hidden(ids_PS, positions_of(mask_PS), mask_PS, cache)
        return self.model.logits(hidden_PSD[:, -1]), cache

    def _draw(
        self, logits_BV: Tensor, keys_B: np.ndarray[Any, np.dtype[np.uint64]], position: int, temperature: float | None
    ) -> Draw:
        logits_BV = logits_BV.float().to(self._draws_on)
        if temperature is None:
            drawn = greedy(logits_BV, self._suppressed)
        else:
            numbers_B = torch.from_numpy(uniforms(keys_B, position)).to(logits_BV.device)
            drawn = draw(logits_BV, numbers_B, temperature, self._suppressed)
        if not bool(drawn.logprobs_B.isfinite().all()):
            raise TrainingStopped(
                "the model's logits are not finite: its weights are damaged, or the learning rate is too high"
            )
        return Draw(*(values.to(self.model.device) for values in drawn))


class _Record:
    """What was drawn so far, by row of the chunk."""

    def __init__(self, rows: int, version: int) -> None:
        self._version = version
        self._ids: list[list[int]] = [[] for _ in range(rows)]
        self._logprobs: list[list[float]] = [[] for _ in range(rows)]
        self._entropies: list[list[float]] = [[] for _ in range(rows)]
        self._stopped = [False] * rows

    def add(self, live: Any, finished: Any, drawn: Draw) -> None:
        """Enters the tokens of the rows that had not finished before."""
        columns = zip(live, finished, drawn.ids_B.tolist(), drawn.logprobs_B.tolist(), drawn.entropies_B.tolist(), strict=True)
        for row, was_finished, token, logprob, entropy in columns:
            if not was_finished:
                self._ids[row].append(token)
                self._logprobs[row].append(logprob)
                self._entropies[row].append(entropy)

    def finish(self, live: Any, finished: Any) -> None:
        """Marks the rows whose stop token was drawn."""
        for row in live[finished]:
            self._stopped[row] = True

    def completions(self) -> list[Completion]:
        """One completion per row, in order."""
        return [
            Completion(ids, logprobs, "stop" if stopped else "length", math.fsum(entropies) / len(entropies), self._version)
            for ids, logprobs, stopped, entropies in zip(self._ids, self._logprobs, self._stopped, self._entropies, strict=True)
        ]


def pad_left(sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both [P, S] int64, padded in front to the longest."""
    longest = max(map(len, sequences))
    ids = [[pad_id] * (longest - len(sequence)) + list(sequence) for sequence in sequences]
    mask = [[0] * (longest - len(sequence)) + [1] * len(sequence) for sequence in sequences]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def positions_of(mask_PS: Tensor) -> Tensor:
    """Position of each token in its own sequence [P, S]; 0 on padding."""
    return (mask_PS.cumsum(dim=1) - 1).clamp(min=0)
