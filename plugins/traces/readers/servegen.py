"""ServeGen client profiles: rates, burstiness and length histograms of each client, from which requests are drawn.

An archive holds two files per client: ``chunk-N-trace.csv`` (window start, requests/s, CV of the gaps, family, shape,
scale) and ``chunk-N-dataset.json`` (window start -> input_tokens, output_tokens: value -> probability).
"""

from __future__ import annotations

import ast
import io
import re
import tarfile
from collections.abc import Mapping
from math import gamma
from pathlib import Path

import msgspec
import numpy as np

from ....core.errors import ConfigError
from ..canonical import Trace, TraceRow
from ..source import Collector, read_bytes

WINDOW_S = 600.0
Histogram = tuple[list[int], list[float]]


class Client:
    """One client: rates by window, lengths by longer windows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.windows: dict[float, tuple[float, str, float]] = {}  # start -> (requests/s, family, shape)
        self.lengths: dict[float, tuple[Histogram, Histogram]] = {}

    def window(self, at: float) -> tuple[float, str, float]:
        """(requests/s, family, shape) at ``at``; no rate where nothing is known."""
        return self.windows.get(at // WINDOW_S * WINDOW_S, (0.0, "", 1.0))

    def lengths_at(self, at: float) -> tuple[Histogram, Histogram] | None:
        """Histograms of the last window that begins before ``at``; None if that one is empty."""
        starts = [start for start in self.lengths if start <= at]
        return self.lengths[max(starts)] if starts else None


def read(
    path: Path,
    limit: int | None = None,
    start_s: float | None = None,
    duration_s: float = 1200.0,
    rate_per_s: float = 4.0,
    seed: int = 0,
) -> Trace:
    """Requests of ``duration_s`` from ``start_s`` on (None: the first window), scaled to ``rate_per_s`` in all.

    Each client's gaps are drawn from its own family, its lengths independently from its histograms.
    """
    data, sha256 = read_bytes(path)
    clients = _clients(path, data)
    first = min((start for one in clients for start in one.windows), default=0.0) if start_s is None else start_s
    rng, rows = np.random.default_rng(seed), Collector("servegen", path, sha256)
    for begin in np.arange(first, first + duration_s, WINDOW_S).tolist():
        end = min(begin + WINDOW_S, first + duration_s)
        total = sum(one.window(begin)[0] for one in clients)
        for client in clients:
            rate, family, shape = client.window(begin)
            lengths = client.lengths_at(begin)
            if not rate or lengths is None:
                continue
            mean_gap = total / (rate * rate_per_s)
            at = begin + float(rng.random()) * _gap_around(rng, family, shape, mean_gap)
            while at < end:
                rows.add(
                    TraceRow(
                        arrival_s=at,
                        input_tokens=int(rng.choice(lengths[0][0], p=lengths[0][1])),
                        output_tokens=int(rng.choice(lengths[1][0], p=lengths[1][1])),
                        tenant=client.name,
                    )
                )
                at += _gap(rng, family, shape, mean_gap)
    return rows.finish(limit)


def _gap_around(rng: np.random.Generator, family: str, shape: float, mean: float) -> float:
    """The gap that a random moment falls into: long ones are hit more often, or bursty clients would start early."""
    if family == "Weibull":
        return float(rng.gamma(1 + 1 / shape) ** (1 / shape)) * mean / gamma(1 + 1 / shape)
    return float(rng.gamma(shape + 1, mean / shape))


def _gap(rng: np.random.Generator, family: str, shape: float, mean: float) -> float:
    """Seconds to the next request of a renewal process."""
    if family == "Weibull":
        return float(rng.weibull(shape)) * mean / gamma(1 + 1 / shape)
    return float(rng.gamma(shape, mean / shape))


def _clients(path: Path, data: bytes) -> list[Client]:
    """All clients of an archive, by number.  Raises ConfigError naming the file and its member."""
    clients: dict[int, Client] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                match = re.search(r"chunk-(\d+)-(trace\.csv|dataset\.json)$", member.name)
                content = archive.extractfile(member) if match else None
                if match is None or content is None:
                    continue
                client = clients.setdefault(int(match[1]), Client(match[1]))
                _fill(client, match[2], content.read(), f"{path}: {member.name}")
    except tarfile.TarError as error:
        raise ConfigError(f"{path}: is no archive of ServeGen: {error}") from error
    if not clients:
        raise ConfigError(f"{path}: holds no chunk-N-trace.csv")
    return [clients[number] for number in sorted(clients)]


def _fill(client: Client, kind: str, content: bytes, where: str) -> None:
    try:
        if kind == "trace.csv":
            for line in content.decode().splitlines():
                start, rate, _, family, shape, _ = line.split(",")
                if float(rate) > 0 and family in ("Gamma", "Weibull"):
                    client.windows[float(start)] = float(rate), family, float(shape)
            return
        for begin, columns in msgspec.json.decode(content, type=dict[str, dict[str, str]]).items():
            made = _histogram(columns["input_tokens"]), _histogram(columns["output_tokens"])
            if made[0][0] and made[1][0]:
                client.lengths[float(begin)] = made
    except (ValueError, SyntaxError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _histogram(text: str) -> Histogram:
    """A Python dict in a string: value -> probability."""
    table: Mapping[int, float] = ast.literal_eval(text)
    total = sum(table.values())
    return [int(value) for value in table], [share / total for share in table.values()]
