"""Attention over tokens that lie one after another without padding, with its backward written out.

A prompt's keys are computed once and all completions of its group attend to them, so that a long prompt with eight short
answers costs one prompt and eight answers. Scores exist for one block at a time and are computed again in the backward pass.
Few tokens are one masked square instead: less arithmetic than the operations that cut it into blocks.

Shapes: N tokens, H query heads, K key-value heads, R = H / K, d head size; in a block P prompts, G rows of each, T queries of a
row, S keys that all rows of a prompt share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from llmclick.modeling.llm.models.layout import Group, Span
from llmclick.modeling.llm.models.products import product_dtype

Item = TypeVar("Item")

BLOCK_SCORES = 2**22
"""Scores of one block, all heads together: 16 MB in float32. One query's keys may exceed it."""

WHOLE_TOKENS = 256
"""So many tokens are one square of scores; a block's hundred small operations cost more than the half of it that is masked."""

PRODUCTS_FROM = 6144
"""Keys times head size from which one query is two products: torch's kernel reads a key once for every query head."""


@dataclass(frozen=True)
class Block:
    """Queries that are computed together. Each sees its prompt's shared keys and, in its own row, itself and those before it.

    `own` are the token indices [P * G * T] and `shared` those of the keys [P * S]; padding points at token 0. `tokens` are the
    real ones among `own`, at the places `places`.
    """

    shape: tuple[int, int, int, int]
    own: Tensor
    shared: Tensor
    tokens: Tensor
    places: Tensor
    real_queries: Tensor | None
    """[P * G * T, 1], 1 for real queries and 0 for padding; None without padding."""
    shared_mask: Tensor | None
    """[P, 1, 1, 1, 1, S], 0 for real keys and -inf for padding; None without padding."""
    causal: Tensor
    """[T, T], 0 where a query sees a key of its own row, else -inf."""


@dataclass(frozen=True)
class Square:
    """All tokens' queries and all tokens' keys."""

    mask: Tensor
    """[1, R * N, N], 0 where a query sees a key and -inf elsewhere."""


Blocks = Square | Sequence[Block]


def blocks_of(groups: Sequence[Group], heads: int, key_heads: int, device: torch.device) -> Blocks:
    """One square if the tokens are few enough, else blocks; a function of the lengths alone."""
    tokens = sum(group.prompt.length + sum(row.length for row in group.rows) for group in groups)
    if tokens <= WHOLE_TOKENS:
        return Square(_mask_of(groups, tokens).repeat(heads // key_heads, 1)[None].to(device))
    return _blocks_of(groups, heads, device)


def _mask_of(groups: Sequence[Group], tokens: int) -> Tensor:
    mask = torch.full((tokens, tokens), -torch.inf)
    for group in groups:
        for span in (group.prompt, *group.rows):
            own = slice(span.start, span.start + span.length)
            mask[own, group.prompt.start : group.prompt.start + group.prompt.length] = 0
            mask[own, own] = torch.full((span.length, span.length), -torch.inf).triu(1)
    return mask


def _blocks_of(groups: Sequence[Group], heads: int, device: torch.device) -> list[Block]:
    """Cuts the queries into blocks of at most BLOCK_SCORES scores where that is possible."""
    most = max(1, BLOCK_SCORES // heads)
    ordered = sorted(groups, key=lambda group: -group.prompt.length)
    cut: list[tuple[list[list[Span]], list[list[Span]]]] = []  # a block's rows by prompt, and the keys they share by prompt

    def pieces(span: Span, before: list[Span]) -> None:
        """One sequence by its queries: each piece shares what comes before the span, and the span's own keys before it."""
        step = max(1, min(span.length, most // (sum(part.length for part in before) + span.length)))
        for at in range(0, span.length, step):
            piece = Span(span.start + at, min(step, span.length - at))
            cut.append(([[piece]], [[*before, Span(span.start, at)]]))

    for prompts in _runs([group.prompt for group in ordered], lambda run: len(run) * run[0].length ** 2, most):
        if len(prompts) > 1:
            cut.append(([[prompt] for prompt in prompts], [[] for _ in prompts]))
        else:
            pieces(prompts[0], [])

    def scores(run: Sequence[Group]) -> int:
        queries = max(row.length for group in run for row in group.rows)
        return len(run) * max(len(group.rows) for group in run) * queries * (run[0].prompt.length + queries)

    def row_parts(group: Group) -> list[list[Span]]:
        rows = sorted(group.rows, key=lambda row: -row.length)
        return _runs(rows, lambda part: scores([Group(group.prompt, part)]), most)

    for run in _runs([group for group in ordered if group.rows], scores, most):
        if len(run) > 1:
            cut.append(([list(group.rows) for group in run], [[group.prompt] for group in run]))
            continue
        for part in row_parts(run[0]):
            if len(part) > 1:
                cut.append(([part], [[run[0].prompt]]))
            else:
                pieces(part[0], [run[0].prompt])
    return [_block(rows, shared, device) for rows, shared in cut]


def _runs(items: Sequence[Item], size: Callable[[list[Item]], int], most: int) -> list[list[Item]]:
    """Consecutive items in runs whose size stays within `most`; at least one item each."""
    runs: list[list[Item]] = []
    for item in items:
        if runs and size([*runs[-1], item]) <= most:
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def _block(rows: Sequence[Sequence[Span]], shared: Sequence[Sequence[Span]], device: torch.device) -> Block:
    prompts, most = len(rows), max(map(len, rows))
    queries = max(row.length for some in rows for row in some)
    keys = max(sum(span.length for span in spans) for spans in shared)
    own = torch.zeros(prompts, most, queries, dtype=torch.int64)
    real = torch.zeros(prompts, most, queries, dtype=torch.bool)
    seen = torch.zeros(prompts, keys, dtype=torch.int64)
    hidden = torch.full((prompts, keys), -torch.inf)
    for at, (some, spans) in enumerate(zip(rows, shared, strict=True)):
        for row, part in enumerate(some):
            own[at, row, : part.length] = torch.arange(part.start, part.start + part.length)
            real[at, row, : part.length] = True
        known = torch.cat([torch.arange(0), *(torch.arange(span.start, span.start + span.length) for span in spans)])
        seen[at, : len(known)] = known
        hidden[at, : len(known)] = 0
    causal = torch.full((queries, queries), -torch.inf).triu(1)
    places = real.reshape(-1).nonzero().squeeze(1)
    return Block(
        shape=(prompts, most, queries, keys),
        own=own.reshape(-1).to(device),
        shared=seen.reshape(-1).to(device),
        tokens=own.reshape(-1)[places].to(device),
        places=places.to(device),
        real_queries=None if bool(real.all()) else real.reshape(-1, 1).to(device, torch.float32),
        shared_mask=None if not bool(hidden.isinf().any()) else hidden.view(prompts, 1, 1, 1, 1, keys).to(device),
        causal=causal.to(device),
    )


def attend(q_NHd: Tensor, k_NKd: Tensor, v_NKd: Tensor, blocks: Blocks, scale: float) -> Tensor:
    """softmax(scale q k') v for every token, [N, H * d], in the precision of the inputs; the softmax is in float32."""
    if isinstance(blocks, Square):
        square = _Whole(q_NHd, k_NKd, blocks, scale)
        return square.weighted(v_NKd).to(q_NHd.dtype)
    tokens, heads, size = q_NHd.shape
    out_NE = q_NHd.new_empty(tokens, heads * size)
    for block in blocks:
        part = _Part(q_NHd, k_NKd, v_NKd, block, scale)
        out = part.weighted(part.probabilities())
        out_NE.index_copy_(0, block.tokens, part.flat(out).index_select(0, block.places).to(out_NE.dtype))
    return out_NE


def attend_backward(
    grad_NE: Tensor, out_NE: Tensor, q_NHd: Tensor, k_NKd: Tensor, v_NKd: Tensor, blocks: Blocks, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """d loss / d q [N, H, d], k and v [N, K, d] in float32, given d loss / d out [N, H * d] and out itself."""
    # sum over keys of P dP, without dP: the gradient of the output times the output.
    inner_NH = (grad_NE.float() * out_NE).view(q_NHd.shape).sum(dim=2)
    if isinstance(blocks, Square):
        return _Whole(q_NHd, k_NKd, blocks, scale).backward(grad_NE, inner_NH, v_NKd)
    grad_q, grad_k, grad_v = (torch.empty(x.shape, dtype=torch.float32, device=x.device) for x in (q_NHd, k_NKd, v_NKd))
    for block in blocks:
        part = _Part(q_NHd, k_NKd, v_NKd, block, scale)
        part.backward(grad_NE, inner_NH, grad_q, grad_k, grad_v)
    return grad_q.mul_(scale), grad_k.mul_(scale), grad_v


def attend_cached(q_BHd: Tensor, k_BKSd: Tensor, v_BKSd: Tensor, mask_B11S: Tensor | None, scale: float) -> Tensor:
    """softmax(scale q k') v of one query a row over all its keys, [B, H, d]; `mask_B11S` is -inf for padding."""
    rows, heads, size = q_BHd.shape
    key_heads, keys = k_BKSd.shape[1:3]
    if q_BHd.dtype != torch.float32 or keys * size < PRODUCTS_FROM:
        out = functional.scaled_dot_product_attention(
            q_BHd[:, :, None], k_BKSd, v_BKSd, attn_mask=mask_B11S, scale=scale, enable_gqa=heads != key_heads
        )
        return out[:, :, 0]
    q = q_BHd.reshape(rows * key_heads, -1, size)
    scores = torch.bmm(q, k_BKSd.view(-1, keys, size).mT).mul_(scale)
    if mask_B11S is not None:
        scores.view(rows, -1, 1, keys).add_(mask_B11S)
    return torch.bmm(torch.softmax(scores, dim=-1), v_BKSd.view(-1, keys, size)).view(rows, heads, size)


class _Whole:
    """The square's queries [K, R N, d], keys [K, N, d] and probabilities [K, R N, N] in float32."""

    def __init__(self, q_NHd: Tensor, k_NKd: Tensor, square: Square, scale: float) -> None:
        self._shape = q_NHd.shape
        self._key_heads = k_NKd.shape[1]
        self._scale = scale
        self._product = product_dtype(q_NHd.dtype, q_NHd.device)
        self._q, self._k = self._by_head(q_NHd), k_NKd.float().transpose(0, 1)
        # Scores in float32: rounded to bf16 they would be off by a percent where they are large.
        self._probabilities = torch.softmax(torch.baddbmm(square.mask, self._q, self._k.mT, alpha=scale), dim=-1)

    def weighted(self, v_NKd: Tensor) -> Tensor:
        """Probabilities times values, [N, H * d]."""
        out = torch.bmm(self._probabilities.to(self._product), v_NKd.to(self._product).transpose(0, 1))
        return self._by_token(out).reshape(len(v_NKd), -1)

    def backward(self, grad_NE: Tensor, inner_NH: Tensor, v_NKd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q, k and v."""
        grad = self._by_head(grad_NE.view(self._shape))
        d_v = torch.bmm(self._probabilities.to(self._product).mT, grad.to(self._product))
        # d scores = P (dP - sum of P dP), in float32 for the same reason as the scores.
        d_scores = torch.bmm(grad, v_NKd.float().permute(1, 2, 0))
        d_scores = d_scores.sub_(self._by_head(inner_NH[:, :, None])).mul_(self._probabilities).to(self._product)
        nothing = d_scores.new_zeros(())
        q, k = self._q.to(self._product), self._k.to(self._product)
        d_q = torch.baddbmm(nothing, d_scores, k, beta=0, alpha=self._scale)
        d_k = torch.baddbmm(nothing, d_scores.mT, q, beta=0, alpha=self._scale)
        d_q = self._by_token(d_q).float().reshape(self._shape)
        return d_q, d_k.float().transpose(0, 1), d_v.float().transpose(0, 1)

    def _by_head(self, x_NHd: Tensor) -> Tensor:
        tokens, heads, size = x_NHd.shape
        x = x_NHd.view(tokens, self._key_heads, heads // self._key_heads, size).permute(1, 2, 0, 3)
        return _laid_out(x, torch.float32).view(self._key_heads, -1, size)

    def _by_token(self, x: Tensor) -> Tensor:
        tokens, heads, size = self._shape
        return x.view(self._key_heads, heads // self._key_heads, tokens, size).permute(2, 0, 1, 3)


class _Part:
    """One block's queries, keys and values, gathered and laid out head by head."""

    def __init__(self, q_NHd: Tensor, k_NKd: Tensor, v_NKd: Tensor, block: Block, scale: float) -> None:
        self.block = block
        self.scale = scale
        prompts, rows, queries, keys = block.shape
        heads, size = k_NKd.shape[1:]
        self.repeats = q_NHd.shape[1] // heads
        self.many = (prompts * heads, rows, self.repeats, queries, keys, size)
        self.dtype = product_dtype(q_NHd.dtype, q_NHd.device)
        self.q_NHd, self.k_NKd, self.v_NKd = q_NHd, k_NKd, v_NKd

    def probabilities(self) -> Tensor:
        """softmax of the scores, [P, K, G, R, T, S + T] in float32: shared keys first, then the row's own."""
        prompts, _, queries, keys = self.block.shape
        heads, rows, repeats, _, _, size = self.many
        # Scores in float32: rounded to bf16 they would be off by a percent where they are large.
        wide = torch.float32
        q = self._queries(self.q_NHd, wide)
        scores = torch.empty(prompts, heads // prompts, rows, repeats, queries, keys + queries, device=q.device)
        own = torch.bmm(q.view(heads * rows, repeats * queries, size), self._own(self.k_NKd, wide).mT)
        torch.add(self.block.causal, own.view(*scores.shape[:-1], queries), alpha=self.scale, out=scores[..., keys:])
        if keys:
            shared = torch.bmm(q.view(heads, rows * repeats * queries, size), self._shared(self.k_NKd, wide).mT)
            shared = shared.view(*scores.shape[:-1], keys)
            if self.block.shared_mask is None:
                torch.mul(shared, self.scale, out=scores[..., :keys])
            else:
                torch.add(self.block.shared_mask, shared, alpha=self.scale, out=scores[..., :keys])
        return torch.softmax(scores, dim=-1)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[P, K, G, R, T, S + T] as matrices over the row's own keys [P K G, R T, T] and the shared ones [P K, G R T, S]."""
        heads, rows, repeats, queries, keys, _ = self.many
        own = x[..., keys:].to(self.dtype).reshape(heads * rows, repeats * queries, queries)
        return own, x[..., :keys].to(self.dtype).reshape(heads, rows * repeats * queries, keys)

    def weighted(self, probabilities: Tensor) -> Tensor:
        """Probabilities times values, [P K, G, R T, d]."""
        own, shared = self.split(probabilities)
        return self._over_keys(own, shared, self.v_NKd)

    def backward(self, grad_NE: Tensor, inner_NH: Tensor, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor) -> None:
        """Adds the block's share of the gradients (those of q and k still without the scale)."""
        block = self.block
        heads, rows, repeats, queries, keys, size = self.many
        wide = torch.float32
        grad_wide = self._queries(grad_NE.view(grad_q.shape), wide, block.real_queries)
        grad = grad_wide.to(self.dtype)
        inner = self._queries(inner_NH[:, :, None], wide, block.real_queries)
        q = self._queries(self.q_NHd, self.dtype)
        probabilities = self.probabilities()
        p_own, p_shared = self.split(probabilities)
        grad_rows = grad.view(heads * rows, repeats * queries, size)
        grad_prompts = grad.view(heads, rows * repeats * queries, size)
        self._set_own(grad_v, torch.bmm(p_own.mT, grad_rows))
        if keys:
            self._add_shared(grad_v, torch.bmm(p_shared.mT, grad_prompts))
        # d scores = P (dP - sum of P dP), in float32 for the same reason as the scores.
        d_own = torch.bmm(grad_wide.view(grad_rows.shape), self._own(self.v_NKd, wide).mT)
        d_own = d_own.sub_(inner.view(heads * rows, repeats * queries, 1))
        d_own = d_own.view(*probabilities.shape[:-1], queries).mul_(probabilities[..., keys:])
        own = d_own.to(self.dtype).view(heads * rows, repeats * queries, queries)
        shared = p_shared
        if keys:
            d_shared = torch.bmm(grad_wide.view(grad_prompts.shape), self._shared(self.v_NKd, wide).mT)
            d_shared = d_shared.sub_(inner.view(heads, rows * repeats * queries, 1))
            d_shared = d_shared.view(*probabilities.shape[:-1], keys).mul_(probabilities[..., :keys])
            shared = d_shared.to(self.dtype).view(heads, rows * repeats * queries, keys)
            self._add_shared(grad_k, torch.bmm(shared.mT, q.view(heads, rows * repeats * queries, size)))
        self._set_own(grad_k, torch.bmm(own.mT, q.view(heads * rows, repeats * queries, size)))
        d_q = self.flat(self._over_keys(own, shared, self.k_NKd))
        d_q = d_q.index_select(0, block.places).float()
        grad_q.view(len(grad_q), -1).index_copy_(0, block.tokens, d_q)

    def flat(self, x: Tensor) -> Tensor:
        """[P K, G, R T, d] as [P * G * T, H * d]."""
        prompts = self.block.shape[0]
        heads, rows, repeats, queries, _, size = self.many
        x = x.view(prompts, heads // prompts, rows, repeats, queries, size).permute(0, 2, 4, 1, 3, 5)
        return x.reshape(prompts * rows * queries, -1)

    def _over_keys(self, own: Tensor, shared: Tensor, x_NKd: Tensor) -> Tensor:
        heads, rows, repeats, queries, keys, size = self.many
        out = torch.bmm(own, self._own(x_NKd, self.dtype)).view(heads, rows * repeats * queries, size)
        return out.add_(torch.bmm(shared, self._shared(x_NKd, self.dtype))) if keys else out

    def _queries(self, x_NHd: Tensor, dtype: torch.dtype, real: Tensor | None = None) -> Tensor:
        prompts, rows, queries, _ = self.block.shape
        heads = self.many[0] // prompts
        x = x_NHd.reshape(len(x_NHd), -1).index_select(0, self.block.own)
        if real is not None:
            x = x.mul_(real)
        x = x.view(prompts, rows, queries, heads, self.repeats, -1).permute(0, 3, 1, 4, 2, 5)
        return _laid_out(x, dtype)

    def _own(self, x_NKd: Tensor, dtype: torch.dtype) -> Tensor:
        prompts, rows, queries, _ = self.block.shape
        heads, size = x_NKd.shape[1:]
        x = x_NKd.reshape(len(x_NKd), -1).index_select(0, self.block.own)
        x = x.view(prompts, rows, queries, heads, size).permute(0, 3, 1, 2, 4)
        return _laid_out(x, dtype).view(prompts * heads * rows, queries, size)

    def _shared(self, x_NKd: Tensor, dtype: torch.dtype) -> Tensor:
        prompts, _, _, keys = self.block.shape
        heads, size = x_NKd.shape[1:]
        x = x_NKd.reshape(len(x_NKd), -1).index_select(0, self.block.shared)
        x = x.view(prompts, keys, heads, size).permute(0, 2, 1, 3)
        return _laid_out(x, dtype).view(prompts * heads, keys, size)

    def _set_own(self, gradient: Tensor, part: Tensor) -> None:
        """Writes [P K G, T, d] to the tokens' own keys or values. A token's own block comes before all that share it."""
        prompts, rows, queries, _ = self.block.shape
        heads, size = gradient.shape[1:]
        part = part.view(prompts, heads, rows, queries, size).permute(0, 2, 3, 1, 4).reshape(-1, heads * size)
        part = part.index_select(0, self.block.places).float()
        gradient.view(len(gradient), -1).index_copy_(0, self.block.tokens, part)

    def _add_shared(self, gradient: Tensor, part: Tensor) -> None:
        """Adds [P K, S, d] to the shared keys or values; padding's part is exactly 0."""
        prompts, _, _, keys = self.block.shape
        heads, size = gradient.shape[1:]
        part = part.view(prompts, heads, keys, size).permute(0, 2, 1, 3).reshape(-1, heads * size).float()
        gradient.view(len(gradient), -1).index_add_(0, self.block.shared, part)


def _laid_out(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` contiguous in `dtype`, in one copy."""
    return torch.empty(x.shape, dtype=dtype, device=x.device).copy_(x)
