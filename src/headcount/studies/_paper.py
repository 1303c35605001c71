"""What a paper is: its experiments in order, each a study that runs on any model, with what it needs and what the paper found."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from headcount.core.errors import OptionError, UnknownName
from headcount.core.options import Configurable, option, options_of
from headcount.core.registry import PAPERS
from headcount.core.study_result import StudyResult, Table
from headcount.studies._base import Study

if TYPE_CHECKING:
    from headcount.data.task import Task
    from headcount.models.head_map import HeadMap


@dataclass(frozen=True, slots=True)
class PaperInfo:
    """The reference of a paper.

    Attributes:
        title: The title.
        authors: Family names with given names, as BibTeX joins them.
        year: The year.
        venue: The proceedings, the journal, or the archive of a preprint.
        entry: The type of the BibTeX entry.
        details: Further fields of the entry, such as `pages` and `doi`.
    """

    title: str
    authors: tuple[str, ...]
    year: int
    venue: str
    entry: Literal["inproceedings", "article", "misc"] = "inproceedings"
    details: Mapping[str, str] = field(default_factory=dict)

    def bibtex(self, key: str) -> str:
        """Returns the entry of a bibliography."""
        venue = {"inproceedings": "booktitle", "article": "journal", "misc": "howpublished"}[self.entry]
        fields = {"title": f"{{{self.title}}}", "author": " and ".join(self.authors), venue: self.venue, "year": str(self.year)}
        lines = [f"  {name} = {{{value}}}," for name, value in {**fields, **self.details}.items()]
        return "\n".join([f"@{self.entry}{{{key},", *lines, "}"])


@dataclass(frozen=True, slots=True)
class PaperSubject:
    """What the experiments of a paper run on: the heads of a model, its task, and whether there is a text to measure roles on."""

    heads: HeadMap
    task: Task
    has_text: bool
    has_new_head: bool = False
    """Whether the head of the model is new and untrained."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of attention of the model."""
        return tuple(dict.fromkeys(block.kind for block in self.heads.blocks))


@dataclass(frozen=True, slots=True)
class Item:
    """An experiment of a paper.

    Attributes:
        id: Its short name, such as `V8`.
        title: What comes out, in one line.
        part: Where it stands in the paper, such as `Fig. 7`.
        study: The study that measures it; None if it cannot run, for which `lacks` or `reason` says why.
        lacks: The inputs that it needs and the caller did not name: options of the paper, or `text`.
        reason: Why this model or task cannot take part.
        published: What the paper reports, to stand beside ours.
    """

    id: str
    title: str
    part: str
    study: Study | None = None
    lacks: tuple[str, ...] = ()
    reason: str = ""
    published: Table | None = None


@dataclass(frozen=True, slots=True)
class PaperResult:
    """The experiments of a paper on one model.

    Attributes:
        paper: The paper with its options.
        items: The experiments in their order; one whose `study` is None did not run, for the reason that it has.
        results: The result of each experiment that ran, by its id, such as `M8`.
        failures: The message of each that failed, by its id.
        summary: The summary of all of them in the run folder, beside their tables and figures; None until it is written.
    """

    paper: Paper
    items: tuple[Item, ...]
    results: Mapping[str, StudyResult]
    failures: Mapping[str, str]
    summary: Path | None = None


@dataclass(frozen=True)
class Paper(Configurable):
    """A paper. Its fields are the further inputs of its experiments."""

    _: KW_ONLY
    quick: bool = option(False, "A small version: fewer sizes, seeds, steps and examples, to see what comes out")
    info: ClassVar[PaperInfo]
    set_by_quick: ClassVar[tuple[str, ...]] = ()
    """Options that the small version sets itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [declared.name for declared in options_of(type(self)) if getattr(self, declared.name) != declared.default]
        if self.quick and (refused := [name for name in self.set_by_quick if name in names]):
            raise OptionError(
                f"the small version of {self.name} sets {', '.join(refused)} itself; leave out {' and '.join(refused)}, or quick"
            )

    @abstractmethod
    def items(self, subject: PaperSubject) -> Sequence[Item]:
        """Returns every experiment of the paper in its order, those that cannot run on this subject too."""

    @classmethod
    def parse(cls, paper: str | Paper) -> Paper:
        """Returns the paper of a text such as `michel2019(quick=true)`; a paper is returned as it is."""
        return PAPERS.parse(paper, Paper)


def choose_items(items: Sequence[Item], only: Sequence[str]) -> tuple[Item, ...]:
    """Returns the items that `only` names by id or by part (`V8`, `Fig. 7`); all if it names none.

    Raises:
        UnknownName: the paper has no such item.
    """
    names = {name.lower().replace(" ", ""): name for item in items for name in (item.id, item.part)}
    wanted_names = [name.lower().replace(" ", "") for name in only]
    for name, text in zip(wanted_names, only, strict=True):
        if name not in names:
            known = ", ".join(f"{item.id} ({item.part})" if item.part else item.id for item in items)
            close = get_close_matches(text.strip().upper(), [item.id for item in items], n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise UnknownName(f"no item of this paper '{text}'.{hint} Known: {known}")
    return tuple(item for item in items if not only or {item.id.lower(), item.part.lower().replace(" ", "")}.intersection(wanted_names))
