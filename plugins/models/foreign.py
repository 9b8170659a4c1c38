"""Decoders outside the families of this package: transformers' own modules, with this engine's attention inside.

Such a model must send every layer through transformers' attention interface, by itself or by an adapter, be causal,
keep nothing but keys and values between tokens, and turn a token by its own position only.  What can be seen to break
that is refused by name before weights are read; the executor tries the rest on a few tokens after loading, against the
model's own attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ...core.errors import ConfigError, nearest
from .config import FAMILIES, as_ids, check_unquantised
from .foreign_adapters import ADAPTERS, uses
from .hf import FolderFiles, read_json

#: The name under which the paged attention is registered with transformers.
ATTENTION = "mainspring_paged"
LAYER_TYPES = ("full_attention", "sliding_attention")
#: Rope types whose angles depend on the longest sequence of a batch.
BATCH_ROPES = ("dynamic", "longrope")
#: What transformers reports of a load -> what it says about the tensors.
_DEFECTS = {
    "missing_keys": "missing",
    "unexpected_keys": "that this model has no place for",
    "mismatched_keys": "of another shape",
}


class ForeignFolder:
    """A Hugging Face folder of an architecture that transformers runs.  Opening reads no weights."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fields = read_json(path / "config.json")
        self.architecture = str((self.fields.get("architectures") or [None])[0])
        self._check()
        self._folder = FolderFiles(path, only_floats=False)  # old files hold masks too, which transformers leaves out

    @property
    def files(self) -> tuple[Path, ...]:
        return self._folder.files

    @property
    def format(self) -> str:
        return f"safetensors, {self.architecture} through transformers"

    @property
    def num_elements(self) -> int:
        """Of all weights."""
        return sum(int(torch.Size(shape).numel()) for shape in self._folder.shapes.values())

    def end_token_ids(self, config: Any) -> tuple[int, ...]:
        """End ids of generation configuration, tokenizer and model (D-10)."""
        return tuple(
            sorted({*self._folder.end_token_ids(), *as_ids(getattr(config, "eos_token_id", None), str(self.path))})
        )

    def _check(self) -> None:
        where = str(self.path / "config.json")
        check_unquantised(self.fields, where)
        known = known_architectures()
        if self.architecture not in known:
            close = nearest(self.architecture, known).partition(" (valid")[0]  # without the list of hundreds
            raise ConfigError(
                f"{where}: architectures = {self.architecture!r} is not supported: neither this package "
                f"({', '.join(FAMILIES)}) nor transformers has a decoder of that name{close}"
            )
        for rope in _ropes(self.fields):
            if rope in BATCH_ROPES:
                raise ConfigError(
                    f"{where}: rope type {rope!r} is not supported through transformers: a token's position would "
                    "depend on the other sequences of its step"
                )

    def load(self, dtype: torch.dtype) -> Any:
        """The model in ``dtype`` with its attention going through ``ATTENTION``, which must have been registered.

        Raises ConfigError naming the tensors that the model misses or has no place for.
        """
        import transformers

        kind = getattr(transformers, self.architecture)
        try:
            config = transformers.AutoConfig.from_pretrained(self.path, local_files_only=True)
            self._check_class(kind, config.get_text_config(decoder=True))
            with _quiet(transformers):
                model, found = kind.from_pretrained(
                    self.path,
                    config=config,
                    dtype=dtype,
                    attn_implementation=None if self.architecture in ADAPTERS else ATTENTION,
                    local_files_only=True,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # so that they are reported, and refused by name below
                )
        except ConfigError:
            raise
        except Exception as error:  # its checks of a configuration raise many kinds
            raise ConfigError(f"{self.path}: transformers cannot load {self.architecture}: {error}") from error
        for key, what in _DEFECTS.items():
            if names := sorted(str(name) for name in found[key]):
                raise ConfigError(f"{self.path}: {len(names)} tensor(s) {what}: {', '.join(names[:5])}")
        use_paged_attention(model, True)
        return model.eval()

    def _check_class(self, kind: Any, config: Any) -> None:
        if config.is_encoder_decoder or not getattr(config, "is_causal", True):
            raise ConfigError(f"{self.path}: {self.architecture} is not a causal decoder")
        if self.architecture not in ADAPTERS and not kind._can_set_attn_implementation():
            raise ConfigError(
                f"{self.path}: {self.architecture} computes its attention itself instead of through transformers' "
                "attention interface, so it cannot use a paged cache"
            )
        for layer_type in getattr(config, "layer_types", None) or ():
            if layer_type not in LAYER_TYPES:
                raise ConfigError(
                    f"{self.path}: {self.architecture} has layers of type {layer_type!r}, which is not supported "
                    f"(valid: {', '.join(LAYER_TYPES)})"
                )


def known_architectures() -> frozenset[str]:
    """Class names of the decoders in the installed transformers.  Raises ConfigError if it is not installed."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError as error:
        raise ConfigError(
            f"this architecture needs transformers, which is not installed ({error}): "
            "`pip install 'mainspring[models]'`"
        ) from error
    found: set[str] = set()
    for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        found |= {names} if isinstance(names, str) else set(names)
    return frozenset(found)


def is_foreign(path: Path) -> bool:
    """Whether the folder's architecture is outside the families of this package."""
    if not path.is_dir() or not (path / "config.json").exists():
        return False
    classes = read_json(path / "config.json").get("architectures")
    return isinstance(classes, list) and bool(classes) and classes[0] not in FAMILIES


def register(attention: Callable[..., Any]) -> None:
    """Make ``attention`` known to transformers under ``ATTENTION``; it creates no masks for such a name."""
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(ATTENTION, attention)


def _ropes(fields: Any) -> Iterator[str]:
    """Every rope type anywhere in a configuration."""
    if not isinstance(fields, dict):
        return
    for key, value in fields.items():
        if key in ("rope_scaling", "rope_parameters") and isinstance(value, dict):
            tables = [value, *(inner for inner in value.values() if isinstance(inner, dict))]
            yield from (str(table.get("rope_type") or table.get("type") or "default") for table in tables)
        else:
            yield from _ropes(value)


def use_paged_attention(model: Any, paged: bool) -> None:
    """Switch a model between the attention registered under ``ATTENTION`` and its own."""
    if type(model).__name__ not in ADAPTERS:
        model.set_attn_implementation(ATTENTION if paged else "eager")
        return
    from transformers.modeling_utils import AttentionInterface

    uses(model, AttentionInterface()[ATTENTION] if paged else None)


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bar and no report of the library's own: what is wrong with a load is an error here."""
    logging = transformers.utils.logging
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
