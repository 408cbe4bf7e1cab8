"""hidden(), logits() and caches against transformers' plain forward, for every family."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llmclick.errors import InputError
from llmclick.modeling.llm.models.hybrid import delta_net_layers
from tests.tiny import load_tiny, source_of, tiny_dense

LENGTHS = (1, 2, 63, 64, 65, 150)


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma2", "hybrid"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param == "hybrid":
        return load_tiny(request.getfixturevalue("hybrid_folder"))
    return load_tiny(tiny_dense(tmp_path_factory.mktemp(request.param), style=request.param, seed=3))


def sequence(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 290, (length,), generator=torch.Generator().manual_seed(1000 * seed + length)).tolist()


def plain_logits(model: Any, ids: list[int]) -> Tensor:
    """transformers' own forward over one unpadded sequence, without cache, mask or positions."""
    logits: Tensor = model.module(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def left_padded(sequences: list[list[int]], pad: int) -> tuple[Tensor, Tensor, Tensor]:
    longest = max(map(len, sequences))
    ids = torch.tensor([[pad] * (longest - len(s)) + s for s in sequences])
    mask = torch.tensor([[0] * (longest - len(s)) + [1] * len(s) for s in sequences])
    return ids, (mask.cumsum(1) - 1).clamp(min=0), mask


def right_padded(sequences: list[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    longest = max(map(len, sequences))
    ids = torch.tensor([s + [pad] * (longest - len(s)) for s in sequences])
    return ids, torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sequences])


def close(ours: Tensor, theirs: Tensor, bound: float = 1e-5) -> None:
    difference = (ours.log_softmax(-1) - theirs.log_softmax(-1)).detach().abs().max()
    assert float(difference) < bound, float(difference)


@torch.no_grad()
def test_hidden_and_head_are_the_models_forward(model: Any) -> None:
    """hidden() followed by logits() gives exactly the logits of transformers' forward, soft cap included.

    Exactly for the same rows: the same products of the same shapes. A head of the last 3 rows is another product, which a
    library may sum in another order: its sums of K terms are as near as two float32 sums of these terms must be. Each lies
    within K 2^-24 of the terms' magnitudes, summed, from the exact one (Higham, Accuracy and Stability of Numerical Algorithms,
    3.1); the soft cap's slope is at most 1, and its own steps add four roundings of the result on either side.
    """
    ids = sequence(20)
    ours = model.logits(model.hidden(torch.tensor([ids]), torch.arange(20)[None]))[0]
    theirs = plain_logits(model, ids)
    assert torch.equal(ours, theirs)
    last = model.hidden(torch.tensor([ids]), torch.arange(20)[None], keep=slice(-3, None))
    magnitudes = last[0].abs() @ model.head_weight.abs().T
    bound = 2 * last.shape[-1] * 2**-24 * magnitudes + 8 * 2**-24 * theirs[-3:].abs()
    assert bool(((model.logits(last)[0] - theirs[-3:]).abs() <= bound).all())
    assert float(bound.max()) < 1e-4


@torch.no_grad()
def test_left_padding_changes_nothing(model: Any) -> None:
    """Log-probs of prompts of 1, 2, 63, 64, 65 and 150 tokens in one left-padded batch equal those of each alone, to 1e-5."""
    sequences = [sequence(length) for length in LENGTHS]
    ids, positions, mask = left_padded(sequences, model.pad_id)
    logits = model.logits(model.hidden(ids, positions, mask, model.new_cache(training=False)))
    for row, alone in enumerate(sequences):
        close(logits[row, -len(alone) :], plain_logits(model, alone))


@torch.no_grad()
def test_one_left_padded_row_alone_keeps_its_mask(model: Any) -> None:
    """A batch of one left-padded row gives the logits of the row without padding: its padding does not leak into the state."""
    ids = sequence(10)
    padded = torch.tensor([[model.pad_id] * 7 + ids])
    mask = torch.tensor([[0] * 7 + [1] * 10])
    logits = model.logits(model.hidden(padded, (mask.cumsum(1) - 1).clamp(min=0), mask))
    close(logits[0, 7:], plain_logits(model, ids))


@torch.no_grad()
def test_completions_after_a_fanned_out_prompt_cache(model: Any) -> None:
    """Prompts once, caches fanned out to their completions, right-padded completions: the plain forward's log-probs to 1e-5."""
    prompts = [sequence(length, 1) for length in (1, 5, 64, 70)]
    completions = [sequence(length, 2) for length in (1, 2, 9, 64, 65, 33, 3, 12)]
    logits = continued(model, prompts, completions, group=2)
    for row, completion in enumerate(completions):
        prompt = prompts[row // 2]
        close(logits[row, : len(completion)], plain_logits(model, prompt + completion)[len(prompt) :])


@torch.no_grad()
def test_completions_of_one_token(model: Any) -> None:
    """A batch in which every completion is one token long works and equals the plain forward."""
    prompts, completions = [sequence(4), sequence(9)], [sequence(1, 5), sequence(1, 6)]
    logits = continued(model, prompts, completions, group=1)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        close(logits[row, :1], plain_logits(model, prompt + completion)[-1:])


def continued(model: Any, prompts: list[list[int]], completions: list[list[int]], group: int, training: bool = False) -> Tensor:
    """Logits at the completions' own positions, [B, T, V]."""
    ids, positions, mask = left_padded(prompts, model.pad_id)
    cache = model.new_cache(training=training)
    model.hidden(ids, positions, mask, cache)
    rows = torch.arange(len(prompts)).repeat_interleave(group)
    cache = model.select(cache, rows)
    new_ids, new_mask = right_padded(completions, model.pad_id)
    new_positions = mask[rows].sum(1, keepdim=True) + torch.arange(new_ids.shape[1])
    hidden = model.hidden(new_ids, new_positions, torch.cat([mask[rows], new_mask], 1), cache)
    logits: Tensor = model.logits(hidden)
    return logits


@pytest.mark.parametrize("lengths", [(1, 2, 9, 65), (1, 1, 1, 1)])
def test_gradients_through_the_shared_prompt(model: Any, lengths: tuple[int, ...]) -> None:
    """The gradient of all weights through one shared prompt forward equals that of plain full forwards, relative L2 1e-5."""
    prompts = [sequence(6, 1), sequence(66, 1)]
    completions = [sequence(length, 2) for length in lengths]

    def gradient(shared: bool) -> Tensor:
        model.module.zero_grad(set_to_none=True)
        if shared:
            logits = continued(model, prompts, completions, group=2, training=True)
            parts = [logits[row, : len(c)] for row, c in enumerate(completions)]
        else:
            parts = [plain_logits(model, prompts[row // 2] + c)[-len(c) :] for row, c in enumerate(completions)]
        sum(part.log_softmax(-1)[:, 7].sum() for part in parts).backward()  # type: ignore[union-attr]
        return torch.cat([p.grad.flatten() for p in model.module.parameters() if p.grad is not None])

    shared, plain = gradient(True), gradient(False)
    assert float(plain.norm()) > 1
    assert float((shared - plain).norm() / plain.norm()) < 1e-5


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("fast", [True, False])
def test_decoding_with_rows_dropped(model: Any, fast: bool, inference: bool) -> None:
    """Token by token through the cache, rows dropped on the way, each step's log-probs equal the full forward's to 1e-5."""
    if model.family == "hybrid":
        for layer in delta_net_layers(model.module):
            layer.fast_step = fast
    sequences = [sequence(length, 4) for length in (30, 40, 67)]
    starts = (10, 20, 47)
    ids, positions, mask = left_padded([s[:n] for s, n in zip(sequences, starts, strict=True)], model.pad_id)
    with torch.inference_mode() if inference else torch.no_grad():
        cache = model.new_cache(training=False)
        model.hidden(ids, positions, mask, cache)
        live = torch.tensor([2, 0, 1])
        cache, mask = model.select(cache, live), mask[live]
        for step in range(15):
            if step == 7:
                cache, mask, live = model.select(cache, torch.tensor([0, 2])), mask[[0, 2]], live[[0, 2]]
            where = [starts[row] + step for row in live]
            tokens = torch.tensor([[sequences[row][at]] for row, at in zip(live, where, strict=True)])
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            logits = model.logits(model.hidden(tokens, torch.tensor(where)[:, None], mask, cache))
            if step in (0, 6, 7, 14):
                for i, row in enumerate(live):
                    close(logits[i], plain_logits(model, sequences[row][: where[i] + 1])[-1:])
    if model.family == "hybrid":
        for layer in delta_net_layers(model.module):
            layer.fast_step = True


@torch.no_grad()
def test_a_deep_copy_runs_on_its_own_weights(model: Any) -> None:
    """A deep copy of the module (the sampler's bf16 copy is made from one) uses its own tensors in every path."""
    other = model.with_module(copy.deepcopy(model.module))
    for parameter in model.module.parameters():
        parameter.neg_()
    try:
        ids, positions = torch.tensor([sequence(5)]), torch.arange(5)[None]
        cache = other.new_cache(training=False)
        other.hidden(ids, positions, None, cache)
        step = other.hidden(torch.tensor([[9]]), torch.tensor([[5]]), None, cache)
    finally:
        for parameter in model.module.parameters():
            parameter.neg_()
    close(model.logits(step)[0], plain_logits(model, [*sequence(5), 9])[-1:])


def test_greedy_generate_of_transformers_agrees(any_folder: Path) -> None:
    """transformers' own generate, with its own cache, runs on the loaded module and finds the plain forward's tokens.

    A token whose logit is the largest to 1e-4: one row through a cache is another product than all rows without.
    """
    model = load_tiny(any_folder)
    ids = sequence(12)
    out = model.module.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False, eos_token_id=None)[0].tolist()
    assert len(out) == 18
    for step in range(6):
        logits = plain_logits(model, out[: 12 + step])[-1]
        assert float(logits.max() - logits[out[12 + step]]) < 1e-4


def test_stop_ids_are_the_union(dense_folder: Path, tmp_path: Path) -> None:
    """Tokenizer, generation config, model config and text config each add their end ids; ids outside the head do not count."""
    folder = tmp_path / "model"
    shutil.copytree(dense_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [5, 999_999]}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 0]}))
    model = load_tiny(folder)
    assert model.stop_ids == (0, 2, 5, 7)
    assert model.pad_id == 0


def test_hybrid_ids(tmp_path: Path) -> None:
    """Published ids: stop set {248046, 248044}, pad 248044; image, video, vision tokens and padded rows suppressed."""
    from tests.tiny import tiny_hybrid

    model = load_tiny(tiny_hybrid(tmp_path / "real", real_ids=True, hidden=8))
    assert model.stop_ids == (248044, 248046)
    assert model.pad_id == 248044
    assert {248053, 248054, 248055, 248056, 248057} <= set(model.suppressed_ids)
    assert set(range(248077, 248320)) <= set(model.suppressed_ids)
    assert not {248044, 248045, 248046, 248058, 248068, 248069} & set(model.suppressed_ids)
    assert model.vocab_size == 248320


def test_a_text_model_suppresses_nothing(dense_folder: Path) -> None:
    """A dense text model without padded rows has no suppressed ids."""
    assert load_tiny(dense_folder).suppressed_ids == ()


def test_hybrid_loads_text_only_in_fp32(hybrid_folder: Path) -> None:
    """The vision tower and the MTP head are not in memory, and every weight is fp32 although the file is bf16."""
    model = load_tiny(hybrid_folder)
    names = dict(model.module.named_parameters())
    assert not [name for name in names if "visual" in name or "mtp" in name]
    assert {parameter.dtype for parameter in names.values()} == {torch.float32}
    assert model.tied


def test_thinking_modes_of_the_template(hybrid_folder: Path) -> None:
    """The tiny hybrid's template answers without thinking unless told to think, like the published 0.8B."""
    from llmclick.modeling.llm.models.base import load_tokenizer

    tokenizer = load_tokenizer(source_of(hybrid_folder))
    messages = [{"role": "user", "content": "2?"}]

    def text(**options: Any) -> str:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options))

    assert text().endswith("<think>\n\n</think>\n\n")
    assert text() == text(enable_thinking=False)
    assert text(enable_thinking=True).endswith("assistant\n<think>\n")


def test_dropout_is_off_everywhere(tmp_path: Path, dense_folder: Path) -> None:
    """A checkpoint that asks for attention dropout computes the same twice, also in training mode."""
    folder = tmp_path / "model"
    shutil.copytree(dense_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.5}))
    model = load_tiny(folder)
    model.module.train()
    first, second = (plain_logits(model, sequence(20)) for _ in range(2))
    assert torch.equal(first, second)
    close(first, plain_logits(load_tiny(dense_folder), sequence(20)))


def test_missing_tensors_are_refused(tmp_path: Path, dense_folder: Path) -> None:
    """A checkpoint that lacks a tensor is an error naming it; nothing is filled with random numbers."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(dense_folder, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        load_tiny(folder)


def test_state_dict_and_load_tensors(any_folder: Path) -> None:
    """load_tensors of another model's state_dict makes the two models one function."""
    first, second = load_tiny(any_folder), load_tiny(any_folder)
    with torch.no_grad():
        for parameter in first.module.parameters():
            parameter.add_(0.01)
    assert not torch.equal(plain_logits(first, sequence(9)), plain_logits(second, sequence(9)))
    second.load_tensors(first.state_dict())
    assert torch.equal(plain_logits(first, sequence(9)), plain_logits(second, sequence(9)))
    with pytest.raises(KeyError, match="no tensor"):
        second.load_tensors({"nonsense": torch.zeros(1)})
