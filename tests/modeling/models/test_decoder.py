"""The written-out decoder against transformers' own forward and autograd, family by family; who keeps their code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmclick.config.methods import GrpoMethod
from llmclick.config.schema import AdapterSpec, RewardSpec
from llmclick.interfaces import Request
from llmclick.modeling.llm.compute import Precision
from llmclick.modeling.llm.methods.grpo import Grpo
from llmclick.modeling.llm.models import attention, decoder, head, products, projection
from llmclick.modeling.llm.models.adapters import attach
from llmclick.modeling.llm.models.decoder import Decoder, why_not
from llmclick.modeling.llm.models.layout import Group, Span
from llmclick.modeling.llm.sampling.local import LocalSampler
from llmclick.modeling.llm.training import policy as policy_module
from llmclick.modeling.llm.training.batch import SampledBatch
from llmclick.modeling.llm.training.logprobs import logprobs_with_gradient
from llmclick.modeling.llm.training.policy import Policy
from llmclick.modeling.llm.training.step import Objective, accumulate_gradient
from tests.sampling import how
from tests.tiny import load_tiny, tiny_dense, tiny_family, tiny_hybrid

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_5": {"hybrid": True, "seed": 1},
    "qwen3_5-untied": {"hybrid": True, "seed": 3, "tie": False},
    "llama": {},
    "llama-untied": {"tie": False},
    "llama-biases": {"config": {"attention_bias": True, "mlp_bias": True}},
    "llama-yarn": {"config": {"rope_parameters": YARN}},
    "llama-one-head": {"config": {"num_key_value_heads": 4, "head_dim": 12}},
    "mistral": {"style": "mistral", "tie": False},
    "qwen2": {"style": "qwen2"},
    "qwen3": {"style": "qwen3"},
    "qwen3-untied": {"style": "qwen3", "tie": False},
}

GROUPS = [(5, (3, 1, 6)), (9, (4,)), (3, ()), (1, (2, 2))]
"""(tokens of a prompt, tokens of its rows)."""


@pytest.fixture(params=FAMILIES, scope="module")
def family_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_family(tmp_path_factory.mktemp("family"), **FAMILIES[request.param])


class Packed:
    """GROUPS laid out one after another, and the same as sequences for a model that knows nothing of groups."""

    def __init__(self, decoder: Decoder) -> None:
        generator = np.random.default_rng(7)
        ids: list[int] = []
        groups = []
        self.sequences: list[list[int]] = []  # places of each sequence's tokens: a prompt alone, or behind it a row
        for length, rows in GROUPS:
            start = len(ids)
            prompt = list(range(start, start + length))
            ids += generator.integers(3, 300, size=length).tolist()
            spans = []
            self.sequences.append(prompt)
            for row in rows:
                spans.append(Span(len(ids), row))
                self.sequences.append([*prompt, *range(len(ids), len(ids) + row)])
                ids += generator.integers(3, 300, size=row).tolist()
            groups.append(Group(Span(start, length), spans))
        self.ids = torch.tensor(ids)
        self.layout = decoder.layout(groups)
        # Prompts are scored too, in an order of its own and not everywhere; every sequence's last token is.
        self.scored = torch.tensor([place for place in reversed(range(len(ids))) if place % 4])
        draws = torch.Generator().manual_seed(3)
        self.targets = torch.randint(3, 300, (len(self.scored),), generator=draws)
        self.slope = torch.randn(len(self.scored), generator=draws)

    def plain(self, module: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """transformers' hidden states [N, D] and logits [N, V], each token's from a forward of its own sequence."""
        hidden: list[Any] = [None] * len(self.ids)
        logits: list[Any] = [None] * len(self.ids)
        for places in self.sequences:
            ids = self.ids[places][None]
            states = module.get_decoder()(input_ids=ids).last_hidden_state[0]
            values = module(input_ids=ids).logits[0]
            for at, place in enumerate(places):
                if hidden[place] is None:
                    hidden[place], logits[place] = states[at], values[at]
        return torch.stack(hidden), torch.stack(logits)


def adapted(folder: Path, targets: Any) -> tuple[Any, Any]:
    """The model, with a random adapter on `targets` unless that is None."""
    model = load_tiny(folder)
    if targets is None:
        return model, None
    adapter = attach(model, AdapterSpec(r=4, alpha=8.0, targets=targets), 3)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model, adapter


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    assert float(other.norm()) > 0
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("whole", [256, 0], ids=["square", "blocks"])
@pytest.mark.parametrize("targets", [None, "auto", ["q_proj", "v_proj", "up_proj"]], ids=["plain", "lora", "partial-lora"])
def test_states_and_gradients_are_transformers(
    monkeypatch: pytest.MonkeyPatch, family_folder: Path, targets: Any, whole: int
) -> None:
    """Hidden states, and the gradient of each parameter, to a relative L2 distance of 1e-5; twice, over a stale gradient.

    The reference is another copy of the model, which no written-out decoder has touched.
    """
    monkeypatch.setattr(attention, "WHOLE_TOKENS", whole)
    policy = Policy(*_ordered(adapted(family_folder, targets)))
    assert policy.decoder is not None, policy.general
    reference, _ = adapted(family_folder, targets)
    packed = Packed(policy.decoder)
    hidden_ND, logits_NV = packed.plain(reference.module)
    logits_NV = logits_NV.index_fill(1, torch.tensor(reference.suppressed_ids, dtype=torch.int64), -torch.inf)
    logprobs_N = logits_NV[packed.scored].log_softmax(dim=1).gather(1, packed.targets[:, None])[:, 0]
    parameters = {name: p for name, p in reference.module.named_parameters() if p.requires_grad}
    expected = dict(
        zip(parameters, torch.autograd.grad((logprobs_N * packed.slope).sum(), [*parameters.values()]), strict=True)
    )
    for _ in range(2):
        policy.zero_gradients()
        ours_MD, tape = policy.decoder.record(packed.ids, packed.layout, packed.scored)
        assert distance(ours_MD, hidden_ND[packed.scored]) < 1e-5
        ours_N, grad_MD = logprobs_with_gradient(policy.head, ours_MD, packed.targets, 1.0, lambda span, _: packed.slope[span])
        assert torch.allclose(ours_N, logprobs_N, atol=1e-5)
        policy.decoder.backward(tape, grad_MD)
        policy.finish_gradients()
        gradients = {name: parameter.grad for name, parameter in policy.trainable.items()}
        assert gradients.keys() == expected.keys()
        far = {name: distance(gradients[name], expected[name]) for name in expected}  # type: ignore[arg-type]
        assert max(far.values()) < 1e-5, far


def _ordered(model_and_adapter: tuple[Any, Any], precision: Precision = "fp32") -> tuple[Any, Precision, Any]:
    model, adapter = model_and_adapter
    return model, precision, adapter


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_adapter_off_is_the_base_model(family_folder: Path, precision: Precision) -> None:
    """With the adapter disabled the states are those of a decoder without one, bit for bit; with it on they are not."""
    policy = Policy(*_ordered(adapted(family_folder, "auto"), precision))
    base = Policy(load_tiny(family_folder), precision)
    assert policy.decoder is not None
    assert base.decoder is not None
    packed = Packed(base.decoder)
    inputs = (packed.ids, packed.layout, packed.scored)
    with policy.reference():
        off = policy.decoder.forward(*inputs)
    assert torch.equal(off, base.decoder.forward(*inputs))
    assert torch.equal(off, base.decoder.record(*inputs)[0])
    assert distance(policy.decoder.forward(*inputs), off) > 0.01


def test_parameters_keep_their_names_and_values(family_folder: Path) -> None:
    """Joining the layers changes neither a name nor a number of the state dict."""
    model, untouched = load_tiny(family_folder), load_tiny(family_folder)
    Decoder(model, torch.float32)
    before = untouched.state_dict()
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"style": "gemma2"}, "gemma2 is not among llama, mistral, qwen2, qwen3, qwen3_5_text"),
        ({"style": "mistral", "config": {"sliding_window": 16}}, "it attends in a sliding window"),
        (
            {"style": "qwen2", "config": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}},
            "it attends in a sliding window",
        ),
        ({"config": {"hidden_act": "gelu"}}, "its activation is gelu"),
        (
            {"config": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}},
            "its rotary positions are dynamic",
        ),
    ],
)
def test_other_shapes_keep_transformers_code(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    """Each for its reason, which the policy passes on."""
    model = load_tiny(tiny_dense(tmp_path, **settings))
    assert why_not(model) == reason
    policy = Policy(model, "fp32")
    assert (policy.general, policy.decoder, policy.sampler_model) == (reason, None, model)


def test_a_convolution_of_one_token_keeps_transformers_code(tmp_path: Path) -> None:
    """There is nothing before a token to keep."""
    model = load_tiny(tiny_hybrid(tmp_path, text={"linear_conv_kernel_dim": 1}))
    assert why_not(model) == "its convolution sees one token"
    assert Policy(model, "fp32").decoder is None


def test_layers_that_train_in_part_keep_transformers_code(dense_folder: Path) -> None:
    """One weight of q, k and v is frozen: they share no gradient."""
    model = load_tiny(dense_folder)
    model.module.get_decoder().layers[1].self_attn.k_proj.weight.requires_grad_(False)
    assert str(why_not(model)).startswith("some of its linear layers train and others that share their input do not")


def test_a_family_that_computes_something_else_is_found_out(dense_folder: Path) -> None:
    """A decoder layer whose output transformers doubles: two sequences through both codes show it."""
    model = load_tiny(dense_folder)
    layer = model.module.get_decoder().layers[0]
    layer.mlp.register_forward_hook(lambda _, __, output: 2 * output)
    assert why_not(model) == "the written-out decoder gives other numbers"


# ---- bf16


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough for bf16 to be noise and no more."""
    return tiny_dense(tmp_path_factory.mktemp("wide"), style="qwen3", hidden=64, scale=0.1)


def stepped(folder: Path, precision: Precision, written_out: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and gradient of one step on completions that the model in fp32 sampled, each as one vector."""
    generator = np.random.default_rng(5)
    asked = [Request(f"row-{k}", generator.integers(3, 90, size=4 + 9 * k).tolist()) for k in range(3)]
    groups = LocalSampler(load_tiny(folder), seed=2).sample(asked, how(new=12))
    completions = [completion for group in groups for completion in group]
    none = np.zeros(len(completions), dtype=bool)
    batch = SampledBatch([list(request.ids) for request in asked], completions, 4, generator.normal(size=len(none)), none, none)
    policy = Policy(load_tiny(folder), precision, written_out=written_out)
    objective = Objective(method=Grpo(GrpoMethod(reward=(RewardSpec(name="exact_match"),))), temperature=1.0, max_new_tokens=12)
    for _ in range(2):
        policy.zero_gradients()
        accumulate_gradient(policy, batch, objective, batch.denominators(12), first=True)
    gradients = [parameter.grad.reshape(-1) for parameter in policy.trainable.values()]  # type: ignore[union-attr]
    return torch.cat([batch.old[row] for row in range(len(none))]), torch.cat(gradients)


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0))


@pytest.mark.usefixtures("bf16_products")
def test_bf16_is_close_to_transformers_bf16_and_to_fp32(wide_folder: Path) -> None:
    """Log-probabilities of both codes agree to 0.02 nats in the mean (0.006 is measured), and so does fp32.

    The gradient points where that of fp32 points: cosine 0.999 (0.9998 is measured, for transformers' code as well).
    """
    exact, exact_gradient = stepped(wide_folder, "fp32")
    ours, gradient = stepped(wide_folder, "bf16")
    theirs, their_gradient = stepped(wide_folder, "bf16", written_out=False)
    assert float((ours - theirs).abs().mean()) < 0.02
    assert 1e-4 < float((ours - exact).abs().mean()) < 0.02
    assert cosine(gradient, exact_gradient) > 0.999
    assert cosine(their_gradient, exact_gradient) > 0.999
    assert float(gradient.norm() / exact_gradient.norm()) == pytest.approx(1, abs=0.02)


@pytest.mark.usefixtures("bf16_products")
def test_bf16_of_a_large_model(wide_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is too large to keep plain copies converts its weights when they are used: the same numbers, as near."""
    kept, gradient = stepped(wide_folder, "bf16")
    monkeypatch.setattr(decoder, "keeps_plain", lambda decoder: False)
    monkeypatch.setattr(policy_module, "keeps_plain", lambda decoder: False)
    monkeypatch.setattr(head, "_KEPT", 0)
    converted, other_gradient = stepped(wide_folder, "bf16")
    assert float((kept - converted).abs().mean()) < 0.005
    assert cosine(gradient, other_gradient) > 0.9999


@pytest.mark.parametrize("kind", ["with a unit for bf16", "with a unit and no layout for it", "without a unit"])
@pytest.mark.parametrize("written_out", [True, False])
def test_copies_that_make_room(wide_folder: Path, monkeypatch: pytest.MonkeyPatch, written_out: bool, kind: str) -> None:
    """A training pass finds no copies of a large head, and of large layers only the written-out decoder's in bf16.

    Sampling finds a copy of every matrix: where torch has no layout for the unit, a plain one.
    """
    emulated = kind == "without a unit"
    monkeypatch.setattr(products, "emulates_bf16", lambda device: emulated)
    if kind == "with a unit and no layout for it":
        for module in (projection, head):
            monkeypatch.setattr(module, "packed", lambda weight_MK: None)
    for module in (decoder, policy_module, projection):
        monkeypatch.setattr(module, "keeps_plain", lambda decoder: False)
    monkeypatch.setattr(head, "_KEPT", 0)
    policy = Policy(load_tiny(wide_folder), "bf16", written_out=written_out)

    def copies() -> list[bool]:
        return [part._packed is not None or part._short_MK is not None for part in policy._projections]

    for _ in range(2):
        assert all(copies())
        assert policy.head._ready
        assert all(copy is not None for copy in policy.head._ready)
        policy.for_training()
        assert set(copies()) == {written_out and not emulated}
        assert not policy.head._ready
        policy.refresh()
