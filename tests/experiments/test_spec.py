"""Bad experiment files are refused before anything runs, with the place and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.experiments.lab import PARTS, write

from mainspring.core.errors import ConfigError
from mainspring.plugins.experiments import arms, spec, workload

LIVE = 'clock = "live"\n' + PARTS["head"]
HEAD, ARMS, LOAD, WORK = PARTS["head"], PARTS["arms"], PARTS["load"], PARTS["workload"]

BAD = {
    "unknown arm key": (
        {"arms": ARMS.replace('use = "prefix_priority"', "tokn_budget = 5")},
        "arms.prefix: unknown key scheduler.tokn_budget = 5; did you mean 'token_budget'?",
    ),
    "unknown arm table": (
        {"arms": ARMS.replace("prefix.scheduler", "prefix.scheduling")},
        "arms.prefix: unknown key scheduling",
    ),
    "unknown policy": (
        {"arms": ARMS.replace("prefix_priority", "prefix_prority")},
        "did you mean 'prefix_priority'?",
    ),
    "unknown option of a policy": (
        {"arms": ARMS + "options = {look_ahed = 5}\n"},
        "unknown key scheduler.options.look_ahed = 5; did you mean 'look_ahead'?",
    ),
    "unknown field of requests": (
        {"arms": ARMS + "[arms.prefix.request]\ntemprature = 1\n", "head": LIVE},
        "request.temprature = 1; did you mean 'temperature'?",
    ),
    "a value of requests that the sampler refuses": (
        {"arms": ARMS + "[arms.prefix.request]\ntemperature = -1\n", "head": LIVE},
        "arms.prefix.request: temperature = -1",
    ),
    "a sampler without a model": (
        {"arms": ARMS + "[arms.prefix.sampler]\nuse = 'standard'\n"},
        'arms.prefix.sampler: changes nothing in virtual time, which has no model; set clock = "live"',
    ),
    "no baseline": ({"head": HEAD.replace('baseline = "fcfs"\n', "")}, 'baseline: is missing; add baseline = "fcfs"'),
    "baseline is no arm": (
        {"head": HEAD.replace('baseline = "fcfs"', 'baseline = "fcsf"')},
        "baseline = 'fcsf': there is no such arm; did you mean 'fcfs'?",
    ),
    "one arm": ({"arms": '[arms.fcfs.scheduler]\nuse = "fcfs"\n'}, "arms: an experiment needs two"),
    "too few seeds": (
        {"head": HEAD.replace("seeds = 5", "seeds = 4")},
        "seeds = 4: 4 pairs are too few for an interval; use at least 5",
    ),
    "a seed twice": ({"head": HEAD.replace("seeds = 5", "seeds = [1, 2, 3, 4, 4]")}, "one stands there twice"),
    "no primary metric": (
        {"head": HEAD.replace('primary = "ttft_mean"\n', "")},
        'primary: is missing; declare the metric that decides, such as primary = "ttft_mean"',
    ),
    "unknown primary metric": (
        {"head": HEAD.replace("ttft_mean", "ttft_maen")},
        "primary: metric 'ttft_maen': there is no such metric; did you mean 'ttft_mean'?",
    ),
    "unknown class of a metric": (
        {"head": HEAD.replace("ttft_mean", "ttft_mean@rar")},
        "metric 'ttft_mean@rar': S1 has no class 'rar' (valid: popular, rare)",
    ),
    "unknown guard": ({"load": LOAD + "[guards]\nttft_p98 = 0.1\n"}, "guards: metric 'ttft_p98'"),
    "unknown key": ({"more": "basline = 1\n"}, "unknown key basline = 1; did you mean 'baseline'?"),
    "unknown key below": ({"load": "[load]\nrhos = [1]\n"}, "unknown key load.rhos = [1]; did you mean 'rho'?"),
    "unknown scenario": ({"workload": '[workload]\nscenario = "S11"\n'}, "workload.scenario = 'S11': unknown"),
    "unknown option of a scenario": (
        {"workload": WORK.replace("num_requests", "num_request")},
        "workload: scenario S1: unknown parameter 'num_request'; did you mean 'num_requests'?",
    ),
    "two workloads": ({"workload": WORK.replace('size = "tiny"', 'trace = "x"')}, "names scenario and trace"),
    "no load": ({"load": ""}, "load: give rho (shares of the baseline's capacity) or rate"),
    "two loads": ({"load": LOAD + "rate = [1.0]\n"}, "load: give rho"),
    "rate of nothing": ({"load": "[load]\nrate = [-1.0]\n"}, "rates are above 0"),
    "no step times": ({"head": HEAD.replace('step_time = "steps.toml"\n', "")}, "step_time: is missing"),
    "a look too late": ({"load": LOAD + "[stop]\nlooks = [5]\n"}, "looks lie from 5 to 4 pairs"),
    "text in the simulator": (
        {"workload": '[workload]\nprompts = ["a"]\nnum_requests = 9\n'},
        'text needs the model; set clock = "live"',
    ),
    "an arm that is no table": ({"arms": "[arms]\nfcfs = 3\nprefix = {}\n"}, "arms.fcfs = 3: expected a table"),
    "an arm without a name": ({"arms": ARMS + "[arms.'']\n"}, "arms: one has no name"),
    "a margin below 0": ({"load": LOAD + "[guards]\nttft_p99 = -0.1\n"}, "guards.ttft_p99 = -0.1: expected a margin"),
    "a seed below 0": (
        {"head": HEAD.replace("seeds = 5", "seeds = [-1, 2, 3, 4, 5]")},
        "seeds = [-1, 2, 3, 4, 5]: seeds are numbers from 0",
    ),
    "a load twice": ({"load": "[load]\nrho = [0.8, 0.8]\n"}, "load.rho = [0.8, 0.8]: one stands there twice"),
    "a file of coefficients that is not there": (
        {"head": HEAD.replace("steps.toml", "stpes.toml")},
        "step_time = 'stpes.toml': stpes.toml: cannot be read: No such file",
    ),
    "an option of another type": (
        {"workload": WORK.replace("num_requests = 40", 'num_requests = "many"')},
        "workload: scenario S1: num_requests = 'many': expected `int`, got `str`",
    ),
    "an option below 0": (
        {"workload": WORK.replace("num_requests = 40", "num_requests = -5")},
        "workload: scenario S1: num_requests = -5: expected a number from 0",
    ),
    "blocks of nothing": (
        {"workload": WORK.replace("num_requests = 40", "block_size = 0")},
        "workload: scenario S1: block_size = 0: expected a number from 1",
    ),
    "no arrivals": (
        {"workload": WORK.replace("num_requests = 40", "rate_per_s = 0.0")},
        "workload: scenario S1: cannot be drawn with {'rate_per_s': 0.0}",
    ),
    "not TOML": ({"more": "=\n"}, "not valid TOML"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_the_place_and_the_fix(case: str, tmp_path: Path) -> None:
    parts, words = BAD[case]
    path = write(tmp_path, **parts)
    with pytest.raises(ConfigError) as refused:
        check(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value) or "experiment.toml" in str(refused.value)


def check(path: Path) -> None:
    from mainspring.plugins.experiments.runner import Runner
    from mainspring.plugins.experiments.simulated import SimulatedClock
    from mainspring.plugins.experiments.store import Store

    experiment = spec.read(path)
    clock = SimulatedClock(experiment)
    Runner(experiment, Store(path.parent / "out", experiment, resume=False), clock)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        spec.read(tmp_path / "none.toml")


def test_arms_are_the_workload_s_limits_then_config_then_their_own(tmp_path: Path) -> None:
    parts = {
        "arms": "[config.scheduler]\ntoken_budget = 48\nmax_running = 7\n"
        + ARMS
        + "max_running = 9\n"
        + "[arms.prefix.allocator]\nblock_size = 32\n[arms.prefix.request]\ntemperature = 0.5\n"
    }
    experiment = spec.read(write(tmp_path, head=LIVE, **parts))
    scenario = workload.source(experiment)(0)
    made = arms.make(experiment, scenario)
    fcfs, prefix = made["fcfs"].config, made["prefix"].config
    assert (fcfs.scheduler.token_budget, fcfs.scheduler.max_running) == (48, 7)
    assert (prefix.scheduler.use, prefix.scheduler.max_running) == ("prefix_priority", 9)
    tokens = [config.allocator.num_blocks * config.allocator.block_size for config in (fcfs, prefix)]
    assert tokens == [scenario.kv_tokens // 16 * 16, scenario.kv_tokens // 32 * 32]
    assert made["prefix"].sampling == {"temperature": 0.5} and made["fcfs"].sampling == {}


def test_another_policy_takes_no_options_over() -> None:
    base = {"scheduler": {"use": "fair", "options": {"lift": False}, "max_running": 3}}
    assert arms.merged(base, {"scheduler": {"use": "fcfs"}})["scheduler"] == {
        "use": "fcfs",
        "options": {},
        "max_running": 3,
    }
    assert arms.merged(base, {"scheduler": {"use": "fair"}})["scheduler"]["options"] == {"lift": False}


def test_windows_of_a_trace_are_disjoint_and_enough(tmp_path: Path) -> None:
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:15:{index // 10:02d}.{index % 10}000000,{100 + index},5" for index in range(60)]
    (tmp_path / "trace.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    work = (
        '[workload]\ntrace = "trace.csv"\nformat = "azure"\nkv_tokens = 4096\nmax_output = 64\nwindow_requests = {}\n'
    )
    experiment = spec.read(write(tmp_path, workload=work.format(6)))
    draw = workload.source(experiment)
    seeds = [seed + offset for offset in (0, workload.FLOOR_OFFSET) for seed in experiment.spec.seed_list]
    seen = [row.input_tokens for seed in seeds for row in draw(seed).rows]
    assert sorted(seen) == list(range(100, 160))
    assert all(draw(seed).rows[0].arrival_s == 0 for seed in seeds)
    with pytest.raises(ConfigError, match="use at most 6, or fewer seeds"):
        workload.source(spec.read(write(tmp_path, workload=work.format(7))))
