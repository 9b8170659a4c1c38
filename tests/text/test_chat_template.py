"""Chat templates: rendered as model authors expect, in a sandbox, with the template's own refusals."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from mainspring.core.errors import ClientError, ConfigError
from mainspring.plugins.text.chat_template import ChatTemplate

TALK = [
    {"role": "system", "content": 'Be <brief> & "kind".'},
    {"role": "user", "content": "  hello é漢\n"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": ""},
]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
STRICT = (
    "{{ bos_token }}{% for m in messages %}{% if m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('unknown role: ' + m.role) }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)
TEMPLATES = {
    "loops": "{{ bos_token }}{% for m in messages %}{{ m['role'] }}{{ m.content | trim }}{{ eos_token }}\n{% endfor %}",
    "blocks": "{%- for m in messages %}\n  {% if m.role == 'user' %}\n U {{ m.content }}\n  {% endif %}\n{% endfor %}x",
    "controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "prompt": "{% if add_generation_prompt %}assistant:{% endif %}{% if tools %}tools{% endif %}",
    "namespace": "{% set n = namespace(k=0) %}{% for m in messages %}{% set n.k = n.k + 1 %}{% endfor %}{{ n.k }}",
}


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_renders_as_transformers_does_d03(name: str) -> None:
    source = TEMPLATES[name]
    theirs: Any = render_jinja_template  # its annotations are not those of its results
    (expected,), _ = theirs([TALK], chat_template=source, add_generation_prompt=True, **SPECIAL)
    assert ChatTemplate(source, SPECIAL, "test").render(TALK) == expected


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "roles must alternate"),
        ([{"role": "wizard", "content": "a"}], "unknown role: wizard"),
        ([{"role": "user"}], "content"),
    ],
)
def test_refusals_carry_the_templates_own_words_d06(messages: list[dict[str, str]], words: str) -> None:
    template = ChatTemplate(STRICT + "{{ messages[0].content + '' }}", SPECIAL, "test")
    with pytest.raises(ClientError, match=words) as caught:
        template.render(messages)
    assert (caught.value.code, caught.value.param) == ("chat_template_error", "messages")


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ messages.foo.bar }}", "{{ ''.join(5) }}", "{{ [][0].x }}"])
def test_any_failure_inside_a_template_is_a_refusal_d06(source: str) -> None:
    with pytest.raises(ClientError) as caught:
        ChatTemplate(source, {}, "test").render(TALK)
    assert caught.value.code == "chat_template_error"


def test_an_empty_rendering_is_refused_d04() -> None:
    with pytest.raises(ClientError, match="empty prompt"):
        ChatTemplate("{% if false %}x{% endif %}", {}, "test").render(TALK)


def test_a_broken_template_stops_the_start_d07() -> None:
    with pytest.raises(ConfigError, match=r"model\.json: chat template, line 2: "):
        ChatTemplate("ok\n{% for %}", {}, "model.json")


def test_the_sandbox_keeps_templates_in() -> None:
    for source in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__ }}"):
        with pytest.raises(ClientError):
            ChatTemplate(source, {}, "test").render(TALK)


def test_strftime_now_gives_the_date() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}", {}, "test").render(TALK).isdigit()
