"""The request schema: what is accepted, and that every refusal names field, value and what was expected."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mainspring.core.errors import ClientError
from mainspring.plugins.schema import GenerateRequest, draw_seed, parse, to_sampling


def refusal(fields: dict[str, Any]) -> ClientError:
    with pytest.raises(ClientError) as caught:
        parse(fields)
    return caught.value


def test_defaults_and_every_field() -> None:
    assert parse({"prompt": "hi"}) == GenerateRequest(prompt="hi")
    full = {
        "prompt": "hi",
        "max_tokens": 5,
        "min_tokens": 2,
        "temperature": 0,
        "top_k": -1,
        "top_p": 0.5,
        "min_p": 0.1,
        "seed": 7,
        "stop": ["a", "b"],
        "stop_token_ids": [3],
        "ignore_eos": True,
        "return_token_ids": True,
        "skip_special_tokens": False,
        "priority": -3,
        "tenant": "t",
        "deadline_ms": 10,
        "cache_salt": "s",
    }
    request = parse(full)
    for name, value in full.items():
        got = getattr(request, name)
        assert got == (tuple(value) if isinstance(value, list) else value), name
    assert isinstance(request.temperature, float) and isinstance(request.deadline_ms, float)


def test_the_three_inputs() -> None:
    assert parse({"token_ids": [0, 2**31 - 1]}).token_ids == (0, 2**31 - 1)
    chat = parse({"messages": [{"role": "user", "content": ""}]})
    assert chat.messages == ({"role": "user", "content": ""},)


@pytest.mark.parametrize("given", [{}, {"max_tokens": 3}, {"prompt": "a", "token_ids": [1]}])
def test_exactly_one_input(given: dict[str, Any]) -> None:
    error = refusal(given)
    assert error.code == "invalid_request" and "exactly one of prompt, messages, token_ids" in error.message


@pytest.mark.parametrize("fields", [{"prompt": ""}, {"messages": []}, {"token_ids": []}, {"prompt": [""]}])
def test_empty_prompts_are_refused_d04(fields: dict[str, Any]) -> None:
    error = refusal(fields)
    assert (error.code, error.param) == ("invalid_request", next(iter(fields)))


@pytest.mark.parametrize("bad", [-1, 2**31, 2**63 - 1, 2**63, 10**400, 1.5, True, "5", None, [1]])
def test_bad_token_ids_name_their_position_d05(bad: Any) -> None:
    error = refusal({"token_ids": [1, 2, bad]})
    assert error.param == "token_ids[2]" and error.message.startswith("token_ids[2] = ")
    assert refusal({"prompt": "a", "stop_token_ids": [bad]}).param == "stop_token_ids[0]"


def test_unknown_field_names_the_nearest_one() -> None:
    error = refusal({"prompt": "a", "max_tokns": 3})
    assert (error.code, error.param) == ("unsupported_parameter", "max_tokns")
    assert "did you mean 'max_tokens'?" in error.message


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("prompt", 5),
        ("prompt", None),
        ("prompt", "\ud800"),
        ("messages", "hi"),
        ("token_ids", "12"),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", True),
        ("max_tokens", 1.0),
        ("min_tokens", -1),
        ("temperature", True),
        ("temperature", "1"),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 10**400),
        ("top_k", 1.5),
        ("top_p", None),
        ("min_p", -math.inf),
        ("seed", 1.0),
        ("stop", 5),
        ("stop", ""),
        ("stop", "x" * 257),
        ("stop", ["x"] * 17),
        ("ignore_eos", 1),
        ("return_token_ids", "yes"),
        ("priority", False),
        ("tenant", ""),
        ("deadline_ms", 0),
        ("deadline_ms", math.nan),
        ("cache_salt", 5),
        ("repetition_penalty", math.nan),
    ],
)
def test_wrong_types_and_values_name_the_field(name: str, bad: Any) -> None:
    fields = {name: bad} if name in ("prompt", "messages", "token_ids") else {"prompt": "a", name: bad}
    error = refusal(fields)
    assert (error.code, error.param) == ("invalid_request", name)
    assert name in error.message and "expected" in error.message and len(error.message) < 300
    error.message.encode()


def test_max_tokens_zero_is_refused_with_the_reason_a15() -> None:
    assert (
        "at least 1 (a generation without tokens is not offered)" in refusal({"prompt": "a", "max_tokens": 0}).message
    )


def test_min_tokens_cannot_exceed_max_tokens() -> None:
    assert refusal({"prompt": "a", "max_tokens": 3, "min_tokens": 4}).param == "min_tokens"


def test_stops_as_text_or_list_name_the_bad_one() -> None:
    assert parse({"prompt": "a", "stop": "END"}).stop == ("END",)
    assert parse({"prompt": "a", "stop": []}).stop == ()
    assert refusal({"prompt": "a", "stop": ["ok", ""]}).param == "stop[1]"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user", "content": ["x"]}, "messages[1].content"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": "", "content": "x"}, "messages[1].role"),
        ("hi", "messages[1]"),
    ],
)
def test_malformed_messages_d06(message: Any, param: str) -> None:
    error = refusal({"messages": [{"role": "user", "content": "a"}, message]})
    assert (error.code, error.param) == ("invalid_request", param)


def test_unknown_message_key_is_refused() -> None:
    error = refusal({"messages": [{"role": "user", "content": "a", "contnt": "b"}]})
    assert error.code == "unsupported_parameter" and "did you mean 'content'?" in error.message


def test_null_means_absent_only_where_documented() -> None:
    request = parse({"prompt": "a", "seed": None, "stop": None, "deadline_ms": None})
    assert (request.seed, request.stop, request.deadline_ms) == (None, (), None)
    assert refusal({"prompt": "a", "max_tokens": None}).param == "max_tokens"


def test_sampler_parameters_travel_in_extra() -> None:
    """Penalties are known everywhere, other names only if the configured sampler lists them."""
    assert parse({"prompt": "a", "presence_penalty": 1}).extra == {"presence_penalty": 1.0}
    assert refusal({"prompt": "a", "mirostat": 2}).code == "unsupported_parameter"
    request = parse({"prompt": "a", "mirostat": 2, "frequency_penalty": 0.5}, sampler_parameters={"mirostat"})
    sampling = to_sampling(request, 9)
    assert sampling.extra == {"mirostat": 2, "frequency_penalty": 0.5} and sampling.seed == 9


def test_to_sampling_carries_every_sampling_field() -> None:
    names = {"temperature": 0.5, "top_k": 4, "top_p": 0.75, "min_p": 0.25, "max_tokens": 9, "min_tokens": 2}
    sampling = to_sampling(parse({"prompt": "a", **names, "stop_token_ids": [5], "ignore_eos": True}), 3)
    assert {name: getattr(sampling, name) for name in names} == names
    assert (sampling.stop_token_ids, sampling.ignore_eos, sampling.seed) == ((5,), True, 3)


def test_drawn_seeds_differ_and_are_exact_in_json() -> None:
    seeds = {draw_seed() for _ in range(50)}
    assert len(seeds) == 50 and all(0 <= seed < 2**53 for seed in seeds)
