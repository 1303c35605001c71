"""The options that commands which prune share, derived from the fields of PruneSpec, Budget and Recipe; and the table of pruned models."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console.format import format_rounding_warning
from headcount.app.console.options import split_at_commas
from headcount.app.console.session import Session
from headcount.core.budget import LIMITS, Budget
from headcount.core.heads import Head
from headcount.core.margin import Margin
from headcount.core.options import Bounds, Option, options_of
from headcount.core.plan import Plan
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec

if TYPE_CHECKING:
    from headcount.core.evaluation import Evaluation
    from headcount.core.sizes import SizeTest
    from headcount.models.head_map import HeadMap
    from headcount.pruning.base import Pruner
    from headcount.runs.results import PrunedModelRow

METAVARS = {
    "keep": "K",
    "latency": "MS",
    "kinds": "KIND",
    "protected": "L0H3,…",
    "recover": "LENGTH",
    "scratch": "LENGTH",
    "margin": "M",
}
"""What stands for a value in the help of an option, or for an entry of a list, where its type says too little."""
MILLISECONDS = "milliseconds of a pass over 8 rows of 128 tokens, or as many as the model reads, measured here."


def annotate_as_typer_option(declared: Option) -> Any:
    """Returns the annotation of the command-line option that sets a declared field: its flag, type, help and range come from the declaration."""
    text, kind, default = declared.help, declared.plain_type, _command_line_default(declared)
    flag = f"--{declared.name.replace('_', '-')}"
    limits: dict[str, Any] = {}
    if kind in (int, float):
        limits = {"min": declared.bounds.minimum, "max": declared.bounds.maximum, "callback": _make_bounds_check(declared.bounds)}
    if declared.name in LIMITS:
        text = f"Instead of --keep: {MILLISECONDS if declared.name == 'latency' else text[0].lower() + text[1:]}"
    flags = f"{flag}/--no-{flag[2:]}" if declared.is_flag else flag
    word = METAVARS.get(declared.name) or (None if declared.is_flag else {int: "N", float: "X"}.get(kind, "NAME"))
    metavar = f"{word},…" if declared.is_list else word
    show_default: Any = default.replace(",", ", ") if isinstance(default, str) and "," in default else True  # a line breaks at spaces only
    option = typer.Option(flags, help=text, metavar=metavar, show_default=show_default, **limits)
    return Annotated[kind | None if default is None else kind, option]


def _make_bounds_check(bounds: Bounds) -> Callable[[float | None], float | None]:
    """Returns the callback of an option that raises BadParameter outside of bounds, whose limits typer's `min` and `max` would include."""

    def check(value: float | None) -> float | None:
        if value is not None and not bounds.contains(value):
            raise typer.BadParameter(f"{value:g} is no number {bounds}")
        return value

    return check


def _command_line_default(declared: Option) -> Any:
    """Returns the default of a declared field as an option has it: a list is a text with commas, and an empty one is None."""
    default = declared.default
    return ",".join(map(str, default)) or None if isinstance(default, tuple | frozenset) else default


def build_options_class(class_name: str, field_names_by_class: dict[type, Sequence[str]]) -> Any:
    """Returns a NamedTuple whose fields are the options that set declared fields, by the class that declares them."""
    declared = {owner: {option.name: option for option in options_of(owner)} for owner in field_names_by_class}
    options = [declared[owner][name] for owner, names in field_names_by_class.items() for name in names]
    group = namedtuple(class_name, [option.name for option in options], defaults=map(_command_line_default, options))
    group.__annotations__ = {option.name: annotate_as_typer_option(option) for option in options}
    return group


TRAINING = ("steps", "epochs", "rate", "train_batch")
"""The fields of a recipe that `analyze` takes too."""


def build_recipe(options: tuple[Any, ...], recipe_fields: Sequence[str]) -> Recipe:
    """Returns the recipe that some options of a group describe.

    Raises:
        BadParameter: both a number of steps and one of epochs are given.
    """
    values = {name: getattr(options, name) for name in recipe_fields}
    if values["steps"] is not None and values["epochs"] is not None:
        raise typer.BadParameter("say how long methods train by --steps or by --epochs, not by both")
    return Recipe(**values)


class SizeOptions(build_options_class("SizeOptions", {Budget: ("keep", "parameters", "kv_bytes", "latency")})):
    """How much stays, by exactly one option; none of them where an option of the method decides."""

    @property
    def has_size(self) -> bool:
        """Whether an option says how much stays."""
        return any(value is not None for value in self)

    def provisional_budget(self, method_sizing_option: str, *, has_margin: bool = False) -> Budget:
        """Returns the size as a budget, without one where `method_sizing_option` names an option of the method that decides.

        A budget of one head stands for --keep, which `parse_kept_head_count` reads once the heads of the model are known, and for no size
        beside a margin, which decides then.

        Raises:
            BadParameter: not exactly one size is given, or one beside the option that decides.
        """
        flags = [f"--{name.replace('_', '-')}" for name in self._fields]
        sizes = {name: value for name, value in self._asdict().items() if value is not None}
        if method_sizing_option and sizes:
            raise typer.BadParameter(
                f"{method_sizing_option} decides how many heads stay; leave it out, or {', '.join(flags[:-1])} and {flags[-1]}"
            )
        if not method_sizing_option and (len(sizes) > 1 or not (sizes or has_margin)):
            raise typer.BadParameter(
                f"say how much stays by exactly one of {', '.join(flags[:-1])} and {flags[-1]}, or --margin for the smallest certified model"
            )
        if self.keep is not None or (has_margin and not sizes and not method_sizing_option):
            return Budget(keep=1)
        return Budget(**sizes | ({"latency": sizes["latency"] / 1000} if "latency" in sizes else {}))


STAGES = ("kinds", "ablation", "repair", "recover", "scratch", "scratch_rate")
RECIPE = (*TRAINING, "warmup", "decay", "distil")


class PruningOptions(build_options_class("PruningOptions", {PruneSpec: STAGES, Recipe: RECIPE, Budget: ("protected", "floor", "unit")})):
    """What is done to the heads that a method chooses, and how it trains: the options of all commands that prune."""

    def build_spec(self, method: str | Pruner | None, size: Budget, *, seed: int, plan: Plan | None = None) -> PruneSpec:
        """Returns the request for a method and a size, or for a plan made elsewhere."""
        budget = replace(
            size, floor=self.floor, unit=self.unit, protected=frozenset(map(Head.parse, split_at_commas(self.protected or "")))
        )
        stages: dict[str, Any] = {name: getattr(self, name) for name in STAGES} | {"kinds": self.attention_kinds}
        return PruneSpec.of(method, budget, plan=plan, **stages, recipe=build_recipe(self, RECIPE), seed=seed)

    def check_new_head_gets_trained(self, methods: Sequence[str | Pruner]) -> None:
        """Raises BadParameter where a new head would stay untrained after pruning by one of some methods."""
        if self.recover is not None or self.scratch is not None:
            return
        from headcount.pruning.base import Pruner  # imports torch, which help texts do without

        for pruner in Pruner.parse_grid(methods):
            if pruner.info.trains != "weights":
                raise typer.BadParameter(f"--new-head stays untrained by {pruner.label}; name --recover, such as --recover auto")

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """The kinds of attention that may lose heads."""
        return tuple(split_at_commas(self.kinds or ""))


MarginText = Annotated[
    str | None,
    typer.Option("--margin", metavar="M", help="How much worse a smaller model may be: 1% of the dense model's metric, or 0.5pt (points)."),
]
PlanMadeElsewhere = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="A plan made elsewhere, as Plan.write and `prune` write it: it says which heads go."),
]


DEFAULT_PRUNING = PruningOptions()
DEFAULT_SIZE = SizeOptions()
MethodOptions = Annotated[list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="An option of the method.")]


def add_method_options(method: str, options: dict[str, str]) -> str:
    """Returns the text of a method with further options: `dsp(tau=2)` and `{"cool": "0.3"}` give `dsp(tau=2;cool=0.3)`."""
    if not options:
        return method
    text = ";".join(f"{name}={value}" for name, value in options.items())
    return f"{method.removesuffix(')')};{text})" if method.endswith(")") else f"{method}({text})"


def parse_kept_head_count(text: str, heads: HeadMap, attention_kinds: Sequence[str] = ()) -> int:
    """Returns how many heads stay, from a number or a share, of those of some attention_kinds of attention (of all, if none are named)."""
    total = sum(block.n_heads for block in heads.blocks if not attention_kinds or block.kind in attention_kinds) or len(heads)
    try:
        return Budget(keep=parse_keep(text)).heads(total)
    except ValueError as error:
        raise typer.BadParameter(
            f"--keep is a number of heads from 1 to {total}, or a share up to 100%, such as 25% or 0.25; got {text}"
        ) from error


def parse_keep(text: str) -> int | float | str:
    """Returns the value of `keep` as Python writes it: 8 is a number of heads, 0.25 a share, and 25% is left to Budget."""
    return text.strip() if text.strip().endswith("%") else int(text) if text.strip().isdecimal() else float(text)


def split_methods(text: str) -> list[str]:
    """Returns the methods in a list with commas; commas in parentheses belong to a method."""
    methods, depth, start = [], 0, 0
    for position, letter in enumerate(f"{text},"):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            methods.append(text[start:position].strip())
            start = position + 1
    return [name for name in methods if name]


def show_pruned_rows(session: Session, dense: Evaluation, rows: Sequence[PrunedModelRow]) -> None:
    """Prints the dense model, then one line per pruned model: its metric, the difference, how much worse it is at most, and the changed answers."""
    from headcount.runs.report.certificates import format_bound

    metric = dense.metric or "loss"
    session.write_line(f"the dense model: {metric} {dense.score:.4g}, loss {dense.loss:.4g} on {dense.n_examples} examples")
    has_verdicts, has_flips = any(row.certificate.verdict for row in rows), any(row.certificate.right_to_wrong is not None for row in rows)
    lines = [
        (
            row.method,
            row.keep,
            row.seed,
            "" if row.steps is None else row.steps,
            f"{row.value if row.value is not None else row.loss:.4g}",
            f"{row.difference:+.4g}",
            format_bound(row.certificate.quality),
            *([row.certificate.verdict or ""] if has_verdicts else []),
            *(
                ["" if flipped is None else len(flipped) for flipped in (row.certificate.right_to_wrong, row.certificate.wrong_to_right)]
                if has_flips
                else []
            ),
            f"{row.loss - dense.loss:+.3g}",
            f"{row.parameters:,}",
        )
        for row in rows
    ]
    verdicts, flips = ["verdict"] if has_verdicts else [], ["right → wrong", "wrong → right"] if has_flips else []
    columns = ("method", "heads", "seed", "steps", metric, "change", "worse by at most", *verdicts, *flips, "loss", "parameters")
    session.write_table(columns, lines, right_aligned=[column for column in columns[1:] if column != "verdict"])
    session.write_line(f"each bound holds for its row alone (95 %, one-sided, n = {dense.n_examples})")
    for method, heads in {row.method: row.within_rounding for row in rows if row.within_rounding}.items():
        session.write_note(format_rounding_warning(method, heads))


def show_size_tests(session: Session, tests: Sequence[SizeTest], margin: Margin, n_examples: int) -> None:
    """Prints the sizes that were tested in order, and the smallest certified one, or the bound of the first, which failed."""
    from headcount.runs.report.certificates import describe_size_tests, format_bound

    lines = [
        (number, test.n_kept, format_bound(test.certificate.quality), f"{test.certificate.quality.p:.2g}", test.certificate.verdict)
        for number, test in enumerate(tests, 1)
    ]
    session.write_table(
        ("order", "heads", "worse by at most", "p", "verdict"), lines, right_aligned=("order", "heads", "worse by at most", "p")
    )
    session.write_line(
        f"sizes are tested from large to small, each at 95 %, up to the first that fails (n = {n_examples}); each bound holds for its row alone"
    )
    sentence = describe_size_tests(tests, margin)
    session.write_line(f"{sentence[:1].upper()}{sentence[1:]}.")


def show_surviving_heads(session: Session, rows: Sequence[PrunedModelRow]) -> None:
    """Prints how many heads stay in every pruned model, by kind of attention where there are several, and by layer."""
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.survivors.by_kind))
    several_kinds = kinds if len(kinds) > 1 else []
    lines = []
    for row in rows:
        counts = row.survivors.by_kind
        lines.append((row.method, row.keep, row.seed, *(counts.get(kind, 0) for kind in several_kinds), row.survivors.format_layers()))
    numbers = ("heads", "seed", *several_kinds)
    session.write_table(("survivors of", *numbers, "heads that stay in each layer"), lines, right_aligned=numbers)
