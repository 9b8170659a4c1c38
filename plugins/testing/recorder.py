"""Stands between the host and a policy: hands out strict views, seals the hooks, and writes down every answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...core.hookspecs import Register, hookimpl
from ...core.policy import Decision, SchedulerPolicy
from ...core.registry import PluginInfo, Registry
from ..watchdog import Watchdog
from .purity import Seal
from .strict import Desk, Touch, kept_views, reveal

#: The hooks that the kernel calls while requests run.
HOOKS = tuple(
    name
    for name, value in vars(SchedulerPolicy).items()
    if callable(value) and name[0] != "_" and name not in ("export_state", "import_state")
)


class Answer(NamedTuple):
    """What a hook gave for the step that was planned next, and what the host knew then.

    ``value`` is plain data: rids instead of requests.  ``error`` is the exception, if it raised one.
    """

    step: int
    hook: str
    value: Any
    error: str
    waiting: tuple[str, ...]
    running: tuple[str, ...]


class Refusal(NamedTuple):
    """The guard's word on an answer that it did not use."""

    step: int
    hook: str
    reason: str


class Recorder:
    """One policy's record.  ``observe`` its instances, ``attach`` it to the host they run in."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.answers: list[Answer] = []
        self.refusals: list[Refusal] = []
        self.hung = ""  # the hook that never returned; from then on the kernel's defaults answer
        self._policies: list[SchedulerPolicy] = []
        self._host: Any = None
        self._inside = False

    @property
    def touches(self) -> list[Touch]:
        return self.desk.touches

    @property
    def keeps_views(self) -> bool:
        """The policies' own state holds views that were handed to them."""
        return any(kept_views({k: v for k, v in vars(one).items() if k not in HOOKS}) for one in self._policies)

    def attach(self, host: Any) -> None:
        """Follow ``host``'s step and what its guard refuses (instead of logging that)."""
        self._host = host
        guard = host.planner.guard

        def reject(hook: str, reason: str) -> None:
            guard.faults[hook] += 1
            self.refusals.append(Refusal(host.step + 1, hook, reason))

        guard.reject = reject

    def observe(self, policy: SchedulerPolicy) -> None:
        """Record every hook that ``policy`` has of its own; the others stay the kernel's defaults."""
        self._policies.append(policy)
        seal = Seal(type(policy), self.desk)
        for hook in HOOKS:
            original = getattr(policy, hook)
            if getattr(original, "__func__", None) is not getattr(SchedulerPolicy, hook):
                setattr(policy, hook, self._recorded(policy, hook, original, seal))

    def _recorded(
        self, policy: SchedulerPolicy, hook: str, original: Callable[..., Any], seal: Seal
    ) -> Callable[..., Any]:
        default = getattr(SchedulerPolicy, hook)

        def call(*arguments: Any) -> Any:
            if self._inside:  # by a wrapper, or by the policy itself: the answer that counts is the outer one
                try:
                    return original(*arguments)
                except Exception as error:
                    self._write(hook, None, f"{type(error).__name__}: {error}")
                    raise
            if self.hung:
                return default(policy, *arguments)
            with self._recording(hook, seal):
                answer = original(*(self.desk.hand_out(argument) for argument in arguments))
            if hook == "order_waiting" and answer is not None:
                return self._one_by_one(answer, seal)
            self._write(hook, _plain(answer))
            return list(answer) if isinstance(answer, Iterator) else answer

        return call

    def _one_by_one(self, answer: Iterable[Any], seal: Seal) -> Iterator[Any]:
        """A lazy order is worked out while it is read."""
        seen: list[str] = []
        self._write("order_waiting", seen)
        with self._recording("order_waiting", seal):
            items = iter(answer)
        while True:
            with self._recording("order_waiting", seal):
                item = next(items, None)
            if item is None:
                return
            seen.append(getattr(reveal(item), "rid", repr(item)))
            yield reveal(item)

    @contextmanager
    def _recording(self, hook: str, seal: Seal) -> Iterator[None]:
        self._inside = True
        try:
            with seal:
                yield
        except Exception as error:
            self._write(hook, None, f"{type(error).__name__}: {error}")
            raise
        except BaseException:
            self.hung = hook
            raise
        finally:
            self._inside = False

    def _write(self, hook: str, value: Any, error: str = "") -> None:
        host = self._host
        if host is None:
            return
        running = tuple(host.running)
        waiting = tuple(rid for rid in host.records if rid not in host.running)
        self.answers.append(Answer(host.step + 1, hook, value, error, waiting, running))


def _plain(answer: Any) -> Any:
    """An answer as data that later changes of the policy cannot reach."""
    if isinstance(answer, Decision):
        return answer._replace(rows=tuple(answer.rows), preempt=tuple(answer.preempt), reasons=dict(answer.reasons))
    if isinstance(answer, Mapping):
        return dict(answer)
    return tuple(answer) if isinstance(answer, list) else answer


_SEEN: dict[tuple[str, str], PluginInfo] = {}


class KitRegistry(Registry):
    """The registry of a recorded run: everything as installed, but policies are observed and calls end in time."""

    def __init__(self, recorder: Recorder | None, watchdog: Watchdog | None, offer: type | None = None) -> None:
        """``offer`` is a policy class that is not installed; it can be used by its class name."""
        super().__init__()
        self._recorder, self._watchdog = recorder, watchdog
        self.plugins.update(_SEEN)
        if offer is not None:
            self.add(_Offer(offer), offer.__module__)

    def resolve(self, slot: str, use: str) -> PluginInfo:
        """As usual, but what was found once in this process is not looked up again for every run."""
        if (slot, use) not in self.plugins:
            _SEEN[slot, use] = super().resolve(slot, use)
        return self.plugins[slot, use]

    def make(
        self, slot: str, use: str, options: Mapping[str, Any], *arguments: Any, where: str = "plugins.toml"
    ) -> Any:
        if slot == "host":
            arguments = (*arguments, None, self._watchdog)  # no clock: no time budget
        made = super().make(slot, use, options, *arguments, where=where)
        if self._recorder is not None:
            if slot in ("scheduler", "wrapper"):
                self._recorder.observe(made)
            if slot == "host":
                self._recorder.attach(made)
        return made


class _Offer:
    """A plugin that offers one class."""

    def __init__(self, policy: type) -> None:
        self._policy = policy

    @hookimpl
    def register_schedulers(self, register: Register) -> None:
        register(self._policy.__name__, self._policy, getattr(self._policy, "Options", None))
