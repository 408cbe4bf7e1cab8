"""One optimizer step, and its gradient: each prompt once, its cache shared by its completions, micro-batch by micro-batch.

    take:      gradient -> update -> sync
    gradient:  for each micro-batch of prompts with their completions
      forward    hidden_ND = model(prompt once, then its completions on the prompt's cache), no head
      slope      for each chunk of scored positions: logits -> logprobs_n -> d loss / d logprob_n, by autograd on [n] alone
      head       d loss / d logits = slope (onehot - softmax) -> d loss / d hidden, and the head's own gradient
      body       backward through the model with d loss / d hidden; the prompts' part last, once for all their completions

Shapes: B completions, P prompts, S prompt tokens, T tokens of a completion, N scored positions of a micro-batch (n of a chunk),
D hidden width, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmclick.modeling.llm.methods.losses import (
    Average,
    Denominators,
    RatioLevel,
    importance_ratio,
    kl_estimate,
    kl_objective,
    sampler_weight,
    token_weights,
)
from llmclick.modeling.llm.models.layout import Group, Span
from llmclick.modeling.llm.sampling.local import pad_left, positions_of
from llmclick.modeling.llm.training.batch import Chunk, SampledBatch, plan, plan_packed
from llmclick.modeling.llm.training.logprobs import logprobs_with_gradient, token_logprobs
from llmclick.modeling.llm.training.statistics import StepStatistics

if TYPE_CHECKING:
    from llmclick.interfaces import Learner, Sampler
    from llmclick.modeling.llm.methods.base import Method
    from llmclick.modeling.llm.models.decoder import Decoder
    from llmclick.modeling.llm.training.policy import Policy
    from llmclick.modeling.llm.training.stopwatch import Stopwatch


@dataclass(frozen=True)
class Objective:
    """The settings that shape the gradient of a step; names and meanings are the config's."""

    method: Method
    temperature: float
    max_new_tokens: int
    average: Average = "token"
    ratio: RatioLevel = "token"
    beta: float = 0.0
    correction: bool = False
    batch_size: int = 8
    micro_tokens: int = 8192
    skip_silent: bool = True


@dataclass(frozen=True)
class Taken:
    """An optimizer step that was taken: what its tokens showed, the gradient's norm before it was bounded, the rate."""

    statistics: StepStatistics
    norm: float
    lr: float


def take(
    learner: Learner,
    sampler: Sampler,
    batch: SampledBatch,
    objective: Objective,
    *,
    first: bool,
    lr: float,
    max_norm: float,
    version: int,
    watch: Stopwatch,
    probe: Callable[[StepStatistics], None] | None = None,
) -> Taken:
    """The one optimizer step, in training and in `check`: gradient, update, and the sampler gets the new weights.

    `probe` may raise before any weight has moved; `version` is what the sampler's next completions carry.
    """
    with watch.measure("gradient"):
        statistics = learner.gradient(batch, objective, first=first)
    if probe is not None:
        probe(statistics)
    with watch.measure("update"):
        norm = learner.update(lr, max_norm)
    with watch.measure("sync"):
        sampler.sync(learner.weights(), version)
    return Taken(statistics, norm, lr)


def accumulate_gradient(
    policy: Policy, batch: SampledBatch, objective: Objective, denominators: Denominators, first: bool
) -> StepStatistics:
    """Adds the gradient of one optimizer step on `batch` to the parameters' `.grad` and returns what was seen on the way.

    `first` marks the first step on these samples: the policy's own log-probabilities become the old ones (every ratio is
    exactly 1) and, with beta > 0, the reference's are computed; both stay in the batch for the steps that follow.
    """
    policy.for_training()
    statistics = StepStatistics()
    rows = batch.trained_rows(skip_silent=objective.skip_silent and objective.beta == 0)
    bounds = (objective.batch_size, objective.micro_tokens)
    if first and objective.beta > 0:
        with policy.reference(), policy.autocast():
            for micro in _micro_batches(policy, batch, rows, *bounds, training=False):
                logprobs_N = token_logprobs(policy.head, micro.hidden_ND, micro.targets_N, objective.temperature)
                batch.reference.update(micro.by_row(logprobs_N))
    with policy.autocast():
        for micro in _micro_batches(policy, batch, rows, *bounds, training=True):
            _backward(policy, batch, micro, objective, denominators, first, statistics)
    policy.finish_gradients()
    return statistics


def _micro_batches(
    policy: Policy, batch: SampledBatch, rows: Sequence[int], batch_size: int, micro_tokens: int, *, training: bool
) -> Iterator[_Micro]:
    """Forwards the rows piece by piece: by the written-out decoder where the policy has one, else by the model's own code."""
    if policy.decoder is not None:
        for groups in plan_packed(batch, rows, batch_size, micro_tokens):
            yield _packed(policy, policy.decoder, batch, groups, training=training)
        return
    for chunk in plan(batch, rows, batch_size, micro_tokens):
        yield from _forward(policy, batch, chunk, training=training)


@dataclass
class _Micro:
    """A micro-batch's hidden states [N, D] and target ids [N] at its scored positions, row after row."""

    rows: tuple[int, ...]
    lengths: list[int]
    hidden_ND: Tensor
    targets_N: Tensor
    backward: Callable[[Tensor], None]
    """Takes d loss / d hidden [N, D] through the model."""

    def by_row(self, values_N: Tensor) -> dict[int, Tensor]:
        """Splits [N] into one tensor per row."""
        return dict(zip(self.rows, (part.detach().clone() for part in torch.split(values_N, self.lengths)), strict=True))

    def flat(self, by_row: dict[int, Tensor]) -> Tensor:
        """Joins one tensor per row into [N]."""
        return torch.cat([by_row[row] for row in self.rows]).to(self.targets_N.device)

    def spread(self, per_row: Sequence[float]) -> Tensor:
        """One number per row, repeated for its tokens [N]."""
        lengths = torch.tensor(self.lengths, device=self.targets_N.device)
        return torch.tensor(per_row, dtype=torch.float32, device=self.targets_N.device).repeat_interleave(lengths)

    def padded(self, values_N: Tensor) -> tuple[Tensor, Tensor]:
        """[N] as [B, T] with its mask [B, T] (float)."""
        parts = torch.split(values_N, self.lengths)
        values_BT = torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
        ones = [torch.ones(length, device=values_N.device) for length in self.lengths]
        return values_BT, torch.nn.utils.rnn.pad_sequence(ones, batch_first=True)


def _backward(
    policy: Policy,
    batch: SampledBatch,
    micro: _Micro,
    objective: Objective,
    denominators: Denominators,
    first: bool,
    statistics: StepStatistics,
) -> None:
    """Loss and gradient of one micro-batch, up to the hidden states' own backward included."""
    sampler_N = torch.tensor(
        [logprob for row in micro.rows for logprob in batch.completions[row].logprobs], device=micro.targets_N.device
    )
    advantage_N = micro.spread([float(batch.advantages_B[row]) for row in micro.rows])
    _, mask_BT = micro.padded(advantage_N)
    weight_N = token_weights(mask_BT, objective.average, denominators)[mask_BT.bool()]
    reference_N = micro.flat(batch.reference) if objective.beta > 0 else None
    old_N = None if first else micro.flat(batch.old)

    def loss_of(logprobs_N: Tensor, ratio_N: Tensor, old_N: Tensor, span: slice) -> Tensor:
        correction_N = sampler_weight(old_N, sampler_N[span]) if objective.correction else None
        gain_N = objective.method.objective(logprobs_N, ratio_N, advantage_N[span], correction_N)
        if reference_N is not None:
            gain_N = gain_N - objective.beta * kl_objective(logprobs_N, old_N, reference_N[span])
        return -(weight_N[span] * gain_N).sum()

    def slope(span: slice, logprobs_n: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf_n = logprobs_n.detach().requires_grad_()
            old_n = leaf_n.detach() if old_N is None else old_N[span]
            ratio_n = importance_ratio(leaf_n[:, None], old_n[:, None], torch.ones_like(old_n)[:, None], "token")[:, 0]
            (gradient_n,) = torch.autograd.grad(loss_of(leaf_n, ratio_n, old_n, span), leaf_n)
        return gradient_n

    arguments = (policy.head, micro.hidden_ND, micro.targets_N, objective.temperature)
    if objective.ratio == "sequence":
        # A token's slope depends on its whole sequence: all log-probabilities first, then the gradient.
        with torch.enable_grad():
            leaf_N = token_logprobs(*arguments).requires_grad_()
            old = leaf_N.detach() if old_N is None else old_N
            leaf_BT, _ = micro.padded(leaf_N)
            old_BT, _ = micro.padded(old)
            ratio_N = importance_ratio(leaf_BT, old_BT, mask_BT, "sequence")[mask_BT.bool()]
            (slope_N,) = torch.autograd.grad(loss_of(leaf_N, ratio_N, old, slice(None)), leaf_N)
        logprobs_N, grad_ND = logprobs_with_gradient(*arguments, lambda span, _: slope_N[span])
        ratio_N = ratio_N.detach()
    else:
        logprobs_N, grad_ND = logprobs_with_gradient(*arguments, slope)
        old = logprobs_N if old_N is None else old_N
        ratio_N = importance_ratio(logprobs_N[:, None], old[:, None], torch.ones_like(old)[:, None], "token")[:, 0]
    micro.backward(grad_ND)

    if first:
        batch.old.update(micro.by_row(logprobs_N))
    mismatch_N = (old - sampler_N).abs()
    kl_N = kl_estimate(logprobs_N, reference_N) if reference_N is not None else None
    statistics.add(ratio_N, objective.method.clipped(ratio_N, advantage_N), mismatch_N, kl_N)
    if first:
        statistics.row_mismatch.update({row: float(part.mean()) for row, part in micro.by_row(mismatch_N).items()})


def _forward(policy: Policy, batch: SampledBatch, chunk: Chunk, *, training: bool) -> Iterator[_Micro]:
    """Forwards a chunk's prompts once and yields its micro-batches; after the last one, runs the prompts' backward.

    Between prompt and completions the graph is cut: the completions' gradients gather in leaves that stand for the prompts'
    cache and last hidden states, and flow on in one backward at the end. Exact, and only one micro-batch's graph lives at once.
    """
    model = policy.model
    with torch.set_grad_enabled(training):
        ids_PS, mask_PS = pad_left([batch.prompts[prompt] for prompt in chunk.prompts], model.pad_id, model.device)
        cache = model.new_cache(training=training)
        last_PD = model.hidden(ids_PS, positions_of(mask_PS), mask_PS, cache)[:, -1]
        joints: list[tuple[Tensor, Tensor]] = []
        last_leaf_PD = _leaf(last_PD, joints)
        cache = _branch(cache, lambda tensor: _leaf(tensor, joints))
        place = {prompt: at for at, prompt in enumerate(chunk.prompts)}
        for rows in chunk.micro_batches:
            fan_out_B = torch.tensor([place[row // batch.group_size] for row in rows], device=model.device)
            yield _continue(policy, batch, rows, fan_out_B, last_leaf_PD, mask_PS, _branch(cache, lambda tensor: tensor))
        live = [(source, leaf.grad) for source, leaf in joints if leaf.grad is not None]
        if training and live:
            torch.autograd.backward([source for source, _ in live], [grad for _, grad in live])


def _continue(
    policy: Policy,
    batch: SampledBatch,
    rows: tuple[int, ...],
    fan_out_B: Tensor,
    last_PD: Tensor,
    mask_PS: Tensor,
    cache: Any,
) -> _Micro:
    """Hidden states of the rows' scored positions: the prompt's last one, then those of all tokens but the last."""
    model = policy.model
    ids = [batch.completions[row].ids for row in rows]
    lengths = [len(row_ids) for row_ids in ids]
    longest = max(lengths)
    hidden_BTD = last_PD.index_select(0, fan_out_B)[:, None]
    if longest > 1:
        inputs_BT = torch.tensor([row[:-1] + [model.pad_id] * (longest - len(row)) for row in ids], device=model.device)
        scored_BT = torch.tensor([[1] * (n - 1) + [0] * (longest - n) for n in lengths], device=model.device)
        mask_BS = mask_PS.index_select(0, fan_out_B)
        positions_BT = mask_BS.sum(dim=1, keepdim=True) + torch.arange(longest - 1, device=model.device)
        model.select(cache, fan_out_B)
        rest_BTD = model.hidden(inputs_BT, positions_BT, torch.cat([mask_BS, scored_BT], dim=1), cache)
        hidden_BTD = torch.cat([hidden_BTD, rest_BTD.to(hidden_BTD.dtype)], dim=1)
    within_BT = torch.arange(longest, device=model.device) < torch.tensor(lengths, device=model.device)[:, None]
    targets_N = torch.tensor([token for row in ids for token in row], device=model.device)
    hidden_ND = hidden_BTD[within_BT]

    def backward(grad_ND: Tensor) -> None:
        torch.autograd.backward(hidden_ND, grad_ND)

    return _Micro(rows, lengths, hidden_ND, targets_N, backward)


def _packed(
    policy: Policy,
    decoder: Decoder,
    batch: SampledBatch,
    groups: Sequence[tuple[int, tuple[int, ...]]],
    *,
    training: bool,
) -> _Micro:
    """One micro-batch of prompts and their rows, laid out one after another and forwarded at once."""
    model = policy.model
    ids: list[int] = []
    scored: list[int] = []
    spans = []
    for prompt, rows in groups:
        start, length = len(ids), len(batch.prompts[prompt])
        ids += batch.prompts[prompt]
        continued = []
        for row in rows:
            row_start, fed = len(ids), batch.completions[row].ids[:-1]
            ids += fed
            # The prompt's last token predicts a row's first, each token the next one.
            scored += [start + length - 1, *range(row_start, len(ids))]
            if fed:
                continued.append(Span(row_start, len(fed)))
        spans.append(Group(Span(start, length), continued))
    rows = tuple(row for _, members in groups for row in members)
    lengths = [batch.length(row) for row in rows]
    targets_N = torch.tensor([token for row in rows for token in batch.completions[row].ids], device=model.device)
    inputs = (
        torch.tensor(ids, device=model.device),
        decoder.layout(spans),
        torch.tensor(scored, device=model.device),
    )
    if not training:
        return _Micro(rows, lengths, decoder.forward(*inputs), targets_N, lambda _: None)
    hidden_ND, tape = decoder.record(*inputs)
    return _Micro(rows, lengths, hidden_ND, targets_N, lambda grad_ND: decoder.backward(tape, grad_ND))


def _leaf(tensor: Tensor, joints: list[tuple[Tensor, Tensor]]) -> Tensor:
    if not tensor.requires_grad:
        return tensor
    leaf = tensor.detach().requires_grad_()
    joints.append((tensor, leaf))
    return leaf


def _branch(cache: Any, replace: Any) -> Any:
    """A cache of its own on the same states, each state tensor passed through `replace`."""
    branch = copy.copy(cache)
    branch.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in branch.layers:
        for name, value in vars(layer).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(layer, name, replace(value))
    return branch
