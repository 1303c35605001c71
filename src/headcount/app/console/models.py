"""Opening the MODEL of a command line. Imports torch and transformers, so commands import it in their bodies."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
import transformers
import typer
from torch import nn

from headcount.app.console.session import Session
from headcount.models.archs import cut_record as record
from headcount.models.head_map import HeadMap
from headcount.surgery.load import cut_class, load
from headcount.surgery.source import build_from_config, class_of, local_folder, read_config
from headcount.surgery.verify import float_dtype


def set_library_verbosity(session: Session) -> None:
    """Sets how much transformers and the exporter of torch log, and whether they draw progress bars, on stderr."""
    log = transformers.utils.logging
    logging.getLogger("torch.onnx").setLevel(logging.INFO if session.verbose else logging.ERROR)
    if session.verbose:
        log.set_verbosity_info()
        log.enable_progress_bar()
    else:
        log.set_verbosity_error()
        log.disable_progress_bar()


def choose_device(name: str) -> torch.device:
    """Returns the device of that name; `auto` is a GPU if there is one."""
    if name == "meta":
        raise typer.BadParameter("--device meta holds no numbers, so nothing can be computed there")
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise typer.BadParameter(f"--device {name} is not available here: {reason}") from error
    return device


def note_model(session: Session, model: nn.Module, heads: HeadMap) -> None:
    """Notes device, dtype, class and heads of a model in one line."""
    first = next(model.parameters())
    session.note(f"{first.device}, {str(float_dtype(model))[6:]}, {type(model).__name__} ({heads.model_type}), {heads.describe()}")


def open_model(
    session: Session, name: str, *, device: str = "auto", dtype: str = "auto", auto: str | None = None, **trust: Any
) -> tuple[nn.Module, HeadMap, Path]:
    """Returns the model of a folder or hub id, its heads and its folder."""
    set_library_verbosity(session)
    torch_device = choose_device(device)
    session.doing(f"loading {name}")
    folder = local_folder(name)
    model = load(folder, auto=auto, dtype=dtype, **trust).to(torch_device).eval()
    heads = HeadMap.of(model)
    note_model(session, model, heads)
    return model, heads, folder


def has_weights(folder: Path) -> bool:
    """Whether a folder holds weights, not only a configuration."""
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "pytorch_model*.bin"))


def open_without_weights(session: Session, name: str, *, auto: str | None = None, **trust: Any) -> tuple[nn.Module, HeadMap]:
    """Returns the model of a folder; if that holds only a configuration, a model without weights on the meta device."""
    set_library_verbosity(session)
    folder = local_folder(name)
    if has_weights(folder):
        model, heads, _ = open_model(session, str(folder), device="cpu", auto=auto, **trust)
        return model, heads
    config = read_config(folder, trust.get("trust_remote_code", False))
    cls, blocks = class_of(folder, config, auto), record.parse(config.get(record.KEY))
    shaped_class = cut_class(cls, blocks) if blocks else cls
    with torch.device("meta"):
        model = build_from_config(folder, cls.__name__, lambda: shaped_class(cls.config_class.from_pretrained(folder)))  # pyright: ignore[reportAttributeAccessIssue]
    heads = HeadMap.of(model)
    session.note(f"{folder} holds no weights: mapped from its configuration alone")
    note_model(session, model, heads)
    return model, heads
