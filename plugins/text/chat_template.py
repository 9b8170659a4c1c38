"""Chat templates: jinja2 in a sandbox, with the helpers that model authors rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...core.errors import ClientError, ConfigError


class _GenerationBlock(Extension):
    """``{% generation %}`` marks assistant text for training; here its body is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Plain JSON: jinja's own filter would escape HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """One compiled template.  Thread-safe."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: str) -> None:
        """``where`` names the template's origin.  Raises ConfigError for a template that does not compile."""
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{where}: chat template, line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt text, open for the assistant's turn.

        Raises ClientError ``chat_template_error`` with the template's own words if it refuses the conversation.
        """
        context = {"messages": [dict(message) for message in messages], "tools": None, "documents": None}
        try:
            text = self._template.render(**self._special_tokens, **context, add_generation_prompt=True)
        except Exception as error:  # templates are programs: any exception of theirs is a refusal, never ours
            message = str(error) or type(error).__name__
            raise ClientError("chat_template_error", f"the chat template refused: {message}", "messages") from error
        if not text:
            raise ClientError("chat_template_error", "the chat template wrote an empty prompt", "messages")
        return text
