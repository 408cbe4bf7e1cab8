"""The gated delta rule (Gated DeltaNet, arXiv 2412.06464) in chunks, with its backward written out.

Token after token, a state S [K, V] is decayed, corrected towards the token's value where its key reads, and read by its query:

    S <- e^g S + k' b (v - k e^g S),    o = q S.

A chunk of C tokens does the same in a few matrix products. With c the running sum of g within the chunk and
D_ij = e^(c_i - c_j) for i >= j, else 0:

    A = strictly lower (b k k' D),    M = q k' D,    u = (I + A)^-1 b (v - e^c k S),
    o = e^c q S + M u,    S <- e^(c_C) S + (e^(c_C - c) k)' u.

Everything is float32. A padded token has g = b = 0 and q = k = 0: it changes no state and no other token's gradient, whatever
its value and the gradient of its output are.

Shapes: Y states (one for each sequence and head), G rows that continue the same one, L tokens of a row, C of them in a chunk,
K and V key and value size of a head, X = Y * G; the axis of 2 holds queries and keys, which are multiplied by the same things.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 64
"""Most tokens of a chunk; a longer row is cut into chunks of nearly equal length."""

_FORGOTTEN = -40.0
"""Decays below e^-40 count as 0: less than float32 sees beside anything of ordinary size. Products of smaller ones fall below
its normal range, where a processor is many times slower; that was 40 percent of a layer's time."""


def delta_rule(
    qk_YG2LK: Tensor, v_YGLV: Tensor, g_YGL: Tensor, b_YGL: Tensor, state_YKV: Tensor | None = None, *, final: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Outputs [Y, G, L, V], and with `final` the rows' last states [Y, G, K, V]. No state given means zeros.

    Queries come normalised and scaled, keys normalised; g <= 0 is the logarithm of the decay, b the strength of writing.
    """
    states, rows, _, length, _ = qk_YG2LK.shape
    cuts = _cuts(length)
    outs = []
    state_XKV = state_YKV
    for cut in cuts:
        chunk = _Chunk(qk_YG2LK, v_YGLV, g_YGL, b_YGL, cut, state_XKV)
        outs.append(chunk.out())
        state_XKV = chunk.next_state() if final or cut is not cuts[-1] else None
    out_XLV = outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)
    return out_XLV.view(states, rows, length, -1), None if state_XKV is None else state_XKV.view(
        states, rows, *state_XKV.shape[1:]
    )


def delta_rule_backward(
    grad_YGLV: Tensor,
    grad_state_YGKV: Tensor | None,
    qk_YG2LK: Tensor,
    v_YGLV: Tensor,
    g_YGL: Tensor,
    b_YGL: Tensor,
    state_YKV: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """d loss / d queries and keys, v, g, b and the given state (summed over the rows that continue it).

    `grad_YGLV` is d loss / d output and `grad_state_YGKV` d loss / d last states, None where nothing depends on these.
    """
    _, _, _, length, key_size = qk_YG2LK.shape
    cuts = _cuts(length)
    chunks = []
    state_XKV = state_YKV
    for cut in cuts:
        chunks.append(_Chunk(qk_YG2LK, v_YGLV, g_YGL, b_YGL, cut, state_XKV))
        state_XKV = chunks[-1].next_state() if cut is not cuts[-1] else None
    grad_XKV = None if grad_state_YGKV is None else grad_state_YGKV.reshape(-1, key_size, v_YGLV.shape[-1])
    parts = []
    while chunks:
        cut = cuts[len(chunks) - 1]
        *part, grad_XKV = chunks.pop().backward(_rows(grad_YGLV, cut), grad_XKV)
        parts.append(part)
    parts.reverse()
    d_qk, d_v, d_g, d_b = (
        (one[0] if len(one) == 1 else torch.cat(one, dim=axis))
        for one, axis in zip(zip(*parts, strict=True), (2, 1, 1, 1), strict=True)
    )
    return d_qk.view(qk_YG2LK.shape), d_v.view(v_YGLV.shape), d_g.view(g_YGL.shape), d_b.view(b_YGL.shape), grad_XKV


def _cuts(length: int) -> list[slice]:
    size = -(-length // max(1, -(-length // CHUNK)))
    return [slice(at, min(at + size, length)) for at in range(0, length, size)]


def _rows(x_YGL: Tensor, cut: slice) -> Tensor:
    """[Y, G, L, ...] as [X, C, ...]."""
    return x_YGL.flatten(0, 1)[:, cut]


def _exp(x: Tensor) -> Tensor:
    """e^x in the memory of x, 0 for what counts as forgotten."""
    return functional.threshold(x, _FORGOTTEN, -torch.inf, inplace=True).exp_()


class _Chunk:
    """One chunk of all rows, from the state before it: [Y, K, V], shared by G rows, or [X, K, V], or None for zeros."""

    def __init__(
        self, qk_YG2LK: Tensor, v_YGLV: Tensor, g_YGL: Tensor, b_YGL: Tensor, cut: slice, state: Tensor | None
    ) -> None:
        qk_X2CK = qk_YG2LK.flatten(0, 1)[:, :, cut].contiguous()
        many, _, length, size = qk_X2CK.shape
        self.state = state
        self.k_XCK = qk_X2CK[:, 1]
        self.qk_XNK = qk_X2CK.view(many, 2 * length, size)
        self.b_XC1 = _rows(b_YGL, cut)[:, :, None]
        c_XC = _rows(g_YGL, cut).cumsum(dim=1)
        # Above the diagonal the exponential may overflow; what is there is dropped, not multiplied by 0.
        self.decay_X1CC = _exp(c_XC[:, :, None] - c_XC[:, None, :]).tril_()[:, None]
        self.grown_XC1 = _exp(c_XC)[:, :, None]
        self.left_XC1 = self.decay_X1CC[:, 0, -1, :, None]  # e^(c_C - c)
        self.overlap_X2CC = torch.bmm(self.qk_XNK, self.k_XCK.mT).view(many, 2, length, length)
        weights_X2CC = self.overlap_X2CC * self.decay_X1CC
        self.m_XCC = weights_X2CC[:, 0]
        self.a_XCC = weights_X2CC[:, 1].mul_(self.b_XC1)  # on and above the diagonal never read
        self.read_X2CV: Tensor | None = None
        self.error_XCV = _rows(v_YGLV, cut)
        if state is not None:
            read = torch.bmm(self.qk_XNK.reshape(len(state), -1, size), state)
            self.read_X2CV = read.view(many, 2, length, -1)
            self.error_XCV = torch.addcmul(self.error_XCV, self.grown_XC1, self.read_X2CV[:, 1], value=-1)
        self.u_XCV = torch.linalg.solve_triangular(self.a_XCC, self.error_XCV * self.b_XC1, upper=False, unitriangular=True)

    def out(self) -> Tensor:
        """Outputs [X, C, V]."""
        out_XCV = torch.bmm(self.m_XCC, self.u_XCV)
        return out_XCV if self.read_X2CV is None else out_XCV.addcmul_(self.grown_XC1, self.read_X2CV[:, 0])

    def next_state(self) -> Tensor:
        """The states after the chunk, [X, K, V]."""
        written_XKV = torch.bmm((self.k_XCK * self.left_XC1).mT, self.u_XCV)
        if self.state is None:
            return written_XKV
        by_state = written_XKV.view(len(self.state), -1, *self.state.shape[1:])
        by_state.addcmul_(self.state[:, None], self._whole_decay())
        return written_XKV

    def _whole_decay(self) -> Tensor:
        """e^(c_C) [states, rows of each, 1, 1]."""
        assert self.state is not None
        return self.grown_XC1[:, -1].view(len(self.state), -1, 1, 1)

    def backward(self, grad_XCV: Tensor, grad_XKV: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """d loss / d queries and keys [X, 2, C, K], v [X, C, V], g and b [X, C] and the state before, as that is shaped.

        Given d loss / d outputs and, unless nothing depends on them, d loss / d the states after the chunk.
        """
        many, length, size = self.k_XCK.shape
        state, u_XCV = self.state, self.u_XCV
        d_u_XCV = torch.bmm(self.m_XCC.mT, grad_XCV)
        if grad_XKV is not None:
            d_u_XCV.baddbmm_(self.k_XCK * self.left_XC1, grad_XKV)
        d_w_XCV = torch.linalg.solve_triangular(self.a_XCC.mT, d_u_XCV, upper=True, unitriangular=True)
        d_v_XCV = d_w_XCV * self.b_XC1
        d_b_XC = torch.linalg.vecdot(d_w_XCV, self.error_XCV)

        # Products within the chunk: d M = lower (grad u'), d A = -strictly lower (d w u').
        d_weights = torch.empty(many, 2, length, length, device=u_XCV.device)
        torch.bmm(grad_XCV, u_XCV.mT, out=d_weights[:, 0])
        torch.bmm(d_w_XCV, u_XCV.mT, out=d_weights[:, 1])
        d_weights.mul_(self.decay_X1CC)
        d_weights[:, 1].tril_(-1).neg_()
        # The diagonal does not decay; its two shares of d c would cancel, but only to rounding.
        through_g = (d_weights * self.overlap_X2CC).tril_(-1)
        d_b_XC += through_g[:, 1].sum(dim=2)
        d_weights[:, 1].mul_(self.b_XC1)
        through_g[:, 1].mul_(self.b_XC1)
        d_c_XC = through_g.sum(dim=(1, 3)) - through_g.sum(dim=(1, 2))
        d_both = d_weights.view(many, 2 * length, length)
        d_qk_XNK = torch.bmm(d_both, self.k_XCK)
        d_qk_X2CK = d_qk_XNK.view(many, 2, length, size)
        d_k_XCK = d_qk_X2CK[:, 1]
        d_k_XCK += torch.bmm(d_both.mT, self.qk_XNK)

        d_state = None
        if state is not None and self.read_X2CV is not None:
            # What was read from the state: q e^c S in the output, -k e^c S in the error.
            d_read_X2CV = torch.stack([grad_XCV, d_v_XCV.neg()], dim=1).mul_(self.grown_XC1[:, None])
            d_c_XC += torch.linalg.vecdot(d_read_X2CV, self.read_X2CV).sum(dim=1)
            flat = d_read_X2CV.view(len(state), -1, state.shape[2])
            d_qk_XNK.view(len(state), -1, size).baddbmm_(flat, state.mT)
            d_state = torch.bmm(self.qk_XNK.view(len(state), -1, size).mT, flat)
        if grad_XKV is not None:
            # What was written into the state after the chunk, and what was left of the one before.
            d_left_XCK = torch.bmm(u_XCV, grad_XKV.mT).mul_(self.left_XC1)
            d_k_XCK += d_left_XCK
            t_XC = torch.linalg.vecdot(self.k_XCK, d_left_XCK)
            d_c_XC -= t_XC
            d_c_XC[:, -1] += t_XC.sum(dim=1)
            if state is not None and d_state is not None:
                decayed = grad_XKV.view(len(state), -1, *state.shape[1:]) * self._whole_decay()
                d_c_XC[:, -1] += (decayed * state[:, None]).sum(dim=(2, 3)).view(-1)
                d_state += decayed.sum(dim=1)
        d_g_XC = d_c_XC.flip(1).cumsum(dim=1).flip(1)
        return d_qk_X2CK, d_v_XCV, d_g_XC, d_b_XC, d_state
