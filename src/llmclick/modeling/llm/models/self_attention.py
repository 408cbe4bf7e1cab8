"""Self-attention of Llama's shape written out: forward, backward and one further token.

Shapes: N tokens, B rows of a batch, D hidden size, H query heads, K key-value heads, d head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llmclick.modeling.llm.models.attention import attend, attend_backward, attend_cached
from llmclick.modeling.llm.models.layout import Layout, Rotation
from llmclick.modeling.llm.models.norm import norm_of
from llmclick.modeling.llm.models.packed_matrix import PackedMatrices
from llmclick.modeling.llm.models.projection import Projection


class SelfAttention:
    """One layer's attention, computing in `dtype`.

    Queries and keys are normed where the family does so (Qwen3), then turned by their position. Qwen3.5 multiplies
    the output by a sigmoid of a gate, which its q_proj computes beside each head's query.
    """

    def __init__(self, layer: Any, dtype: torch.dtype, keep_plain: bool) -> None:
        self.dtype = dtype
        self._joint = Projection([layer.q_proj, layer.k_proj, layer.v_proj], dtype, keep_plain)
        self._output = Projection([layer.o_proj], dtype, keep_plain)
        self.projections = (self._joint, self._output)
        self._q_norm, self._k_norm = (
            norm_of(getattr(layer, name)) if hasattr(layer, name) else None for name in ("q_norm", "k_norm")
        )
        self.head_size = int(layer.head_dim)
        query, key, _ = self._joint.sizes
        self.key_heads = key // self.head_size
        self.heads = self.key_heads * int(layer.num_key_value_groups)
        self._gated = query == 2 * self.heads * self.head_size
        self._queries = query
        self._scale = float(layer.scaling)

    def forward(self, in_ND: Tensor, layout: Layout, kept: dict[str, Tensor]) -> Tensor:
        """The output [N, D]; what the backward pass needs goes into `kept`, keys "k" and values "v" [N, K, d] among it."""
        joint = self._joint(in_ND)
        kept["q"], kept["k"], values = self._heads(joint, layout.rotation)
        kept["v"] = values.contiguous()  # a view would keep queries and keys as they were before they were turned
        kept["out"] = out = attend(kept["q"], kept["k"], kept["v"], layout.blocks, self._scale)
        if self._q_norm is not None or self._gated:
            kept["joint"] = joint
        if self._gated:
            out = self._gate(joint).mul_(out)
        return self._output(out)

    def backward(self, grad_ND: Tensor, layout: Layout, kept: dict[str, Tensor]) -> Tensor:
        """d loss / d input [N, D], given d loss / d output, both in the compute precision."""
        out, gate = kept["out"], None
        if self._gated:
            gate = self._gate(kept["joint"])
            out = gate * out
        grad_out = self._output.backward(grad_ND, out)
        grad_gate = None
        if gate is not None:
            # d sigmoid = s (1 - s): the gated output is s times the ungated one.
            grad_gate = (1 - gate).mul_(out).mul_(grad_out)
            grad_out = grad_out.mul_(gate)
        grad_q, grad_k, grad_v = attend_backward(
            grad_out, kept["out"], kept["q"], kept["k"], kept["v"], layout.blocks, self._scale
        )
        joint = torch.empty(len(grad_ND), sum(self._joint.sizes), dtype=self.dtype, device=grad_ND.device)
        queries, keys, values = self._split(joint)
        values.copy_(grad_v)
        if self._q_norm is None or self._k_norm is None:
            turned = layout.rotation.turn(torch.cat([grad_q, grad_k], dim=1), back=True)
            joint[:, : (self.heads + self.key_heads) * self.head_size] = turned.flatten(1)
        else:
            raw_q, raw_k, _ = self._split(kept["joint"])
            for into, norm, grad, raw in ((queries, self._q_norm, grad_q, raw_q), (keys, self._k_norm, grad_k, raw_k)):
                into.copy_(norm.backward(layout.rotation.turn(grad, back=True), *norm.unit(raw.float())))
        if grad_gate is not None:
            joint[:, : self._queries].view(len(joint), self.heads, 2, -1)[:, :, 1] = grad_gate.view(len(joint), self.heads, -1)
        return self._joint.backward(joint, kept["in"])

    def step(
        self,
        in_BD: Tensor,
        rotation: Rotation,
        keys_BKSd: Tensor,
        values_BKSd: Tensor,
        at: int,
        mask_B11S: Tensor | None,
        packed: PackedMatrices,
    ) -> Tensor:
        """The output [B, D] of one further token a row, whose keys and values are written at position `at`."""
        joint = self._joint(in_BD, packed.get(self._joint))
        queries, keys, values = self._heads(joint, rotation)
        keys_BKSd[:, :, at] = keys
        values_BKSd[:, :, at] = values
        filled = (keys_BKSd[:, :, : at + 1], values_BKSd[:, :, : at + 1])
        out = attend_cached(queries.to(keys_BKSd.dtype), *filled, mask_B11S, self._scale)
        out = out.view(len(in_BD), -1).to(self.dtype)
        if self._gated:
            out = self._gate(joint).mul_(out)
        return self._output(out, packed.get(self._output))

    def _split(self, joint: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [N, H, d], keys and values [N, K, d] of the joint projection's output, as views."""
        parts = torch.split(joint, self._joint.sizes, dim=1)
        queries, keys, values = (part.view(len(joint), -1, self.head_size) for part in parts)
        # Beside each head's query lies its gate.
        return (queries[:, ::2] if self._gated else queries), keys, values

    def _gate(self, joint: Tensor) -> Tensor:
        """The gate's sigmoid [N, H * d]."""
        gates = joint[:, : self._queries].view(len(joint), -1, self.head_size)[:, 1::2]
        return torch.sigmoid(gates).reshape(len(joint), -1)

    def _heads(self, joint: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [N, H, d] and keys [N, K, d], normed and turned, and values [N, K, d] of the joint projection's output."""
        queries, keys, values = self._split(joint)
        if self._q_norm is not None and self._k_norm is not None:
            wide = torch.cat([self._q_norm(queries.float()), self._k_norm(keys.float())], dim=1)
        else:
            wide = joint[:, : -self.key_heads * self.head_size].view(len(joint), -1, self.head_size).float()
        turned = rotation.turn(wide).to(self.dtype)
        return turned[:, : self.heads], turned[:, self.heads :], values
