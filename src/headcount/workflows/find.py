"""Finding the heads of a model that do a job, and listing them where other tools read them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from headcount.behaviour.base import Corpus
from headcount.behaviour.find_heads import HeadSearch
from headcount.behaviour.head_jobs import make_head_job
from headcount.behaviour.speech import read_speech
from headcount.core.arguments import check_arguments
from headcount.core.errors import ArtifactError, DataError, OptionError, unknown_name_error
from headcount.core.files import check_writable
from headcount.core.folders import check_output_folder
from headcount.core.head_list import ALIGNMENT, JOBS, HeadList
from headcount.core.progress import Progress, show_progress
from headcount.data.readers.speech import SpeechReader, read_recordings
from headcount.models.modules import unwrap
from headcount.surgery import manifest
from headcount.surgery.alignment_heads import check_has_alignment_list, read_alignment_heads, set_alignment_heads
from headcount.surgery.load import load
from headcount.surgery.save import save
from headcount.surgery.source import local_folder

FindJob = Literal["alignment", "retrieval", "induction"]
Speech = str | Path | Sequence[Mapping[str, Any]]
"""A file that names recordings, or utterances as the model reads them."""
RECORDINGS = 200
"""How many recordings are read where no limit is named: enough for intervals of a few points."""


@dataclass(frozen=True, slots=True)
class FindRequest:
    """Which heads are found, on what, and where the list goes; checked when it is made.

    Args:
        job: alignment, retrieval or induction.
        data: What alignment heads are found on; None for the other jobs.
        out: A JSON file for the list, or, for alignment, a folder for a copy of the model that has it.
        language: The language of the recordings.
        limit: The most examples read.
        batch_size: Examples per forward pass.
        seed: The seed of ties and of drawn sequences.

    Raises:
        UnknownName: there is no such job.
        OptionError: a value is missing, out of range, or does not go with the job.
        ArtifactError: `out` cannot be written.
    """

    job: str
    data: Speech | None = None
    out: Path | None = None
    overwrite: bool = False
    language: str | None = None
    limit: int | None = None
    batch_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.job not in JOBS:
            raise unknown_name_error("job", self.job, JOBS)
        for name, least in (("limit", 8), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise OptionError(f"{name} must be {least} or more, got {value!r}")
        if self.job == ALIGNMENT and self.data is None:
            raise OptionError("alignment heads are found on speech whose words have times; give data=FILE")
        if self.job != ALIGNMENT and (self.data is not None or self.language is not None):
            raise OptionError(f"{self.job} heads are found on sequences of their own; leave out data=FILE and language=NAME")
        if self.out is not None and not self.writes_json:
            if self.job != ALIGNMENT:
                raise OptionError(f"no tool reads {self.job} heads from a model folder; give out a name that ends in .json, got {self.out}")
            check_output_folder(self.out, self.overwrite, manifest.NAME)
        elif self.out is not None:
            check_writable(self.out)
            if self.out.is_dir() or (self.out.exists() and not self.overwrite):
                raise ArtifactError(f"{self.out} exists already; name another file, or allow overwriting (overwrite=True)")

    @property
    def writes_json(self) -> bool:
        """Whether `out` is a JSON file."""
        return self.out is not None and self.out.suffix.lower() == ".json"


@check_arguments
def find(  # noqa: PLR0913 - three arguments, the rest by name
    model: nn.Module | str | Path,
    job: FindJob,
    data: Speech | None = None,
    *,
    processor: Any = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    language: str | None = None,
    limit: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool | Progress = True,
) -> HeadList:
    """Returns the heads that do a job: ranked on one half of the examples, as few as nearly suffice, tested on the other half.

    Heads are ranked by their score alone. The score of a set is that of its heads' mean attention; the sets are the first 1, 2, … heads of the
    ranking, and the smallest one within 2 % of the best is taken. Which half an example belongs to is a bit of the hash of its tokens.

    Args:
        model: A transformers model, a folder, a hub id, or `demo/NAME`. A live model stays as it is.
        job: `alignment` (which frames a token is about, in Whisper), `retrieval` or `induction` (in decoders).
        data: For alignment: a file of JSON lines that names recordings with the times of their words, or utterances: mappings with `input_features`,
            `labels`, `word_ids` and `word_times` (see `headcount.behaviour.speech.read_speech`). The other jobs bring sequences of their own.
        processor: What reads recordings for a live model, such as a WhisperProcessor; a folder brings its own.
        out: Where the list is written: a file that ends in .json, or, for alignment, a folder for a copy of the model with
            `generation_config.alignment_heads`. `headcount.surgery.alignment_heads.set_alignment_heads(model, heads)` lists heads in a live model.
        overwrite: Whether to replace what headcount wrote there before.
        language: The language of the recordings, which a multilingual tokenizer writes before the text.
        limit: The most examples read, by content hash; None for all utterances, 200 recordings, 64 drawn sequences.
        batch_size: Examples per forward pass; None for 8 of speech, 32 of text. It falls by halves when memory runs out.
        seed: The seed of ties and of drawn sequences.
        progress: A bar on a terminal or in a notebook (True), nothing (False), or a function that is called with (done, total).

    Returns:
        The heads, best first, with the score of the set and its interval, the ranking, and the scores of other sets.

    Raises:
        UnknownName: there is no such job.
        OptionError: a value is missing, out of range, or does not go with the job.
        DataError: the data are too few, or an utterance lacks something.
        UnsupportedModel: the model cannot do the job, or its generation reads no list of alignment heads.
        ArtifactError: `out` cannot be written.

    Example:
        >>> import headcount as hc
        >>> head_list = hc.find("demo/decoder", "induction", progress=False)
        >>> head_list.n_choosing + head_list.n_testing
        64
    """
    request = FindRequest(job, data, None if out is None else Path(out), overwrite, language, limit, batch_size, seed)
    folder = local_folder(model) if isinstance(model, str | Path) else None
    live: Any = load(folder).eval() if folder is not None else unwrap(model)  # pyright: ignore[reportArgumentType]
    check_job_of_class(request, type(live))
    search = open_search(live, request, folder, processor)
    with show_progress(progress, f"finding {job} heads") as advance:
        head_list = search.run(advance)
    if request.out is not None:
        write_head_list(live, head_list, request, folder)
    return head_list


def check_job_of_class(request: FindRequest, model_class: type) -> None:
    """Raises UnsupportedModel for a class of models in whose generation alignment heads cannot be listed."""
    if request.job == ALIGNMENT:
        check_has_alignment_list(model_class)


def open_search(
    model: nn.Module, request: FindRequest, folder: Path | None = None, processor: Any = None, *, trust_remote_code: bool = False
) -> HeadSearch:
    """Returns the search of a request on a live model, its data read and checked; recordings are read by the processor, or by that of the folder."""
    corpus: Corpus | None = None
    data: Any = request.data
    if request.job == ALIGNMENT and isinstance(data, str | Path):
        recordings = read_recordings(Path(data), request.limit or RECORDINGS)
        if processor is None and folder is not None:
            reader = SpeechReader.of_folder(folder, language=request.language, trust=trust_remote_code)
        else:
            reader = SpeechReader.of_processor(processor, language=request.language)
        corpus = read_speech(model, [reader.read(recording) for recording in recordings])
    elif request.job == ALIGNMENT:
        utterances = list(data)
        if not utterances or not all(isinstance(utterance, Mapping) for utterance in utterances):
            raise DataError(
                "data holds no utterances; give mappings with input_features, labels, word_ids and word_times, or a file of JSON lines"
            )
        corpus = _limit_speech(read_speech(model, utterances), request.limit)
    job = make_head_job(model, request.job, corpus, request.seed)
    if corpus is None and request.limit is not None:
        job = replace(job, corpus=replace(job.corpus, sentences=job.corpus.sentences[: request.limit]))  # pyright: ignore[reportArgumentType]
    current = read_alignment_heads(model) if request.job == ALIGNMENT else ()
    return HeadSearch(model, job, batch_size=request.batch_size, seed=request.seed, current=current)


def _limit_speech(corpus: Corpus, limit: int | None) -> Corpus:
    """Returns a corpus of at most so many utterances: those whose tokens have the smallest hashes, in order."""
    order = sorted(range(len(corpus.targets)), key=lambda i: hashlib.sha256(repr(corpus.targets[i].ids).encode()).digest())
    chosen = sorted(order[:limit])
    sentences, targets, audio = ([side[i] for i in chosen] for side in (corpus.sentences, corpus.targets, corpus.audio))
    return replace(corpus, sentences=tuple(sentences), targets=tuple(targets), audio=audio)


def write_head_list(model: nn.Module, head_list: HeadList, request: FindRequest, folder: Path | None) -> None:
    """Writes a list where its request says: as JSON, or into a copy of the model; the live model keeps the list that it had."""
    assert request.out is not None
    if request.writes_json:
        head_list.write(request.out)
        return
    inner: Any = unwrap(model)
    before = inner.generation_config
    try:
        set_alignment_heads(inner, head_list.heads)
        save(
            inner,
            request.out,
            tokenizer=folder,
            overwrite=request.overwrite,
            notes=[describe_head_list(head_list)],
            command=head_list.command or None,
        )
    finally:
        inner.generation_config = before


def describe_head_list(head_list: HeadList) -> str:
    """Returns the sentence about a list: how many heads, their score with its interval, and on what."""
    tested = head_list.tested
    return (
        f"{tested.n_heads} of {len(head_list.ranking)} heads for {head_list.job}: "
        f"{tested.score:.3f} (95 %: {tested.low:.3f} … {tested.high:.3f}), {head_list.metric}, "
        f"on the {head_list.n_testing} examples that did not choose them"
    )
