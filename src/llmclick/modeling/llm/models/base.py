"""A language model as sampling and training see it: hidden states without the head, the head, caches, ids.

Shapes: B sequences, T new positions, S positions with those already cached, V vocabulary, D hidden size.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn

from llmclick.errors import InputError, Problem
from llmclick.modeling.llm.models.linear import few_rows_linear, speed_up_linears
from llmclick.modeling.llm.models.source import Source, resolve_source
from llmclick.modeling.llm.models.stops import configs_of, find_stops, numbers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from llmclick.modeling.llm.models.head import EmbeddingGradient, Head

__all__ = ["LanguageModel", "Source", "load_language_model", "load_tokenizer", "resolve_source"]

_MEDIA_KEYS = re.compile(
    r"(image|video|audio|vision|boi|eoi|boa|eoa).*token_(id|index)$|^(image|video|audio|vision)_token_(id|index)$"
)
_MEDIA_TOKENS = re.compile(r"<\|?((vision|image|video|audio|tts)_(start|end|pad|bos|eos|soft_token)|tts_text_\w+)\|?>")


class LanguageModel:
    """A causal text model in evaluation mode, with dropout off and nothing of its generation settings but the stop ids.

    `module` is the transformers model, `stop_ids` what ends a completion (`stops`), `suppressed_ids` the ids
    that are never sampled and not in any softmax (padded rows of the head; media tokens).
    """

    family = "transformer"

    def __init__(
        self,
        module: Any,
        source: Source,
        device: torch.device,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[int | str] = (),
    ) -> None:
        self.module = module
        self.source = source
        self.device = device
        self.adapter: Any = None  # adapters.Adapter, once one is attached
        self.head: Head | None = None  # what computes logits under autocast, once a policy trains the model
        self.embedding: EmbeddingGradient | None = None  # what gathers the embedding's gradient, likewise
        self.projected = False  # whether the linear layers compute by projections under autocast, likewise
        self.compute_dtype = next(self.module.parameters()).dtype  # of matrix products; a trainer under autocast lowers it
        silence_dropout(self.module)
        head = self.module.get_output_embeddings()
        self.vocab_size = int(head.weight.shape[0])
        self.stop_ids = find_stops(source, tokenizer, self.vocab_size, stop).ids
        self.pad_id = padding_id(source, tokenizer, self.vocab_size, self.stop_ids)
        self.suppressed_ids = suppressed_ids(source, tokenizer, self.vocab_size)

    def with_module(self, module: nn.Module) -> Self:
        """The same model around another module of the same shape, such as a copy in another precision."""
        other = copy.copy(self)
        other.module = module
        return other

    # ---- forward

    def hidden(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor,
        mask_BS: Tensor | None = None,
        cache: Any = None,
        keep: slice | None = None,
    ) -> Tensor:
        """Last hidden states [B, T, D] after the final norm, of the positions in `keep` (all of them by default).

        `mask_BS` is 1 for real tokens over the cached and the new positions: prompts are padded on the left, completions on the
        right. The head is never computed here.
        """
        decoder = self.module.get_decoder()
        if self.embedding is not None and torch.is_grad_enabled():
            inputs = {"inputs_embeds": self.embedding.embed(ids_BT)}
        elif self.projected and torch.is_grad_enabled():
            # A projection is in autograd's graph by its input alone: with a frozen embedding nothing else would put it there.
            embedded = self.module.get_input_embeddings()(ids_BT)
            inputs = {"inputs_embeds": embedded if embedded.requires_grad else embedded.requires_grad_()}
        else:
            inputs = {"input_ids": ids_BT}
        output = decoder(
            **inputs,
            attention_mask=mask_BS,
            position_ids=positions_BT,
            cache=cache,
            use_cache=cache is not None,
        )
        hidden_BTD: Tensor = output.last_hidden_state
        return hidden_BTD if keep is None else hidden_BTD[:, keep]

    def logits(self, hidden: Tensor, cache: Any = None) -> Tensor:
        """Logits [..., V] of hidden states [..., D], in the head's precision; `cache` as `widen` gave it, while decoding."""
        if self.head is not None and torch.is_autocast_enabled(self.device.type) and not torch.is_grad_enabled():
            return self.head.logits(hidden)
        return self.finish_logits(few_rows_linear(hidden, self.head_weight, self.head_bias))

    def finish_logits(self, logits: Tensor) -> Tensor:
        """What the family does to `hidden @ head_weight.T + head_bias`: scaling (Cohere, Granite), soft cap (Gemma)."""
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits

    @property
    def head_weight(self) -> Tensor:
        """[V, D]; the embedding itself where the two are tied."""
        weight: Tensor = self.module.get_output_embeddings().weight
        return weight

    @property
    def head_bias(self) -> Tensor | None:
        """[V], or None."""
        bias: Tensor | None = getattr(self.module.get_output_embeddings(), "bias", None)
        return bias

    @property
    def logit_scale(self) -> float:
        """Factor on the head's output."""
        config = self.module.config
        return float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)

    @property
    def softcap(self) -> float | None:
        """Bound of the soft cap on the logits, or None."""
        cap = getattr(self.module.config, "final_logit_softcapping", None)
        return None if cap is None else float(cap)

    @property
    def plain_head(self) -> bool:
        """Whether the logits are `hidden @ head_weight.T + head_bias` and nothing more."""
        return self.softcap is None and self.logit_scale == 1.0

    @property
    def tied(self) -> bool:
        """Whether head and embedding are one tensor."""
        return self.head_weight is self.module.get_input_embeddings().weight

    # ---- caches

    def new_cache(self, *, training: bool) -> Any:
        """An empty cache. With `training` gradients flow through it to the positions that filled it."""
        from transformers import DynamicCache

        return DynamicCache(config=self.module.config)

    def select(self, cache: Any, rows: Tensor) -> Any:
        """The cache with the rows `rows` (indices [N], repeats allowed), changed in place; gradients keep flowing."""
        cache.reorder_cache(rows)
        return cache

    def widen(self, cache: Any, rows: Tensor, room: int) -> Any:
        """Fan-out for decoding: the cache with each row repeated as `rows` says, e.g. [0, 0, 1, 1], and room for more tokens.

        A family whose layers are not all plain full attention keeps the cache that its own code makes.
        """
        from llmclick.modeling.llm.sampling.cache import preallocate

        wide = preallocate(cache, rows, room)
        return self.select(cache, rows) if wide is None else wide

    # ---- weights

    def state_dict(self) -> dict[str, Tensor]:
        """The text model's tensors under transformers' names, without an adapter's and without its wrapping."""
        plain = {}
        for name, tensor in self.module.state_dict().items():
            if ".lora_" not in name:
                plain[name.replace(".base_layer.", ".")] = tensor
        return plain

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies tensors over the model's own, in place. Raises KeyError for an unknown name, ValueError for another shape."""
        own = self.state_dict()
        if unknown := sorted(set(tensors) - set(own)):
            raise KeyError(f"the model has no tensor {unknown[0]!r}")
        with torch.no_grad():
            for name, tensor in tensors.items():
                if own[name].shape != tensor.shape:
                    raise ValueError(f"{name} has the shape {tuple(own[name].shape)}, not {tuple(tensor.shape)}")
                own[name].copy_(tensor)

    def lora_targets(self) -> list[str]:
        """Names of the linear layers that `training.adapter.targets: auto` adapts: every one inside the decoder."""
        names = {
            name.rpartition(".")[2]
            for name, module in self.module.get_decoder().named_modules()
            if isinstance(module, nn.Linear)
        }
        return sorted(names)


def load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """The model's tokenizer, padding on the left. Raises InputError if transformers cannot build it."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(source.folder), local_files_only=True, trust_remote_code=False, padding_side="left"
        )
    except Exception as error:  # the tokenizers library raises Exception itself
        raise InputError(
            _cannot(source, "its tokenizer cannot be loaded", error, "a folder with the model's own tokenizer files")
        ) from error
    return tokenizer


def load_language_model(
    source: Source,
    *,
    architecture: str = "auto",
    device: torch.device | str = "cpu",
    dtype: torch.dtype | Literal["auto"] = torch.float32,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop: Sequence[int | str] = (),
) -> LanguageModel:
    """Loads the text model of `source` with every weight in `dtype`; "auto" is the one the checkpoint names. `stop` is
    `method.stop`.

    Raises InputError if the checkpoint is no causal text model, lacks tensors, or contradicts `architecture`.
    """
    if architecture not in ("auto", source.family):
        raise InputError(
            Problem(
                where=str(source.folder),
                key="model.architecture",
                given=architecture,
                why=f"the checkpoint is a {source.family} (model_type {source.config().get('model_type')!r})",
                write=f"`architecture: {source.family}`, or leave the key out",
            )
        )
    tokenizer = tokenizer or load_tokenizer(source)
    # Quiet: the first forward of a hybrid on a CPU warns about kernels that exist for CUDA only.
    with _quiet_transformers():
        if source.family == "hybrid":
            from llmclick.modeling.llm.models.hybrid import HybridModel, load_hybrid

            module = load_hybrid(source, dtype).to(device)
            model: LanguageModel = HybridModel(module, source, torch.device(device), tokenizer, stop)
        else:
            from llmclick.modeling.llm.models.transformer import load_transformer

            module = load_transformer(source, dtype).to(device)
            model = LanguageModel(module, source, torch.device(device), tokenizer, stop)
        _check_vocabulary(model, tokenizer)
        _check_head(model)
        if torch.device(device).type == "cpu":
            speed_up_linears(model.module)
    return model


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    from transformers.utils import logging

    logging.disable_progress_bar()
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def load_checked(source: Source, load: Any, **options: Any) -> Any:
    """`load(folder, ...)` in the one way llmclick loads weights; a tensor that the checkpoint lacks is an error, not random."""
    try:
        module, report = load(
            str(source.folder),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
        if isinstance(error, RuntimeError) and "out of memory" in str(error).lower():
            raise
        raise InputError(
            _cannot(source, "transformers cannot load it as a causal language model", error, "a causal text model")
        ) from error
    lacking = sorted(report["missing_keys"])
    if lacking:
        raise InputError(
            _cannot(
                source,
                f"{len(lacking)} tensors of the model are not in the checkpoint, first {lacking[0]}",
                None,
                "the complete checkpoint",
            )
        )
    return module


def silence_dropout(module: Any) -> None:
    """Evaluation mode, every dropout probability 0: sampler, trainer and reference must be one function."""
    module.eval()
    for config in {
        id(config): config
        for config in (module.config, *(child.config for child in module.modules() if hasattr(child, "config")))
    }.values():
        for key in [
            key
            for key, value in vars(config).items()
            if ("dropout" in key or key.endswith("pdrop")) and isinstance(value, float)
        ]:
            setattr(config, key, 0.0)
    for child in module.modules():
        if isinstance(child, nn.Dropout):
            child.p = 0.0
        if isinstance(getattr(child, "attention_dropout", None), float):
            child.attention_dropout = 0.0


def padding_id(source: Source, tokenizer: PreTrainedTokenizerBase, vocab_size: int, stop_ids: tuple[int, ...]) -> int:
    """The id that fills up short rows: the tokenizer's, a config's, else a stop id, else 0."""
    pads = [
        *numbers(tokenizer.pad_token_id),
        *(number for config in configs_of(source) for number in numbers(config.get("pad_token_id"))),
        *stop_ids,
        0,
    ]
    return next(number for number in pads if 0 <= number < vocab_size)


def suppressed_ids(source: Source, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> tuple[int, ...]:
    """Rows of the head that no token belongs to, and in a multimodal checkpoint the tokens of images, video and sound."""
    vocabulary = tokenizer.get_vocab()
    suppressed = set(range(vocab_size)) - set(vocabulary.values())
    config = source.config()
    if any(key.endswith(("vision_config", "audio_config")) for key in config):
        suppressed |= {number for key, value in config.items() if _MEDIA_KEYS.search(key) for number in numbers(value)}
        suppressed |= {number for token, number in vocabulary.items() if _MEDIA_TOKENS.fullmatch(token)}
    return tuple(sorted(number for number in suppressed if 0 <= number < vocab_size))


def _check_vocabulary(model: LanguageModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Every id that the tokenizer can make has a row in the embedding."""
    largest = max(tokenizer.get_vocab().values(), default=0)
    rows = int(model.module.get_input_embeddings().weight.shape[0])
    if largest >= rows:
        raise InputError(
            _cannot(
                model.source,
                f"its tokenizer has ids up to {largest}, its embedding only {rows} rows",
                None,
                "a checkpoint whose tokenizer belongs to its weights",
            )
        )


@torch.no_grad()
def _check_head(model: LanguageModel) -> None:
    """hidden() and logits() together are the model's own forward; a family that does more to its logits is refused."""
    ids = (torch.arange(4, device=model.device) % model.vocab_size)[None]
    positions = torch.arange(4, device=model.device)[None]
    ours = model.logits(model.hidden(ids, positions, keep=slice(-1, None))).float()
    theirs = model.module(input_ids=ids, position_ids=positions, logits_to_keep=1).logits.float()
    if not bool(theirs.isfinite().all()):
        damaged = [name for name, tensor in model.module.state_dict().items() if not bool(tensor.isfinite().all())]
        where = f"first in {damaged[0]}" if damaged else "although every weight is finite"
        raise InputError(
            _cannot(model.source, f"its logits are not finite, {where}", None, "a checkpoint without NaN or infinite weights")
        )
    if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max().clamp(min=1e-6))):
        raise InputError(
            _cannot(
                model.source,
                "this family does something to its logits that llmclick does not know",
                None,
                "a Llama, Qwen, Gemma, SmolLM ... model",
            )
        )


def _cannot(source: Source, why: str, error: BaseException | None, write: str) -> Problem:
    text = str(error).strip().splitlines()[0] if error is not None and str(error).strip() else ""
    return Problem(
        where=str(source.folder), key="model.name", given=source.name, why=why + (f": {text}" if text else ""), write=write
    )
