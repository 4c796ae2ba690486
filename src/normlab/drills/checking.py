"""Drills: the learner writes a function from memory, and the checker says which mistake it is.

A :class:`Drill` holds a task, a right solution, probes (inputs), and a catalogue of mistakes. A mistake is an edit of
the solution's own source: it can be run, combined with another, shown in repair and review, and read by a person::

    Mistake("unbiased_var", probe="small_d", change={"correction=0": "correction=1"}, says="...", fix="...")

``drill.check(function)`` goes through these steps:

1. **Observe**, in a process of its own (``guard.py``): the function runs twice on fresh copies of every probe; on one
   probe in the other dtypes and with gradients; and the drill's properties are measured (does a token see others?).
2. **Contract**: kind, number, shape, dtype of the results, finite values, inputs untouched, the same answer twice, a
   gradient that arrives. ``values.py`` has the sentences.
3. **Values** on the probes, in float64 unless a probe is about rounding. A solution that computes in float32 passes:
   the tolerance is 2e-6 of the largest entry, and mistakes differ by 1e-4 or more.
4. **Diagnosis by prediction.** Every mistake is run on every probe; the one whose results (errors included) are those
   of the learner is the diagnosis. No single one: all pairs of edits that go together. Several explanations with
   equal results: the first is named, the others are told.
5. **No explanation**: the properties in which the function differs from a right one, and the honest sentence that the
   mistake is not in the catalogue.

Help has three levels: 1 the property and a four-number example, 2 the name, 3 the fix. ``check`` prints level 1.
A ``convention`` is a mistake that somebody publishes as a choice. It is called by its owner; unless the task names
another one, the solution passes (``accepted``).

To add a mistake: one entry in the drill's file. ``change`` maps a text that stands once in the solution to what the
learner writes instead; a mistake of another build is a whole function as a text. ``probe`` names the input that
separates it from the solution; ``tests/test_drills.py`` checks that it does, that the mistake is diagnosed as itself,
and that no other mistake of the drill has the same results on all probes (such pairs are listed in ``equal``).
"""

import contextlib
import functools
import inspect
import io
import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from normlab.drills import guard, progress, values

Solution = Callable[..., Any]
NOT_IN_CATALOGUE = "This mistake is not in the catalogue; what is said above is all that the checker knows."
SWEEP = (torch.float32, torch.bfloat16, torch.float16)
PEEKING = {
    "_getframe",
    "currentframe",
    "f_back",
    "f_locals",
    "getouterframes",
    "get_objects",
    "get_referrers",
    "inspect",
    "normlab",
}
# Functions of torch that do the better part of a drill.
SHORTCUTS = {"layer_norm", "native_layer_norm", "rms_norm", "batch_norm", "native_batch_norm"}
SHORTCUTS |= {"scaled_dot_product_attention"}
AUTOGRAD = {"autograd", "backward", "jacobian", "gradcheck"}
PRINTED = 2000  # characters of the learner's prints that are shown

# Faults that any solution can have: id -> (what it is, the fix).
COMMON = {
    "wrong_type": ("The result is of another kind than the task asks for.", "Look at the task's last line again."),
    "wrong_count": ("Another number of results is asked for.", "Return a tuple with exactly the results of the task."),
    "wrong_shape": ("A result has the wrong shape.", "Follow the shapes line by line; which axis should be left?"),
    "wrong_dtype": (
        "A result has another dtype than the input.",
        "Compute in a wider dtype where needed, and end with .to(x.dtype); do not narrow float64 on the way.",
    ),
    "not_finite": ("NaN or infinity where a number belongs.", "Look for a division by 0, an overflow, a missing eps."),
    "modifies_input": (
        "The function changes its inputs.",
        "Replace operations in place (x -= m, x.mul_(w), x[...] = 0) by new tensors; .float() copies nothing if x is "
        "float32 already.",
    ),
    "not_repeatable": (
        "A second call with the same inputs gives another result.",
        "Keep no state between calls and draw no random numbers.",
    ),
    "no_gradient": (
        "The values are right, the gradient is not: something is cut out of the graph.",
        "Look for .detach(), .data, .item(), torch.no_grad() and new tensors made from numbers.",
    ),
    "not_written": ("The stub is not filled in.", "Put your lines where it says raise NotImplementedError."),
    "raises": ("The function raises an error.", "Read the error's last line first, then the line of yours it names."),
    "too_slow": ("The function does not end in time.", "Check the condition of every loop."),
    "died": ("The process ended.", "Remove sys.exit, os._exit and the like."),
}


@dataclass(frozen=True)
class Probe:
    """An input that makes certain mistakes visible.

    Args:
        sees: what is special about it, as it reads after "on an input with".
        arguments: makes a fresh tuple of the solution's arguments.
        tolerance: of the values, as a share of the largest one.
    """

    sees: str
    arguments: Callable[[], tuple]
    tolerance: float = 2e-6


@dataclass(frozen=True)
class Mistake:
    """One entry of a catalogue.

    Args:
        id: its name in reports.
        probe: the probe that separates it from the solution.
        change: texts of the solution's source and what stands there instead, or a whole function.
        says: what was done, in one sentence (help level 2).
        fix: what to do instead (level 3).
        convention: whose choice it is, if anybody's.
        accepted: the convention passes.
        story: a fault of this kind in a real project.
    """

    id: str
    probe: str
    change: dict[str, str] | str
    says: str
    fix: str
    convention: str = ""
    accepted: bool = False
    story: str = ""


@dataclass(frozen=True)
class Property:
    """A question with a yes or no that describes a function without its formula."""

    yes: str
    no: str
    holds: Callable[[Solution], bool]


@dataclass(frozen=True)
class Outcome:
    """What one call gave: a plain value, or the name of an error and its explanation."""

    value: Any = None
    error: str = ""
    explanation: str = ""
    modified: tuple[str, ...] = ()
    repeats: bool = True
    printed: str = ""

    @functools.cached_property
    def digest(self) -> list[tuple[str, float, list[float]]]:
        """The value in short, for a quick comparison."""
        return values.digest(self.value)


@dataclass
class Observed:
    """All that was seen of a solution: by probe, by dtype, with gradients, by property."""

    probes: dict[str, Outcome] = field(default_factory=dict)
    dtypes: dict[str, Outcome] = field(default_factory=dict)
    gradients: dict[str, Outcome] = field(default_factory=dict)
    properties: dict[int, bool | None] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)  # "load": an Outcome, "shortcuts": names
    end: str = ""


@dataclass(frozen=True, repr=False)
class Report:
    """What a check found. ``help(level)`` says more; printing a report gives nothing away.

    Args:
        passed: the solution is right, or follows an accepted convention.
        mistakes: ids of the catalogue, or of the faults that every drill has.
        convention: id of the published choice that the solution follows.
    """

    passed: bool
    mistakes: tuple[str, ...]
    convention: str | None
    texts: tuple[str, str, str] = ("", "", "")
    others: tuple[tuple[str, ...], ...] = ()  # explanations with the same results

    def help(self, level: int = 1) -> None:
        """Print what is known: 1 the failing property, 2 the name of the mistake, 3 the fix.

        Raises:
            ValueError: another level.
        """
        if level not in (1, 2, 3):
            raise ValueError(f"level must be 1 (property), 2 (name) or 3 (fix), got {level!r}")
        print(self.texts[level - 1])

    def __repr__(self):
        return "Report: passed" if self.passed else "Report: not yet; .help(2) names the mistake, .help(3) the fix"


@dataclass(frozen=True, eq=False, repr=False)
class Drill:
    """One task with its catalogue of mistakes; :func:`normlab.drills.drill` finds it by its slug.

    Args:
        solution: a right one, whose name is the slug.
        task: what to write, down to shapes and dtypes.
        minutes: the time budget.
        why: why it is asked, in our judgment.
        hints: given one by one.
        probes: inputs by name.
        mistakes: the catalogue.
        equal: pairs of ids with equal results on all inputs.
        properties: for mistakes that are not in the catalogue.
        dtypes: the probe that is repeated in the other dtypes ("": none).
        gradients: the probe at which the gradient must arrive ("": none).
        run: calls a solution with the arguments of a probe, where that is more than a call.
    """

    solution: Solution
    task: str
    minutes: int
    why: str
    hints: tuple[str, ...]
    probes: dict[str, Probe]
    mistakes: tuple[Mistake, ...]
    equal: tuple[tuple[str, str], ...] = ()
    properties: tuple[Property, ...] = ()
    dtypes: str = ""
    gradients: str = ""
    run: Callable[..., Any] = lambda solution, *arguments: solution(*arguments)

    @property
    def slug(self) -> str:
        """The name of the drill and of the function that it asks for."""
        return self.solution.__name__

    @property
    def signature(self) -> str:
        """The call that the checker makes."""
        return f"{self.slug}{inspect.signature(self.solution)}"

    @property
    def source(self) -> str:
        """The text of the right solution."""
        return _source(self)

    def __repr__(self):
        return (
            f"Drill {self.slug}, {self.minutes} minutes\n\n{_fill(self.task, 84)}\n\nSignature: {self.signature}\n"
            f'Then: drill("{self.slug}").check({self.slug}). There are hints: .hint(1) to .hint({len(self.hints)}).'
        )

    def stub(self) -> str:
        """An empty solution, to be filled from memory."""
        head = "class" if inspect.isclass(self.solution) else "def"
        if head == "class":
            lines = [f"class {self.slug}(torch.nn.Module):", f"    def __init__{_method(self.solution, '__init__')}:"]
            return "\n".join(["import torch", "", "", *lines, "        raise NotImplementedError"])
        return f"import torch\n\n\ndef {self.signature}:\n    raise NotImplementedError"

    def hint(self, number: int = 1) -> None:
        """Print one hint.

        Raises:
            ValueError: there is no such hint.
        """
        if not 1 <= number <= len(self.hints):
            raise ValueError(f"{self.slug} has hints 1 to {len(self.hints)}, got {number!r}")
        print(self.hints[number - 1])

    def mistake(self, id: str) -> Mistake:
        """An entry of the catalogue.

        Raises:
            KeyError: there is none with this id.
        """
        for mistake in self.mistakes:
            if mistake.id == id:
                return mistake
        raise KeyError(f"{self.slug} has no mistake {id!r}, but {', '.join(m.id for m in self.mistakes)}")

    def start(self) -> None:
        """Print the task and start the clock: the next check says how long it took."""
        print(self)
        progress.start(self.slug)

    def check(self, function: Solution, level: int = 1, count: bool = True) -> Report:
        """Check a solution, print what was found, and return it.

        Args:
            function: takes the arguments of the drill's signature. It runs in a process of its own where the platform
                has one; nothing of it is changed or sent anywhere.
            level: how much is printed, see :meth:`Report.help`.
            count: whether this is a try that the file of progress counts; a stub that is not filled in is none.

        Raises:
            TypeError: function cannot be called.
            ValueError: level is not 1, 2 or 3.
        """
        if not callable(function):
            raise TypeError(f"check needs the function itself, got {values.name(values.plain(function))}")
        return self.check_loaded(lambda: function, level, count)

    def check_loaded(self, load: Callable[[], Solution], level: int = 1, count: bool = True) -> Report:
        """:meth:`check` for what is yet to be loaded, which happens under guard as well."""
        if level not in (1, 2, 3):
            raise ValueError(f"level must be 1, 2 or 3, got {level!r}")
        observed = observe_guarded(self, load)
        report = judge(self, observed)
        if printed := _prints(observed):
            print(printed)
        report.help(level)
        if count and report.mistakes != ("not_written",):
            if (seconds := progress.running(self.slug)) is not None:
                print(f"{seconds // 60} min {seconds % 60} s since the start; the budget is {self.minutes} min.")
            progress.note(self.slug, report.passed)
        return report


# --- mistakes that run -----------------------------------------------------------------------------------------------


@functools.cache
def _source(drill: Drill) -> str:
    return textwrap.dedent(inspect.getsource(drill.solution))


def edited(source: str, mistake: Mistake) -> str | None:
    """The source with a mistake in it; None if a text that it changes does not stand there exactly once."""
    if isinstance(mistake.change, str):
        return None
    for old in mistake.change:
        if source.count(old) != 1:
            return None
    for old, new in mistake.change.items():
        source = source.replace(old, new)
    return source


def source_of(drill: Drill, *mistakes: Mistake) -> str | None:
    """The solution with these mistakes in it; None if they do not go together."""
    if len(mistakes) == 1 and isinstance(mistakes[0].change, str):
        return textwrap.dedent(mistakes[0].change).strip() + "\n"
    for order in itertools.permutations(mistakes):
        source: str | None = _source(drill)
        for mistake in order:
            source = source and edited(source, mistake)
        if source:
            return source
    return None


def compiled(drill: Drill, source: str) -> Solution:
    """A solution from its text, with the names that the drill's file has."""
    names = dict(vars(inspect.getmodule(drill.solution)))
    exec(compile(source, f"<{drill.slug}>", "exec"), names)
    return names[drill.slug]


@functools.cache
def wrong(drill: Drill, *ids: str) -> Solution | None:
    """The solution with these mistakes in it, or None."""
    source = source_of(drill, *map(drill.mistake, ids))
    return compiled(drill, source) if source else None


@functools.cache
def predicted_at(drill: Drill, probe: str, *ids: str) -> Outcome | None:
    """What the solution with these mistakes gives on a probe; without ids, the right result."""
    solution = wrong(drill, *ids) if ids else drill.solution
    return _call(drill, solution, clone(drill.probes[probe].arguments())) if solution else None


def predicted(drill: Drill, *ids: str) -> dict[str, Outcome] | None:
    """:func:`predicted_at` all probes."""
    found = {probe: predicted_at(drill, probe, *ids) for probe in drill.probes}
    return {probe: outcome for probe, outcome in found.items() if outcome} or None


@functools.cache
def reference(drill: Drill) -> Observed:
    """All that is seen of a right solution."""
    return collect(observe(drill, lambda: drill.solution))


# --- observe -------------------------------------------------------------------------------------------------------


def observe_guarded(drill: Drill, load: Callable[[], Solution]) -> Observed:
    """What is seen of a solution that runs in a process of its own."""
    messages, end = guard.guarded(lambda: observe(drill, load))
    observed = collect(messages)
    observed.end = end
    return observed


def collect(messages: Iterable[tuple[str, Any, Any]]) -> Observed:
    """The messages of :func:`observe`, sorted."""
    observed = Observed()
    for kind, key, value in messages:
        getattr(observed, kind)[key] = value
    return observed


def observe(drill: Drill, load: Callable[[], Any]) -> Iterator[tuple[str, Any, Any]]:
    """Run a solution on everything that the drill has: (field of Observed, key, what was seen)."""
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            solution = load()
    except guard.OutOfTime:
        raise
    except BaseException as error:
        yield "notes", "load", Outcome(error=type(error).__name__, explanation=guard.explain(error))
        return
    yield "notes", "load", Outcome(printed=out.getvalue()[:PRINTED])
    with _Called() as called:
        for name, probe in drill.probes.items():
            yield "probes", name, _call(drill, solution, clone(probe.arguments()), twice=True)
    yield "notes", "shortcuts", called.found | _names(solution) & (PEEKING | AUTOGRAD)
    if drill.dtypes:
        for dtype in SWEEP:
            arguments = _cast(clone(drill.probes[drill.dtypes].arguments()), dtype)
            yield "dtypes", str(dtype).removeprefix("torch."), _call(drill, solution, arguments)
    if drill.gradients:
        arguments = clone(drill.probes[drill.gradients].arguments())
        yield (
            "gradients",
            drill.gradients,
            _call(drill, functools.partial(_gradients, drill, solution), arguments, raw=True),
        )
    for number, item in enumerate(drill.properties):
        yield "properties", number, _holds(item, solution)


def _call(drill: Drill, solution: Solution, arguments: tuple, twice: bool = False, raw: bool = False) -> Outcome:
    """One call (or two, with the same tensors) on arguments that nobody else holds."""
    before = clone(arguments)
    run = (lambda: solution(*arguments)) if raw else (lambda: drill.run(solution, *arguments))
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            value = values.plain(run())
            modified = _modified(drill, before, arguments)
            again = values.plain(run()) if twice and not modified else value
    except guard.OutOfTime:
        raise
    except BaseException as error:
        return Outcome(error=type(error).__name__, explanation=guard.explain(error), printed=out.getvalue()[:PRINTED])
    repeats = values.same(again, value, 1e-9)
    return Outcome(value, modified=modified, repeats=repeats, printed=out.getvalue()[:PRINTED])


def clone(value: Any) -> Any:
    """Fresh tensors inside of the same tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple):
        return type(value)(clone(item) for item in value)
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    return value


def _modified(drill: Drill, before: tuple, after: tuple) -> tuple[str, ...]:
    names = list(inspect.signature(drill.solution).parameters)
    names += [f"argument {i + 1}" for i in range(len(names), len(after))]
    return tuple(
        name for name, a, b in zip(names, before, after) if not values.same(values.plain(b), values.plain(a), 0.0)
    )


def _cast(arguments: tuple, dtype: torch.dtype) -> tuple:
    return tuple(
        a.to(dtype)
        if isinstance(a, Tensor) and a.is_floating_point()
        else _cast(a, dtype)
        if isinstance(a, tuple)
        else a
        for a in arguments
    )


def _gradients(drill: Drill, solution: Solution, *arguments: Any) -> tuple[Tensor, ...]:
    """The gradients of a weighted sum of all results with respect to the float tensors among the arguments."""
    leaves = [a.requires_grad_() for a in arguments if isinstance(a, Tensor) and a.is_floating_point()]
    results = drill.run(solution, *arguments)
    total = torch.stack([(r.double() * normal(*r.shape, seed=7)).sum() for r in _tensors(results)]).sum()
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves))


def _tensors(results: Any) -> list[Tensor]:
    if isinstance(results, Tensor):
        return [results] if results.is_floating_point() else []
    return [tensor for item in results for tensor in _tensors(item)] if isinstance(results, list | tuple) else []


def _holds(item: Property, solution: Solution) -> bool | None:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return bool(item.holds(solution))
    except guard.OutOfTime:
        raise
    except BaseException:  # even sys.exit
        return None


class _Called(TorchFunctionMode):
    """Keeps the names of the SHORTCUTS that are called."""

    def __init__(self):
        super().__init__()
        self.found = frozenset[str]()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in SHORTCUTS:
            self.found |= {name}
        return function(*args, **(kwargs or {}))


def _names(solution: Any) -> frozenset[str]:
    """The names in a solution's code, its helpers and methods; "normlab" where something of ours is among them."""
    found, to_visit, seen = set(), [solution], set()
    while to_visit:
        function = to_visit.pop()
        if inspect.isclass(function):
            to_visit += [item for item in vars(function).values() if inspect.isfunction(item)]
            continue
        function = inspect.unwrap(function)
        code = getattr(function, "__code__", None)
        if code is None or code in seen:
            continue
        seen.add(code)
        names, texts = _of_code(code)
        scope = inspect.getclosurevars(function)
        reached = [*scope.globals.values(), *scope.nonlocals.values()]
        modules = [str(getattr(item, "__module__", "")) for item in reached]
        if any(text.split(".")[0] == "normlab" for text in (*names, *texts, *modules)):
            found.add("normlab")
        found |= names
        to_visit += [item for item in reached if inspect.isfunction(item) and not item.__module__.startswith("torch")]
    return frozenset(found)


def _of_code(code: Any) -> tuple[set[str], set[str]]:
    """The names and the texts in a piece of code and in what is defined inside of it."""
    names, texts = set(code.co_names), set()
    for constant in code.co_consts:
        if isinstance(constant, str):
            texts.add(constant)
        elif inspect.iscode(constant):
            more = _of_code(constant)
            names, texts = names | more[0], texts | more[1]
    return names, texts


# --- judge ---------------------------------------------------------------------------------------------------------


def judge(drill: Drill, observed: Observed) -> Report:
    """The report on what was observed."""
    load = observed.notes.get("load", Outcome())
    if load.error:
        return _common(drill, "raises", f"Loading your solution failed. {load.explanation}")
    if observed.end:
        where = next((name for name in drill.probes if name not in observed.probes), "")
        where = f" on an input with {drill.probes[where].sees}" if where else ""
        return _common(
            drill, "too_slow" if observed.end == guard.TIME else "died", f"Your function {observed.end}{where}."
        )
    right = reference(drill)
    ids, others = diagnose(drill, observed.probes)
    if all(outcome.error == "NotImplementedError" for outcome in observed.probes.values()):
        return _not_written(drill)
    if ids is None and all(outcome.error for outcome in observed.probes.values()):
        return _common(drill, "raises", f"Your function raises. {next(iter(observed.probes.values())).explanation}")
    faults = _faults(drill, observed, right, values_fit=ids is not None and not _mistakes_only(drill, ids))
    if ids is None:
        return _unknown(drill, observed, right, faults)
    named = [drill.mistake(id) for id in ids]
    convention = next((m.id for m in named if m.convention), None)
    accepted = [m for m in named if m.accepted]
    mistakes = [m for m in named if not m.accepted]
    if mistakes:
        faults = [fault for fault in faults if fault[0] in ("modifies_input", "not_repeatable")]
    if not mistakes and not faults:
        return Report(True, (), convention, (_passed(drill, observed, accepted),) * 3)
    return _known(drill, observed, right, mistakes, faults, accepted, others)


def diagnose(drill: Drill, outcomes: dict[str, Outcome]) -> tuple[tuple[str, ...] | None, tuple[tuple[str, ...], ...]]:
    """The ids that explain the outcomes (none: they are right) and other ids that would; None for no explanation.

    Right results first, then accepted conventions, single mistakes, pairs; once strictly, and once with dtypes and
    the rounding of half precision left aside.
    """
    accepted = [m.id for m in drill.mistakes if m.accepted]
    singles = [m.id for m in drill.mistakes]
    levels: list[list[tuple[str, ...]]] = [
        [()],
        [(id,) for id in accepted],
        [(id,) for id in singles],
        list(itertools.combinations(singles, 2)),
    ]
    for loose in (False, True):
        for level in levels[2:] if loose else levels:
            found = [ids for ids in level if _explains(drill, ids, outcomes, loose)]
            if found:
                return found[0], tuple(found[1:])
    return None, ()


def _explains(drill: Drill, ids: tuple[str, ...], outcomes: dict[str, Outcome], loose: bool) -> bool:
    for quick in (True, False):  # most candidates fail at the first probe, on the first numbers
        for name, outcome in outcomes.items():
            expected = predicted_at(drill, name, *ids)
            if expected is None or outcome.error != expected.error:
                return False
            tolerance = drill.probes[name].tolerance * (5 if ids else 1)
            if quick and values.apart(outcome.digest, expected.digest):
                return False
            if not quick and not values.same(outcome.value, expected.value, tolerance, loose):
                return False
    return not loose or not _is_right(drill, predicted(drill, *ids) or {})


def _is_right(drill: Drill, outcomes: dict[str, Outcome], loose: bool = True) -> bool:
    """Left aside what is left aside in a loose comparison, these are the right results."""
    right = predicted(drill)
    assert right is not None
    return all(
        not outcome.error and values.same(outcome.value, right[name].value, drill.probes[name].tolerance, loose)
        for name, outcome in outcomes.items()
    )


def _mistakes_only(drill: Drill, ids: tuple[str, ...]) -> list[str]:
    return [id for id in ids if not drill.mistake(id).accepted]


def _faults(drill: Drill, observed: Observed, right: Observed, values_fit: bool) -> list[tuple[str, str]]:
    """Breaches of the contract as (id, sentence), the first of each kind."""
    found: dict[str, str] = {}
    pairs = [(f"an input with {drill.probes[name].sees}", o, right.probes[name]) for name, o in observed.probes.items()]
    pairs += [(f"{name} inputs", o, right.dtypes[name]) for name, o in observed.dtypes.items()]
    pairs += [("inputs that require a gradient", o, right.gradients[name]) for name, o in observed.gradients.items()]
    for where, outcome, expected in pairs:
        if outcome.error:
            found.setdefault("raises", f"On {where} your function raises. {outcome.explanation}")
            continue
        if fault := values.broken(outcome.value, expected.value):
            found.setdefault(fault[0], f"On {where} {fault[1]}.")
        if outcome.modified:
            found.setdefault("modifies_input", f"On {where} your function changes its argument {outcome.modified[0]}.")
        if not outcome.repeats:
            found.setdefault("not_repeatable", f"On {where} a second call with the same tensors gives another result.")
    if values_fit and "raises" not in found:
        for name, outcome in observed.gradients.items():
            if not values.same(outcome.value, right.gradients[name].value, 1e-5, loose=True):
                found.setdefault("no_gradient", "The values are right, but the gradient through your function is not.")
    return list(found.items())


def _known(
    drill: Drill,
    observed: Observed,
    right: Observed,
    mistakes: list[Mistake],
    faults: list[tuple[str, str]],
    accepted: list[Mistake],
    others: tuple[tuple[str, ...], ...],
) -> Report:
    ids = tuple(m.id for m in mistakes) + tuple(id for id, _ in faults)
    first = [text for _, text in faults]
    if mistakes:
        first.insert(0, _example(drill, observed, right, mistakes[0].probe))
    names = [_named(m) for m in mistakes] + [COMMON[id][0] for id, _ in faults]
    fixes = [m.fix for m in mistakes] + [COMMON[id][1] for id, _ in faults]
    second = [f"{drill.slug}: {' + '.join(ids)}", *(text for _, text in faults), *names]
    second += [f"The same results would come from {' + '.join(other)}." for other in others]
    convention = next((m.id for m in [*mistakes, *accepted] if m.convention), None)
    texts = (
        "\n".join([f"{drill.slug}: not yet.", *first]),
        "\n".join(map(_fill, second)),
        "\n".join(map(_fill, [*second, *(f"Fix: {fix}" for fix in fixes)])),
    )
    return Report(False, ids, convention, texts, others)


def _named(mistake: Mistake) -> str:
    if not mistake.convention:
        return mistake.says
    return f"{mistake.says} That is the convention of {mistake.convention}; this drill asks for another one."


def _unknown(drill: Drill, observed: Observed, right: Observed, faults: list[tuple[str, str]]) -> Report:
    """Nothing explains the results: the contract, an example, and the properties that differ."""
    lines = [text for _, text in faults]
    failing = [
        name
        for name, outcome in observed.probes.items()
        if not outcome.error and not values.same(outcome.value, right.probes[name].value, drill.probes[name].tolerance)
    ]
    if failing and not faults:
        lines.append(_example(drill, observed, right, failing[0]))
    fine = [name for name in observed.probes if name not in failing and not observed.probes[name].error]
    if fine and failing:
        lines.append(f"Right on inputs with {'; '.join(drill.probes[name].sees for name in fine)}.")
    lines += _fingerprint(drill, observed, right)
    text = "\n".join([f"{drill.slug}: not yet.", *lines])
    ids = tuple(id for id, _ in faults)
    honest = [*(COMMON[id][0] for id in ids), NOT_IN_CATALOGUE]
    fixes = [f"Fix: {COMMON[id][1]}" for id in ids]
    return Report(False, ids, None, (text, "\n".join([text, *honest]), "\n".join([text, *honest, *fixes])))


def _fingerprint(drill: Drill, observed: Observed, right: Observed) -> list[str]:
    found = []
    for number, item in enumerate(drill.properties):
        mine, wanted = observed.properties.get(number), right.properties[number]
        if mine is not None and mine != wanted:
            found.append(f"Yours: {item.yes if mine else item.no}. Right: {item.yes if wanted else item.no}.")
    return found


def _example(drill: Drill, observed: Observed, right: Observed, probe: str) -> str:
    """The property in which the solution fails (if one is known), and four numbers."""
    lines = _fingerprint(drill, observed, right)[:1]
    outcome = observed.probes[probe]
    sees = f"On an input with {drill.probes[probe].sees}"
    if outcome.error:
        return "\n".join([*lines, f"{sees} your function raises. {outcome.explanation}"])
    if fault := values.broken(outcome.value, right.probes[probe].value):
        return "\n".join([*lines, f"{sees} {fault[1]}."])
    return "\n".join(
        [*lines, f"{sees}:", values.example(outcome.value, right.probes[probe].value, drill.probes[probe].tolerance)]
    )


def _common(drill: Drill, id: str, text: str) -> Report:
    says, fix = COMMON[id]
    first = f"{drill.slug}: not yet.\n{text}"
    return Report(False, (id,), None, (first, f"{first}\n{says}", f"{first}\n{says}\nFix: {fix}"))


def _not_written(drill: Drill) -> Report:
    text = f"{drill.slug}: not written yet."
    return Report(False, ("not_written",), None, (text, text, f"{text}\n{COMMON['not_written'][1]}"))


def _passed(drill: Drill, observed: Observed, accepted: list[Mistake]) -> str:
    lines = [f"{drill.slug}: passed, {len(drill.probes)} probes."]
    lines += [f"{m.says} That is the convention of {m.convention}; it passes." for m in accepted]
    used = observed.notes.get("shortcuts", frozenset())
    if used & PEEKING:
        lines.append("Your code looks at its caller or at this package: it passed, and the drill asks for more.")
    elif used:
        lines.append(f"It calls torch's own {', '.join(sorted(used))}: it passed, and the drill asks for more.")
    return "\n".join(map(_fill, lines))


def _prints(observed: Observed) -> str:
    """What the solution printed, once."""
    outcomes = [observed.notes.get("load", Outcome()), *observed.probes.values()]
    texts = list(dict.fromkeys(outcome.printed for outcome in outcomes if outcome.printed))
    if not texts:
        return ""
    more = f"(and other lines in {len(texts) - 2} more calls)\n" if len(texts) > 2 else ""
    return f"Your code printed:\n{''.join(texts[:2]).rstrip()}\n{more}"


def _fill(text: str, width: int = 100) -> str:
    return "\n".join(textwrap.fill(line, width, break_long_words=False) for line in text.splitlines())


def _method(cls: Any, name: str) -> str:
    return str(inspect.signature(getattr(cls, name)))


# --- what drills share -----------------------------------------------------------------------------------------------


def normal(*shape: int, seed: int, mean: float = 0.0, std: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers, the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return (mean + std * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
