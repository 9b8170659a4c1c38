"""The result in sentences, for the top of a report."""

from __future__ import annotations

from collections.abc import Sequence

from .report import ArmResult, Effect, LevelResult
from .verdict import Call, Guarded


def finding(levels: Sequence[LevelResult], primary: str, baseline: str) -> str:
    """One sentence per arm and load level: the verdict on the primary metric, and what became of the guards."""
    return " ".join(_sentence(level, arm, primary, baseline) for level in levels for arm in level.arms)


def _sentence(level: LevelResult, arm: ArmResult, primary: str, baseline: str) -> str:
    effect = next((one for one in arm.effects if one.metric == primary), None)
    if effect is None or effect.verdict == Call.REFUSED:
        why = effect.why if effect else f"{primary} was not measured"
        return f"{_where(level.label)}: no verdict on {arm.arm}: {why}."
    text = f"{_where(level.label)}: {arm.arm} against {baseline}: {primary} {effect.verdict}"
    text += f" ({change(effect)}, {arm.pairs} pairs)"
    broken = [guard.metric for guard in arm.guards if guard.result == Guarded.BROKEN]
    unclear = [guard.metric for guard in arm.guards if guard.result == Guarded.OPEN]
    if broken:
        text += f", but the guard {', '.join(broken)} is broken"
    if unclear:
        text += f"; that {', '.join(unclear)} is no worse was not shown"
    if arm.checks:
        text += f"; no verdict on times: {'; '.join(arm.checks)}"
    return text + "."


def _where(label: str) -> str:
    return f"At {label}" if label.startswith("rho") or label.endswith("per s") else label.capitalize()


def change(effect: Effect) -> str:
    """``-23.1 % [-27.0, -19.0]`` or the difference with its interval."""
    if effect.change is None or effect.low is None or effect.high is None:
        return "no interval"
    if effect.scale == "ratio":
        return f"{effect.change - 1:+.1%} [{effect.low - 1:+.1%}, {effect.high - 1:+.1%}]"
    return f"{effect.change:+.4g} [{effect.low:+.4g}, {effect.high:+.4g}]"
