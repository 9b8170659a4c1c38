"""The whole engine of this package: host, policy, allocator, sampler and text.

``python mainspring_worker.py THREADS KEY=VALUE...`` with this package's Python, see ``serving.py``.
"""

from __future__ import annotations

import asyncio
import sys

from serving import serve, take_stdout


def main() -> None:
    """Load and serve."""
    answers = take_stdout()
    from mainspring import Engine, __version__
    from mainspring.plugins import event_loop
    from mainspring.plugins.cli.serve import keep_loaded
    from mainspring.plugins.config_file import load

    async def ask(engine: Engine, ids: list[int], new_tokens: int) -> int:
        request = {
            "token_ids": ids,
            "max_tokens": new_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return sum([len(getattr(event, "token_ids", ())) async for event in engine.stream(request)])

    overrides = [f"executor.threads={sys.argv[1]}", "executor.memory=2GiB", "journal.path=", *sys.argv[2:]]
    said: list[str] = []
    with event_loop.runner() as runner:
        engine = Engine(load(None, overrides).config, progress=said.append)
        runner.run(engine.__aenter__())
        keep_loaded()  # as ``mainspring serve`` does

        async def batch(ids: list[list[int]], new_tokens: int) -> list[int]:
            return list(await asyncio.gather(*(ask(engine, row, new_tokens) for row in ids)))

        detail = next((line for line in said if "activations" in line), "")
        serve(answers, __version__, detail, lambda ids, new_tokens: runner.run(batch(ids, new_tokens)))
        runner.run(engine.__aexit__(None, None, None))


if __name__ == "__main__":
    main()
