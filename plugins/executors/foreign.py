"""Loading decoders that transformers runs, with paged attention inside, and trying them before they serve."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...core.errors import ConfigError
from ...core.messages import GrantedRow, StepLaunch
from ..models.foreign import ForeignFolder, register, use_paged_attention
from ..models.foreign_adapters import NO_POSITIONS
from ..settings import Config
from . import memory
from .batch import Limits, StepBatch, build
from .dtypes import Formats
from .foreign_attention import CURRENT, Attends, Call, Pool, Probe, Step, block_bytes, paged_attention
from .loaded import Loaded, context_limit

#: How far paged attention may be off the model's own, in standard deviations of the logits, while it is tried.
TOLERANCE = {torch.float32: 0.01, torch.float16: 0.1, torch.bfloat16: 0.5}
TRIED_TOKENS = 24
#: Where a configuration may state how many positions a model supports.
_POSITIONS = ("max_position_embeddings", "max_seq_len", "seq_length")


class ForeignNetwork:
    """Implements ``loaded.Network`` over a model of transformers."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.pool: Pool | None = None
        accepted = inspect.signature(model.forward).parameters
        #: Whether the vocabulary can be multiplied for some tokens only.
        self.keeps_rows = "logits_to_keep" in accepted
        self.takes_positions = "position_ids" in accepted
        if not self.takes_positions and type(model).__name__ not in NO_POSITIONS:
            raise ConfigError(f"{type(model).__name__} does not take positions, so a step cannot mix sequences")

    def run(self, ids: Any, positions: Any, attends: Attends, **options: Any) -> torch.Tensor:
        """Logits ``[tokens, vocab]`` of tokens whose attention is ``attends``."""
        token = CURRENT.set(attends)
        if self.takes_positions:
            options["position_ids"] = positions[None]
        try:
            out = self.model(input_ids=ids[None], use_cache=False, **options)
        finally:
            CURRENT.reset(token)
        logits: torch.Tensor = out.logits[0]
        return logits

    def forward(self, batch: StepBatch) -> torch.Tensor | None:
        """See ``Network.forward``."""
        assert self.pool is not None
        rows = torch.from_numpy(batch.logits_rows).long()
        keep = {"logits_to_keep": rows if len(rows) else 1} if self.keeps_rows else {}
        ids, positions = torch.from_numpy(batch.ids).long(), torch.from_numpy(batch.positions).long()
        logits = self.run(ids, positions, Step(self.pool, batch), **keep)
        if not len(rows):
            return None
        return (logits if keep else logits[rows]).float()

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        """See ``Network.copy_blocks``."""
        assert self.pool is not None
        self.pool.copy_blocks(copies)


def load_foreign(config: Config, folder: ForeignFolder, formats: Formats, progress: Callable[[str], None]) -> Loaded:
    """Load, look at the attention, take the pool, try it.  Raises ConfigError naming what cannot work."""
    name = folder.path.name
    if formats.kv == torch.int8:
        raise ConfigError(f"executor.kv_dtype = 'int8': {name} is run by transformers, which keeps fp32, bf16 or fp16")
    progress(f"{name}: {folder.architecture} is no family of this package: transformers' own modules run it, slower")
    weights = folder.num_elements * formats.compute.itemsize
    available = memory.available_bytes()
    if weights > available:
        raise ConfigError(
            f"{folder.path}: the weights need {memory.show(weights)} and {memory.show(available)} are free"
        )
    register(paged_attention)
    with torch.inference_mode():
        network = ForeignNetwork(folder.load(formats.weights).to(formats.compute))
        facts = network.model.config.get_text_config(decoder=True)
        with _tried(folder):
            calls = _probe(network, facts)
        limits, ledger = _plan(config, network, facts, calls, formats, name)
        progress(f"{name}: {folder.format}; {formats.describe()}; {ledger.describe()}")
        network.pool = Pool(calls, limits.num_blocks + memory.num_host_blocks(config), limits.block_size, formats.kv)
        with _tried(folder):
            _try(network, limits, TOLERANCE[min(formats.compute, formats.kv, key=lambda dtype: dtype.itemsize)])
    return Loaded(name, folder.format, network, limits, folder.end_token_ids(facts), ledger)


@contextmanager
def _tried(folder: ForeignFolder) -> Iterator[None]:
    """Whatever a model raises while it is tried is a reason not to serve it."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{folder.path}: {folder.architecture} failed while it was tried: {type(error).__name__}: {error}"
        ) from error


def _probe(network: ForeignNetwork, facts: Any) -> dict[int, Call]:
    """Each layer's attention as it is called; every layer must come through, and use the window it declares."""
    probe, two = Probe(), torch.arange(2)
    network.run(two, two, probe)
    kind = type(network.model).__name__
    if absent := sorted(set(range(facts.num_hidden_layers)) - set(probe.calls)):
        raise ConfigError(f"{kind}: layers {absent[:5]} do not go through transformers' attention interface")
    everywhere = ["sliding_attention" if _has_window(facts) else ""] * facts.num_hidden_layers
    types = getattr(facts, "layer_types", None) or everywhere
    for layer, call in probe.calls.items():
        if types[layer] == "sliding_attention" and not call.window:
            raise ConfigError(f"{kind}: layer {layer} has a sliding window and does not tell attention how long it is")
    return probe.calls


def _has_window(facts: Any) -> bool:
    return bool(getattr(facts, "sliding_window", None)) and getattr(facts, "use_sliding_window", True) is not False


def _plan(
    config: Config, network: ForeignNetwork, facts: Any, calls: dict[int, Call], formats: Formats, name: str
) -> tuple[Limits, memory.Ledger]:
    positions = next((found for key in _POSITIONS if (found := getattr(facts, key, None))), None)
    if not positions and not config.model.max_context:
        raise ConfigError(f"{name}: its configuration states no max_position_embeddings: set model.max_context")
    max_context = context_limit(config, name, int(positions or config.model.max_context), 0)
    scheduler, block_size = config.scheduler, config.allocator.block_size
    hidden, vocab = facts.hidden_size, facts.vocab_size
    ffn = getattr(facts, "intermediate_size", None) or 4 * hidden
    widest = max(call.query.shape[0] * call.query.shape[2] for call in calls.values())
    activations = scheduler.token_budget * (8 * hidden + 3 * ffn + 4 * widest) * formats.compute.itemsize
    most_rows = min(scheduler.max_running if network.keeps_rows else scheduler.token_budget, scheduler.token_budget)
    logits = most_rows * vocab * 4
    attention = (2 * widest + 2 * scheduler.token_budget) * max_context * formats.compute.itemsize
    ledger = memory.plan(
        config,
        weights=sum(part.nbytes for part in (*network.model.parameters(), *network.model.buffers())),
        workspace=activations + logits + attention,
        block_bytes=block_bytes(calls, block_size, formats.kv),
        max_context=max_context,
        available=memory.available_bytes(),
    )
    return Limits(vocab, max_context, ledger.num_blocks, block_size), ledger


def _try(network: ForeignNetwork, limits: Limits, tolerance: float) -> None:
    """Two sequences, one of them in pieces, mixed in the same steps, against the model's own attention.

    Raises ConfigError if the logits differ: something in the model is not what paged attention takes it for.
    """
    half = limits.num_blocks // 2
    length = min(TRIED_TOKENS, limits.max_context, half * limits.block_size)
    if length < 3:
        return
    ids = [(7919 * at + 13) % limits.vocab_size for at in range(length)]
    ends = sorted({max(1, length // 2), length // 2 + 1, length})
    made, begin = [], 0
    for step, end in enumerate(ends):
        rows = [_row("tried", 0, ids, begin, end, limits)]
        if step != 1:  # a neighbour that begins anew, and one step without it
            rows.append(_row("beside", half, ids[::-1], 0, min(length, 5), limits))
        logits = network.forward(build(StepLaunch(step, tuple(rows), None), limits))
        assert logits is not None
        made.append(logits[0])
        begin = end
    own = _own_logits(network.model, torch.tensor([ids]))[[end - 1 for end in ends]].float()
    off = float((torch.stack(made) - own).abs().max() / own.std().clamp(min=1e-6))
    if not off <= tolerance:
        raise ConfigError(
            f"{type(network.model).__name__}: with paged attention the logits are {off:.3g} standard deviations off "
            "those of its own attention: it cannot run here"
        )


def _row(rid: str, first_block: int, ids: list[int], begin: int, end: int, limits: Limits) -> GrantedRow:
    size = limits.block_size
    table = tuple(range(first_block, first_block + -(-end // size)))
    slots = tuple(first_block * size + at for at in range(begin, end))
    return GrantedRow(rid, begin, end - begin, tuple(ids[begin:end]), True, table, slots)


def _own_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    use_paged_attention(model, False)
    try:
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
    finally:
        use_paged_attention(model, True)
    return logits
