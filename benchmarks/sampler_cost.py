"""What sampling costs: microseconds per row of the standard sampler next to torch.softmax + torch.multinomial.

    python benchmarks/sampler_cost.py [--vocab 49152] [--rows 1 16 64] [--spread 6] [--threads 2] [--device cpu]

``--spread`` is the standard deviation of the logits: 6 is about as peaked as a small language model, 1 is nearly flat
and the worst case for plain sampling.  Every figure is the fastest of several rounds; the ratio is to the baseline at
the same number of rows in the same run.  ``native``: the executor's kernels instead.  ``plan`` is the actor half (host
only), for rows that draw.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from mainspring.core.messages import GrantedRow, SamplingParams, Started, StepGrant, StepLaunch
from mainspring.core.policy import SamplerContext
from mainspring.plugins.executors import native_abi
from mainspring.plugins.executors.native_build import CannotBuild, best_instruction_set, build
from mainspring.plugins.executors.native_ops import NativeOps
from mainspring.plugins.executors.ops import HeadShape, KVShape
from mainspring.plugins.models.config_hf import from_hf
from mainspring.plugins.models.tiny import CONFIG
from mainspring.samplers.standard import StandardSampler

KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "top-k 50": SamplingParams(top_k=50),
    "top-p 0.9": SamplingParams(top_p=0.9),
    "plain": SamplingParams(),
}


def fastest(call: Callable[[], object], seconds: float) -> float:
    """Microseconds of the fastest call within about ``seconds``, at least five calls after one to warm up."""
    call()
    best, end, calls = float("inf"), time.perf_counter() + seconds, 0
    while calls < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best, calls = min(best, time.perf_counter() - start), calls + 1
    return best * 1e6


def grant(params: SamplingParams, num_rows: int) -> StepGrant:
    rows = tuple(GrantedRow(f"r{n}", 99, 1, None, True, (), ()) for n in range(num_rows))
    return StepGrant(0, rows, started=tuple(Started(f"r{n}", (0,) * 9, 9, 0, params) for n in range(num_rows)))


def native_ops(threads: int) -> NativeOps | None:
    """Kernels to draw with; None where they cannot be built."""
    model = from_hf(CONFIG, (), "tiny", "benchmark")
    heads = HeadShape(model.num_heads, model.num_kv_heads, model.head_dim, model.rope)
    kv = KVShape(1, 2, 16, model.num_kv_heads, model.head_dim)
    try:
        library = native_abi.load(build(best_instruction_set(), print))
    except CannotBuild as error:
        print(f"no native kernels: {error}")
        return None
    return NativeOps(heads, kv, library=library, threads=threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--spread", type=float, default=6.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=0.5, help="per figure")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ops = native_ops(options.threads) if options.device == "cpu" else None
    print(f"{options.device}, vocab {options.vocab}, spread {options.spread:g}, {options.threads} threads; us per row")
    for num_rows in options.rows:
        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(num_rows, options.vocab, generator=generator).mul(options.spread).to(options.device)
        base = fastest(
            lambda logits=logits: torch.multinomial(torch.softmax(logits, -1), 1).tolist(),  # type: ignore[misc]
            options.seconds,
        )
        print(f"{num_rows:4d} rows  {'softmax + multinomial':22s} {base / num_rows:9.1f}")
        for name, params in KINDS.items():
            sampler = StandardSampler(None, SamplerContext(options.vocab))
            (launch,) = sampler.handle(grant(params, num_rows), 0.0)
            assert isinstance(launch, StepLaunch)
            cost = fastest(lambda s=sampler, x=logits, p=launch.sampling: s.run(x, p), options.seconds)  # type: ignore[misc]
            print(f"{num_rows:4d} rows  {name:22s} {cost / num_rows:9.1f}  x{cost / base:.2f}")
            if ops and params.temperature:
                cost = fastest(lambda x=logits, p=launch.sampling: ops.draw(x, p), options.seconds)  # type: ignore[misc]
                print(f"{num_rows:4d} rows  {name + ', native':22s} {cost / num_rows:9.1f}  x{cost / base:.2f}")
        step = StepGrant(0, grant(KINDS["plain"], num_rows).rows)
        planned = fastest(lambda s=sampler, m=step: list(s.handle(m, 0.0)), options.seconds / 5)  # type: ignore[misc]
        print(f"{num_rows:4d} rows  {'plan':22s} {planned / num_rows:9.1f}  x{planned / base:.2f}")


if __name__ == "__main__":
    main()
