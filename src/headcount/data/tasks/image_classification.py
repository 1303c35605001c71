"""Classes of images: a folder with one folder for each class, or a parquet file or dataset with columns image and label.

Images go through the model's image processor; without one they must have the model's size, and become numbers from 0 to 1. The metric is accuracy.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.core.errors import DataError, MissingExtra
from headcount.data.checks import config_of
from headcount.data.open_task import Request
from headcount.data.readers.tables import Group, Layout, Row, Source, read, step_of
from headcount.data.task import Example, Task, pad
from headcount.data.tasks._labels import LabelledRows, metric_of, n_labels, to_classes
from headcount.data.tasks._splits import divide, each
from headcount.data.tasks._tokenize import check_head

USES = ("train", "eval", "image_column", "label_column", "metric")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


class Pictures(Sequence[Example]):
    """Examples that are read when they are asked for."""

    def __init__(self, rows: Sequence[Row], labels: Sequence[int], pixels: Callable[[Row], Tensor]) -> None:
        self._rows, self._labels, self._pixels = rows, labels, pixels

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"pixel_values": self._pixels(self._rows[index]), "labels": self._labels[index]}


def build(request: Request) -> Task:
    """The task."""
    check_head(request, ("ImageClassification",), "AutoModelForImageClassification")
    if n_labels(request) == 1:
        raise DataError("the model has num_labels=1, which means regression; load it with as many labels as there are classes")
    labelled = LabelledRows(lambda source: _read(request, source), lambda row: [row.values["label"]])
    rows = divide(request, labelled, _key)
    labels = each(lambda split: to_classes(request, [(row.where, row.values["label"]) for row in rows[split]]))
    labelled.check_several()
    for row in chain.from_iterable(rows.values()):
        _picture(row)
    made = each(lambda split: Pictures(rows[split], labels[split], lambda row: _pixels(request, row)))
    for examples in made.values():
        _ = examples[0]
    return Task(request.name, made["calibration"], made["selection"], made["report"], collate=pad, metric=metric_of(request))


def _read(request: Request, source: Source) -> Iterator[Row]:
    if isinstance(source, tuple) and len(source) == 1 and source[0].is_dir() and not (source[0] / "state.json").exists():
        if request.image_column or request.label_column:
            raise DataError(f"{source[0]} is a folder of images, which has no columns; leave image_column and label_column out")
        return _of_folder(source[0], request.most_rows)
    named = {"image": request.image_column, "label": request.label_column}
    images = Group({"image": "image_column"}, (("image",), ("img",), ("pixel_values",)))
    labels = Group({"label": "label_column"}, (("label",), ("labels",), ("fine_label",)))
    return read(source, Layout((images, labels), {}, {role: name for role, name in named.items() if name}), request.most_rows)


def _of_folder(folder: Any, most: int | None) -> Iterator[Row]:
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    if not classes:
        raise DataError(f"{folder} holds no folder; one for each class is wanted, named after the label")
    images = [(label, path) for label in classes for path in sorted(label.iterdir()) if path.suffix.lower() in ENDINGS]
    for label, path in images[:: step_of(str(folder), len(images), most)]:
        yield Row({"image": path, "label": label.name}, str(path), 0)


def _key(row: Row) -> bytes:
    image = row.values["image"]
    if hasattr(image, "read_bytes"):
        return image.read_bytes()
    if isinstance(image, dict):
        return image.get("bytes") or b""
    return np.asarray(image).tobytes()


def _picture(row: Row) -> Any:
    """The image as PIL has it, or as an array; only bytes and folders are read, never a path that stands in the data."""
    value = row.values["image"]
    source = io.BytesIO(value["bytes"]) if isinstance(value, dict) and value.get("bytes") else value
    if isinstance(source, dict):
        raise DataError(f"{row.where}: the image holds no bytes, only a path; store the images in the file")
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
    except Exception as error:  # a damaged image fails in any way it likes
        raise DataError(f"{row.where} is no image that can be read: {error}") from error


def _pixels(request: Request, row: Row) -> Tensor:
    image, channels = _picture(row), getattr(config_of(request.model), "num_channels", 3)
    if hasattr(image, "convert"):
        image = image.convert("L" if channels == 1 else "RGB")
    if request.tokenizer is not None:
        return torch.as_tensor(request.tokenizer(images=image, return_tensors="pt")["pixel_values"][0])
    made = _numbers(image)
    _check_size(request, row, made)
    return made


def _numbers(image: Any) -> Tensor:
    """Channels first; whole numbers from 0 to 255 become numbers from 0 to 1."""
    values = torch.as_tensor(np.array(image))
    values = values[..., None] if values.ndim == 2 else values
    if hasattr(image, "convert") or (values.shape[-1] in (1, 3) and values.shape[0] not in (1, 3)):
        values = values.permute(2, 0, 1)
    return values.float() if values.is_floating_point() else values.float() / 255


def _check_size(request: Request, row: Row, made: Tensor) -> None:
    config = config_of(request.model)
    size = getattr(config, "image_size", None)
    sizes = (size, size) if isinstance(size, int) else tuple(size) if size else tuple(made.shape[1:])
    wanted = (getattr(config, "num_channels", made.shape[0]), *sizes)
    if tuple(made.shape) != wanted:
        raise DataError(
            f"{row.where}: the image has shape {tuple(made.shape)}, but the model takes {wanted}; pass the model's image processor"
        )
