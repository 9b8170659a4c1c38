"""Service of tenants over time.  Service = prompt tokens + 2 x output tokens, the weights of the VTC artifact."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

from ..simulation.records import RequestRecord

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0


def service_gap(requests: Sequence[RequestRecord]) -> float:
    """The largest difference in service between two tenants while both were backlogged the whole time.

    A tenant is backlogged from the arrival of a request until nobody of it waits for its first token.  The prompt
    counts when the first token comes (``prompt_tokens - cached_tokens`` of it), output tokens as they come.
    """
    waits: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    served: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in requests:
        waits[one.tenant].append((one.arrival_s, 1))
        if one.first_token_s is not None:
            waits[one.tenant].append((one.first_token_s, -1))
            served[one.tenant].append((one.first_token_s, INPUT_WEIGHT * (one.prompt_tokens - one.cached_tokens)))
        served[one.tenant] += [(at, OUTPUT_WEIGHT) for at in one.token_times]
    busy = {tenant: _intervals(changes) for tenant, changes in waits.items()}
    return max((_gap(busy[a], busy[b], served[a], served[b]) for a, b in combinations(sorted(busy), 2)), default=0.0)


def _intervals(changes: list[tuple[float, int]]) -> list[tuple[float, float]]:
    """Stretches in which the count is above 0; an arrival goes before a start at the same moment."""
    out: list[tuple[float, float]] = []
    count, since = 0, 0.0
    for at, change in sorted(changes, key=lambda entry: (entry[0], -entry[1])):
        if not count and change > 0:
            since = at
        count += change
        if not count:
            out.append((since, at))
    if count:
        out.append((since, float("inf")))
    return out


def _gap(
    busy_a: list[tuple[float, float]],
    busy_b: list[tuple[float, float]],
    served_a: list[tuple[float, float]],
    served_b: list[tuple[float, float]],
) -> float:
    """Largest swing of (service of a - service of b) within one common stretch: the largest difference over any part
    of it, since both are backlogged on that part too.  What comes at one moment counts together."""
    net: defaultdict[float, float] = defaultdict(float)
    for served, sign in ((served_a, 1), (served_b, -1)):
        for at, amount in served:
            net[at] += sign * amount
    events = sorted(net.items())
    worst, place = 0.0, 0
    for start, end in _common(busy_a, busy_b):
        level = low = high = 0.0
        while place < len(events) and events[place][0] <= end:
            at, amount = events[place]
            place += 1
            if at > start:
                level += amount
                low, high = min(low, level), max(high, level)
        worst = max(worst, high - low)
    return worst


def _common(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> list[tuple[float, float]]:
    out, i, j = list[tuple[float, float]](), 0, 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            out.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return out
