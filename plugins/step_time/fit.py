"""Fits the forms of step time: non-negative least squares on relative error, judged on steps that were held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from .files import ClassError
from .forms import FormName, StepForm

Floats = NDArray[np.float64]
FORMS: tuple[FormName, ...] = get_args(FormName)
KNOTS = (0.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
_ROBUST_ROUNDS = 4
_ORDINARY = 0.1  # relative error up to which a step counts fully; beyond it, it was disturbed


def nnls(matrix: Floats, target: Floats) -> Floats:
    """The non-negative ``x`` with the least ``|matrix x - target|`` (active sets after Lawson and Hanson, 1974).

    ``matrix`` is ``[rows, columns]`` with few columns; columns are scaled first, since tokens and seconds differ by
    orders of magnitude.
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    count = scaled.shape[1]
    x, passive = np.zeros(count), np.zeros(count, bool)
    for _ in range(10 * count):
        gradient = scaled.T @ (target - scaled @ x)
        gradient[passive] = 0.0
        best = int(gradient.argmax())
        if gradient[best] <= 1e-10 * max(1.0, float(np.abs(target).max())):
            break
        passive[best] = True
        while True:
            trial = np.zeros(count)
            trial[passive] = np.linalg.lstsq(scaled[:, passive], target, rcond=None)[0]
            below = passive & (trial <= 0)
            if not below.any():
                x = trial
                break
            share = float((x[below] / np.maximum(x[below] - trial[below], 1e-300)).min())
            x = x + share * (trial - x)
            passive &= x > 1e-14
            x[~passive] = 0.0
    return np.asarray(x / scale, np.float64)


class Columns:
    """The columns in which a form is linear, once its knee or knots are chosen."""

    def __init__(self, form: FormName, knee: float = 0.0, knots: Sequence[float] = ()) -> None:
        self.form, self.knee, self.knots = form, knee, tuple(knots)

    def of(self, features: Floats) -> Floats:
        """``[n, 4]`` features -> ``[n, columns]``."""
        prefill, decode, kv, attention = features.T
        rest = [np.ones_like(prefill), decode, kv, attention]
        tokens = prefill + decode
        if self.form == "linear":
            work = [prefill]
        elif self.form == "max":
            work = [np.maximum(self.knee, tokens)]
        else:
            ends = (*self.knots[1:], np.inf)
            work = [np.clip(tokens - start, 0.0, end - start) for start, end in zip(self.knots, ends, strict=True)]
        return np.stack([*rest, *work], axis=1)

    def made(self, solution: Floats) -> StepForm:
        """The form with these coefficients."""
        c0, c2, c3, c4, *work = (float(value) for value in solution)
        if self.form == "piecewise":
            return StepForm(form="piecewise", c0=c0, c2=c2, c3=c3, c4=c4, knots=self.knots, slopes=tuple(work))
        floor = work[0] * self.knee if self.form == "max" else 0.0
        return StepForm(form=self.form, c0=c0, c1=work[0], c2=c2, c3=c3, c4=c4, floor=floor)


def candidates(form: FormName, features: Floats) -> list[Columns]:
    """What may be tried for a form: one set of columns, or one for each knee of ``max``."""
    tokens = features[:, 0] + features[:, 1]
    if form == "max":
        return [Columns(form, knee) for knee in sorted({round(x) for x in np.quantile(tokens, np.arange(0, 1, 0.1))})]
    if form == "piecewise":
        inside = [knot for knot in KNOTS if knot < tokens.max()]
        return [Columns(form, knots=[0.0, *(k for k in inside[1:] if (tokens > k).sum() >= 8)])]
    return [Columns(form)]


def fit(features: Floats, seconds: Floats, form: FormName) -> StepForm:
    """``features`` ``[n, 4]`` and measured ``seconds`` ``[n]`` (above 0) -> the form with the least relative error.

    Steps far off the rest, which something else on the machine disturbed, count less the further they are off.
    """
    tried = [(_solve(columns, features, seconds), columns.knee) for columns in candidates(form, features)]
    if form == "max":  # once more around the best knee
        knees = [knee for _, knee in tried]
        at = min(range(len(tried)), key=lambda index: tried[index][0][0])
        around = np.linspace(knees[max(0, at - 1)], knees[min(len(knees) - 1, at + 1)], 10)
        tried += [(_solve(Columns(form, float(knee)), features, seconds), float(knee)) for knee in around]
    return min((solved for solved, _ in tried), key=lambda solved: solved[0])[1]


def _solve(columns: Columns, features: Floats, seconds: Floats) -> tuple[float, StepForm]:
    """(mean relative error, form)."""
    matrix, weight = columns.of(features), 1.0 / seconds
    solution, off = np.zeros(matrix.shape[1]), np.ones(len(seconds))
    for _ in range(_ROBUST_ROUNDS):
        solution = nnls(matrix * weight[:, None], seconds * weight)
        off = np.abs(matrix @ solution / seconds - 1)
        weight = np.sqrt(1.0 / np.maximum(1.0, off / _ORDINARY)) / seconds
    return float(np.minimum(off, 1.0).mean()), columns.made(solution)


def classes(features: Floats) -> list[str]:
    """``prefill``, ``decode`` or ``mixed`` of each step."""
    return ["decode" if not row[0] else "mixed" if row[1] else "prefill" for row in features.tolist()]


def held_out_errors(features: Floats, seconds: Floats, form: FormName, folds: int = 5, seed: int = 0) -> Floats:
    """Relative error of each step, predicted by a fit that has not seen its fold."""
    fold = np.random.default_rng(seed).permutation(len(seconds)) % folds
    errors = np.zeros(len(seconds))
    for number in range(folds):
        out = fold == number
        made = fit(features[~out], seconds[~out], form)
        errors[out] = np.abs(made.many(features[out]) / seconds[out] - 1)
    return errors


def by_class(features: Floats, errors: Floats) -> dict[str, ClassError]:
    """Median and p90 of the errors, all together and by class."""
    names = np.asarray(classes(features))
    out = {}
    for name in ("all", "prefill", "decode", "mixed"):
        some = errors if name == "all" else errors[names == name]
        if len(some):
            out[name] = ClassError(steps=len(some), median=float(np.median(some)), p90=float(np.quantile(some, 0.9)))
    return out


class Chosen(msgspec.Struct, frozen=True):
    """The form with the least held-out error, and what all of them had."""

    step: StepForm
    held_out: dict[str, ClassError]
    forms: dict[str, float]


def choose(features: Floats, seconds: Floats, folds: int = 5, seed: int = 0) -> Chosen:
    """Fit all forms, keep the one with the least median held-out error, fitted to everything."""
    errors = {form: held_out_errors(features, seconds, form, folds, seed) for form in FORMS}
    medians = {form: float(np.median(errors[form])) for form in FORMS}
    best = min(FORMS, key=lambda form: medians[form])
    return Chosen(
        fit(features, seconds, best),
        by_class(features, errors[best]),
        {str(form): error for form, error in medians.items()},
    )
