"""What is checked before a request is taken in."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...core.errors import ClientError
from ...core.messages import Submit
from ...core.policy import Allocator, ExecutorInfo, Sampler
from .record import Request


def inherit(message: Submit, running: Mapping[str, Request]) -> Submit:
    """A fork's prompt is all that its parent knows now.  Raises ClientError if no such parent is ``running``."""
    if message.parent is None:
        return message
    parent = running.get(message.parent)
    if parent is None:
        raise ClientError("not_found", f"parent = {message.parent!r}: no such request is running", "parent")
    known = parent.known_ids(0, parent.num_known_tokens)
    return msgspec.structs.replace(message, prompt_ids=known, cache_salt=parent.submit.cache_salt)


def validate(message: Submit, info: ExecutorInfo, allocator: Allocator, sampler: Sampler, now: float) -> None:
    """Raises ClientError for a request that this engine can never serve, naming the field, the value and the rule."""
    num_prompt, vocab, context = len(message.prompt_ids), info.vocab_size, info.max_context
    if not num_prompt:
        raise ClientError("invalid_request", "the prompt is empty: it needs at least one token", "prompt")
    if min(message.prompt_ids) < 0 or max(message.prompt_ids) >= vocab:
        wrong = next(i for i, token in enumerate(message.prompt_ids) if not 0 <= token < vocab)
        text = f"token_ids[{wrong}] = {message.prompt_ids[wrong]} is not in 0..{vocab - 1}"
        raise ClientError("invalid_request", text, "token_ids")
    if (most := message.sampling.max_tokens) < 1:
        raise ClientError("invalid_request", f"max_tokens = {most}, it must be at least 1", "max_tokens")
    if num_prompt >= context:
        text = f"the prompt has {num_prompt} tokens; the context limit is {context}, with at least one to generate"
        raise ClientError("context_length_exceeded", text, "prompt")
    if num_prompt >= allocator.num_blocks * allocator.block_size:
        need, have = -(-(num_prompt + 1) // allocator.block_size), allocator.num_blocks
        text = f"the prompt needs {need} KV blocks, the whole pool has {have}"
        raise ClientError("kv_capacity_exceeded", text, "prompt")
    sampler.validate(message.sampling)
    if message.forced_length is not None and message.forced_length < 1:
        text = f"forced_length = {message.forced_length}, it must be at least 1"
        raise ClientError("invalid_request", text, "forced_length")
    if message.deadline is not None and not message.deadline > now:
        raise ClientError("deadline_exceeded", "the deadline passed before the request could start", "deadline_ms")
