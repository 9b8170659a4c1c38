"""``TextModel``: one model's text side, loaded in a fraction of a second from a GGUF file or a Hugging Face folder.

Rules on special tokens.  Raw text is encoded like the usual Python tokenizers do it: special tokens written in the text
are recognised, and the begin token is added if the vocabulary asks for one, but not a second time when the text starts
with it already.  A chat prompt is what the template writes, tokenised with nothing added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ...core.errors import ClientError, ConfigError
from ..models.checkpoint import find_model
from ..settings import ModelConfig
from .chat_template import ChatTemplate
from .detokenize import Detokenizer, Pieces
from .facts import TokenizerFacts
from .gguf_vocab import load_gguf
from .hf_folder import load_folder


class TextModel:
    """Encoding, chat prompts and decoding of one model.  Thread-safe; calls may take seconds on megabytes of text."""

    def __init__(self, tokenizer: Tokenizer, facts: TokenizerFacts, template: ChatTemplate | None = None) -> None:
        self._tokenizer, self._template = tokenizer, template
        self.name = facts.name
        self.end_ids = facts.end_ids
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.pieces = Pieces(tokenizer)
        self.special_ids = self.pieces.special_ids
        bos = facts.special_tokens.get("bos_token")
        self._bos_id = None if bos is None else tokenizer.token_to_id(bos)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a raw prompt; may be empty only if ``text`` is."""
        ids = self._encode(text, add_special_tokens=True)
        if len(ids) > 1 and ids[0] == ids[1] == self._bos_id:
            return ids[1:]
        return ids

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Ids of a conversation.  Raises ClientError if the template refuses it or there is none."""
        if self._template is None:
            raise ClientError(
                "chat_template_error",
                f"model {self.name!r} has no chat template: send prompt or token_ids, "
                "or start the server with a template file as model.chat_template",
                "messages",
            )
        return self._encode(self._template.render(messages), add_special_tokens=False)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of all ids: exactly what a stream of them adds up to."""
        stream = Detokenizer(self.pieces, skip_special_tokens)
        return stream.push(token_ids) + stream.flush()

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        # The batch call without offsets is the one that holds the interpreter lock least and is fastest.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return tuple(encoding.ids)


def load_text_model(config: ModelConfig) -> TextModel:
    """The tokenizer and chat template that ``config`` names.  Blocks for up to a second; raises ConfigError."""
    path = find_model(config.path)
    tokenizer, facts = load_folder(path) if path.is_dir() else load_gguf(path)
    source, where = facts.chat_template, str(path)
    if config.chat_template:
        where = f"model.chat_template = {config.chat_template!r}"
        try:
            source = Path(config.chat_template).expanduser().read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where}: cannot be read: {error}") from error
    template = ChatTemplate(source, facts.special_tokens, where) if source else None
    return TextModel(tokenizer, facts, template)
