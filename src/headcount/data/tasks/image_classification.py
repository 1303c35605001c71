from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headcount.core.errors import DataError, MissingExtra
from headcount.core.files import is_folder
from headcount.core.options import option
from headcount.data.checks import config_of
from headcount.data.readers.tables import ColumnGroup, ColumnLayout, Source, TableRow, read_rows, row_step
from headcount.data.task import Example, Task, pad
from headcount.data.task_builder import TaskBuilder, TaskInfo, TaskRequest
from headcount.data.tasks._labels import LabelledRows, choose_metric, n_labels, to_class_numbers
from headcount.data.tasks._splits import for_each_split, read_splits
from headcount.data.tasks._tokenize import check_head

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


class Pictures(Sequence[Example]):
    """Examples whose images are read when they are used."""

    def __init__(self, rows: Sequence[TableRow], labels: Sequence[int], pixels: Callable[[TableRow], Tensor]) -> None:
        self._rows, self._labels, self._pixels = rows, labels, pixels

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"pixel_values": self._pixels(self._rows[index]), "labels": self._labels[index]}


@dataclass(frozen=True)
class ImageClassification(TaskBuilder):
    """Classes of images: a folder with one folder for each class, or a parquet file or dataset with columns image and label.

    Images go through the model's image processor; without one they must have the model's size, and become numbers from 0 to 1. The metric
    is accuracy.
    """

    _: KW_ONLY
    metric: Literal["auto", "accuracy", "f1", "matthews"] = option("auto", "The metric; auto is accuracy")
    info = TaskInfo(
        uses=("train", "eval", "image_column", "label_column"),
        model="AutoModelForImageClassification",
        metric="accuracy, F1, Matthews correlation",
    )

    def build(self, request: TaskRequest) -> Task:
        """Returns the task."""
        check_head(request, ("ImageClassification",), self.info.model)
        if n_labels(request) == 1:
            raise DataError("the model has num_labels=1, which means regression; load it with as many labels as there are classes")
        metric = choose_metric(request, self.metric)
        labelled = LabelledRows(lambda source: _read_image_rows(request, source), lambda row: [row.values["label"]])
        rows = read_splits(request, labelled, _split_key)
        labels = for_each_split(lambda split: to_class_numbers(request, [(row.origin, row.values["label"]) for row in rows[split]]))
        labelled.check_labels_vary()
        for row in chain.from_iterable(rows.values()):
            _load_image(row)
        pictures = for_each_split(lambda split: Pictures(rows[split], labels[split], lambda row: _pixel_values(request, row)))
        for examples in pictures.values():
            _ = examples[0]
        return Task(request.name, pictures["calibration"], pictures["selection"], pictures["report"], collate=pad, metric=metric)


def _read_image_rows(request: TaskRequest, source: Source) -> Iterator[TableRow]:
    if isinstance(source, tuple) and len(source) == 1 and is_folder(source[0]) and not (source[0] / "state.json").exists():
        if request.image_column or request.label_column:
            raise DataError(f"{source[0]} is a folder of images, which has no columns; leave image_column and label_column out")
        return _read_class_folders(source[0], request.max_rows)
    named = {"image": request.image_column, "label": request.label_column}
    images = ColumnGroup({"image": "image_column"}, (("image",), ("img",), ("pixel_values",)))
    labels = ColumnGroup({"label": "label_column"}, (("label",), ("labels",), ("fine_label",)))
    return read_rows(source, ColumnLayout((images, labels), {}, {role: name for role, name in named.items() if name}), request.max_rows)


def _read_class_folders(folder: Path, max_rows: int | None) -> Iterator[TableRow]:
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    if not classes:
        raise DataError(f"{folder} holds no folder; it must hold one for each class, named after the label")
    images = [(label, path) for label in classes for path in sorted(label.iterdir()) if path.suffix.lower() in ENDINGS]
    for label, path in images[:: row_step(str(folder), len(images), max_rows)]:
        yield TableRow({"image": path, "label": label.name}, str(path), None)


def _split_key(row: TableRow) -> bytes:
    image = row.values["image"]
    if hasattr(image, "read_bytes"):
        return image.read_bytes()
    if isinstance(image, dict):
        return image.get("bytes") or b""
    return np.asarray(image).tobytes()


def _load_image(row: TableRow) -> Any:
    """Returns the image as PIL has it, or as an array; only bytes and folders are read, never a path that stands in the data."""
    value = row.values["image"]
    source = io.BytesIO(value["bytes"]) if isinstance(value, dict) and value.get("bytes") else value
    if isinstance(source, dict):
        raise DataError(f"{row.origin}: the image holds no bytes, only a path; store the images in the file")
    if not hasattr(source, "read_bytes") and not isinstance(source, io.BytesIO):
        return source
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("reading images needs pillow; install it with: pip install 'headcount[vision]'") from error
    try:
        with Image.open(source) as image:
            image.load()
            return image
    except Exception as error:  # a damaged image can raise anything
        raise DataError(f"{row.origin} is no image that can be read: {error}") from error


def _pixel_values(request: TaskRequest, row: TableRow) -> Float[Tensor, "channels height width"]:
    image, channels = _load_image(row), getattr(config_of(request.model), "num_channels", 3)
    if hasattr(image, "convert"):
        image = image.convert("L" if channels == 1 else "RGB")
    if request.tokenizer is not None:
        return torch.as_tensor(request.tokenizer(images=image, return_tensors="pt")["pixel_values"][0])
    pixels = _to_channels_first_tensor(image)
    _check_pixel_shape(request, row, pixels)
    return pixels


def _to_channels_first_tensor(image: Any) -> Float[Tensor, "channels height width"]:
    """Returns an image with channels first; whole numbers from 0 to 255 become numbers from 0 to 1."""
    values = torch.as_tensor(np.array(image))
    values = values[..., None] if values.ndim == 2 else values
    if hasattr(image, "convert") or (values.shape[-1] in (1, 3) and values.shape[0] not in (1, 3)):
        values = values.permute(2, 0, 1)
    return values.float() if values.is_floating_point() else values.float() / 255


def _check_pixel_shape(request: TaskRequest, row: TableRow, pixels: Tensor) -> None:
    config = config_of(request.model)
    size = getattr(config, "image_size", None)
    sizes = (size, size) if isinstance(size, int) else tuple(size) if size else tuple(pixels.shape[1:])
    expected = (getattr(config, "num_channels", pixels.shape[0]), *sizes)
    if tuple(pixels.shape) != expected:
        raise DataError(
            f"{row.origin}: the image has shape {tuple(pixels.shape)}, but the model takes {expected}; pass the model's image processor"
        )
