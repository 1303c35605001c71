"""Golden files from transformers 4.57, the last release that has `head_mask` and `prune_heads`.

    python -m venv v4 && v4/bin/pip install torch transformers==4.57.6
    v4/bin/python tests/golden/make_v4.py          # rewrites tests/golden/v4/

Each `v4/<family>/` holds a tiny model as 4.57 saves it (config.json, model.safetensors; float32, so exact in float64) and

inputs.safetensors   the keyword arguments of `forward`, and `targets`: the class that each row of logits should name, already
                     shifted for causal models, -100 where nothing is asked.
golden.safetensors   float64, eager. A site is `self`, or `enc`, `dec`, `cross`; a mask has shape (layer, head).
    logits                     without a mask
    mask.<case>.<site>         a head mask; sites without one in this case are all ones
    logits.<case>              the logits under that mask
    loss, grad.<site>          mean cross entropy of the batch, and its gradient by the mask, at all ones
    loss.example, grad.example.<site>    the same for each example alone; the first axis is the example
    logits.<variant>           after `prune_heads`; the folder <variant>/ holds that model
golden.json          versions, class, sites, cases; `variants`: the heads that each lost, by layer; the error of `prune_heads`
                     where it has one, and of 4.57's own `from_pretrained` on the pruned folder (null: it loads);
                     `float32_gap`: how far the logits move when 4.57 may round to float32 on the way (see `Float64`).
"""

import copy
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, softmax
from torch.overrides import TorchFunctionMode

OUT = Path(__file__).parent / "v4"
N_LAYERS, N_HEADS, HEAD_DIM = 2, 4, 4
HIDDEN = N_HEADS * HEAD_DIM
BERT = {
    "vocab_size": 24,
    "hidden_size": HIDDEN,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": N_HEADS,
    "intermediate_size": 8,
    "max_position_embeddings": 12,
    "num_labels": 3,
}
DISTILBERT = {
    "vocab_size": 24,
    "dim": HIDDEN,
    "n_layers": N_LAYERS,
    "n_heads": N_HEADS,
    "hidden_dim": 8,
    "max_position_embeddings": 12,
    "num_labels": 3,
}
GPT2 = {"vocab_size": 24, "n_embd": HIDDEN, "n_layer": N_LAYERS, "n_head": N_HEADS, "n_inner": 8, "n_positions": 12}
# d_model differs from n_heads * d_kv, as in T5-3B
T5 = {"vocab_size": 24, "d_model": 12, "d_kv": HEAD_DIM, "d_ff": 8, "num_layers": N_LAYERS, "num_heads": N_HEADS, "num_labels": 3}
BART = {
    "vocab_size": 24,
    "d_model": HIDDEN,
    "encoder_layers": N_LAYERS,
    "decoder_layers": N_LAYERS,
    "encoder_attention_heads": N_HEADS,
    "decoder_attention_heads": N_HEADS,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "max_position_embeddings": 12,
}
VIT = {key: BERT[key] for key in BERT if key not in ("vocab_size", "max_position_embeddings")} | {"image_size": 8, "patch_size": 4}
ALBERT = BERT | {"embedding_size": 8}

SITES = {"self": "head_mask"}
SITES_SEQ2SEQ = {"enc": "head_mask", "dec": "decoder_head_mask", "cross": "cross_attn_head_mask"}
VARIANTS = {"pruned": {0: [1], 1: [0, 3]}, "pruned-all": {0: [0, 1, 3]}}


@dataclass(frozen=True)
class Family:
    architecture: str
    config: dict
    task: str = "class"  # what the targets are: class, token, causal, seq2seq, image
    n_rows: int = N_LAYERS  # rows of the mask: layers that have heads of their own

    @property
    def sites(self) -> dict[str, str]:
        return SITES_SEQ2SEQ if self.task == "seq2seq" else SITES

    @property
    def variants(self) -> dict[str, dict[int, list[int]]]:
        """Heads to prune; layers that share their weights are addressed through the first."""
        return {name: {k: v for k, v in heads.items() if k < self.n_rows} for name, heads in VARIANTS.items()}


FAMILIES = {
    "albert": Family("AlbertForSequenceClassification", ALBERT | {"num_hidden_groups": 2}),
    "albert-shared": Family("AlbertForSequenceClassification", ALBERT, n_rows=1),
    "bart": Family("BartForConditionalGeneration", BART, "seq2seq"),
    "bert": Family("BertForSequenceClassification", BERT),
    "deit": Family("DeiTForImageClassification", VIT, "image"),
    "distilbert": Family("DistilBertForSequenceClassification", DISTILBERT),
    "electra": Family("ElectraForSequenceClassification", BERT | {"embedding_size": 8}),
    "gpt2": Family("GPT2LMHeadModel", GPT2 | {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 0}, "causal"),
    "roberta": Family("RobertaForSequenceClassification", BERT),
    "t5": Family("T5ForConditionalGeneration", T5 | {"decoder_start_token_id": 0}, "seq2seq"),
    "t5-encoder": Family("T5ForTokenClassification", T5, "token"),
    "vit": Family("ViTForImageClassification", VIT, "image"),
    "xlm-roberta": Family("XLMRobertaForSequenceClassification", BERT),
}


class Float64(TorchFunctionMode):
    """Keeps float64 tensors in float64 where a model rounds to float32: the softmax of T5 and ViT, the norm of T5.

    Those roundings moved between releases and depend on the vector width of the CPU, so 1e-10 would hold on one machine only.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_double = bool(args) and isinstance(args[0], Tensor) and args[0].dtype == torch.float64
        if is_double and (func is Tensor.float or (func is Tensor.to and torch.float32 in args)):
            return args[0]
        if is_double and func is softmax:
            kwargs = kwargs | {"dtype": None}
        return func(*args, **kwargs)


def build(family: Family) -> nn.Module:
    """A model whose weights are large enough that every head shows in the logits."""
    architecture = getattr(transformers, family.architecture)
    config = architecture.config_class(**family.config, attn_implementation="eager")
    model = architecture(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            is_norm = name.endswith("weight") and any(part in name.lower() for part in ("norm", "ln_"))
            weight.copy_(1 + 0.2 * noise if is_norm else 0.5 * noise)
    return model


def tokens(config, generator: torch.Generator, lengths: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Ids (2, longest) without special tokens, the second row padded on the right, and their attention mask."""
    longest = max(lengths)
    mask = torch.stack([(torch.arange(longest) < length).long() for length in lengths])
    ids = torch.randint(4, config.vocab_size, (len(lengths), longest), generator=generator)
    return ids.where(mask.bool(), torch.tensor(config.pad_token_id)), mask


def make_inputs(family: Family, config) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(1)
    if family.task == "image":
        pixels = torch.randn(2, 3, family.config["image_size"], family.config["image_size"], generator=generator, dtype=torch.float64)
        return {"pixel_values": pixels}, torch.tensor([0, 2])
    ids, mask = tokens(config, generator, (7, 5))
    batch = {"input_ids": ids, "attention_mask": mask}
    if family.task == "class":
        return batch, torch.tensor([0, 2])
    if family.task == "token":
        return batch, torch.where(mask.bool(), ids % family.config["num_labels"], -100)
    if family.task == "causal":
        return batch, pad(torch.where(mask.bool(), ids, -100)[:, 1:], (0, 1), value=-100)
    targets, mask = tokens(config, generator, (6, 4))
    start = torch.full((2, 1), config.decoder_start_token_id)
    batch |= {"decoder_input_ids": torch.cat([start, targets[:, :-1]], 1), "decoder_attention_mask": mask}
    return batch, torch.where(mask.bool(), targets, -100)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, -2), targets.flatten())


def ones(family: Family) -> dict[str, Tensor]:
    return {site: torch.ones(family.n_rows, N_HEADS, dtype=torch.float64) for site in family.sites}


def logits_under(model: nn.Module, family: Family, batch: dict[str, Tensor], masks: dict[str, Tensor]) -> Tensor:
    # Every site gets a mask: 4.57's T5 raises a NameError when head_mask comes without decoder_head_mask.
    rows = {argument: masks[site].expand(N_LAYERS, N_HEADS) for site, argument in family.sites.items()}
    return model(**batch, **rows).logits


def make_cases(family: Family) -> dict[str, dict[str, Tensor]]:
    fractions = torch.tensor([0.3, 0.7, 1.0, 0.5, 0.9, 0.0, 0.25, 0.6], dtype=torch.float64)
    one = {f"one-{site}" if len(family.sites) > 1 else "one": ones(family) for site in family.sites}
    for case, site in zip(one, family.sites, strict=True):
        one[case][site][-1, 2] = 0
    several, fraction = ones(family), ones(family)
    for shift, site in enumerate(family.sites):
        several[site][0, shift] = several[site][-1, [1, 3 - shift]] = 0
        fraction[site] = fractions.roll(shift)[: family.n_rows * N_HEADS].view(family.n_rows, N_HEADS)
    return one | {"several": several, "fraction": fraction}


def gradient(model: nn.Module, family: Family, batch: dict[str, Tensor], targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    masks = {site: mask.requires_grad_() for site, mask in ones(family).items()}
    loss = loss_of(logits_under(model, family, batch, masks), targets)
    return loss.detach(), dict(zip(masks, torch.autograd.grad(loss, list(masks.values())), strict=True))


def masked(model: nn.Module, family: Family, batch: dict[str, Tensor], targets: Tensor) -> dict[str, Tensor]:
    golden = {"logits": model(**batch).logits.detach()}
    for case, masks in make_cases(family).items():
        golden |= {f"mask.{case}.{site}": mask for site, mask in masks.items()}
        golden[f"logits.{case}"] = logits_under(model, family, batch, masks).detach()
    golden["loss"], grads = gradient(model, family, batch, targets)
    golden |= {f"grad.{site}": grad for site, grad in grads.items()}
    alone = [
        gradient(model, family, {name: value[i : i + 1] for name, value in batch.items()}, targets[i : i + 1]) for i in range(len(targets))
    ]
    golden["loss.example"] = torch.stack([loss for loss, _ in alone])
    golden |= {f"grad.example.{site}": torch.stack([grads[site] for _, grads in alone]) for site in family.sites}
    return golden


def pruned(model: nn.Module, heads: dict[int, list[int]], batch: dict[str, Tensor], folder: Path) -> Tensor:
    """The logits of 4.57's pruned model, which goes to `folder`."""
    small = copy.deepcopy(model)
    small.prune_heads(heads)
    small.save_pretrained(folder)
    return small.double()(**batch).logits.detach()


def read_back(model: nn.Module, batch: dict[str, Tensor], folder: Path, expected: Tensor) -> str | None:
    """None if 4.57 loads the pruned model that it saved, with the same logits; else the error it raises."""
    try:
        read = type(model).from_pretrained(folder, attn_implementation="eager").double().eval()
    except AttributeError as error:
        return f"{type(error).__name__}: {error}"
    require(torch.equal(expected, read(**batch).logits), f"{folder.name}: 4.57 reads back what it saved")
    return None


def require(claim: bool, text: str) -> None:
    if not claim:
        raise RuntimeError(f"not true: {text}")


def check(model: nn.Module, family: Family, batch: dict[str, Tensor], targets: Tensor, golden: dict[str, Tensor]) -> None:
    """Proves that the golden numbers mean something: every head shows, the loss is the model's own."""
    for site in family.sites:
        for index in range(family.n_rows * N_HEADS):
            masks = ones(family)
            masks[site].view(-1)[index] = 0
            gap = (logits_under(model, family, batch, masks) - golden["logits"]).abs().max()
            require(gap > 1e-2, f"{family.architecture}: {site} head {index} shows in the logits, gap {gap:.1e}")
        require(golden[f"grad.{site}"].abs().min() > 1e-5, f"{family.architecture}: no gradient of {site} is zero")
    labels = torch.cat([batch["input_ids"][:, :1], targets[:, :-1]], 1) if family.task == "causal" else targets
    own = model(**batch, labels=labels).loss
    require(abs(own - golden["loss"]) < 1e-6, f"{family.architecture}: loss {golden['loss']} is the model's own, {own}")


def make(name: str, family: Family) -> None:
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model = build(family)
    model.save_pretrained(folder)
    batch, targets = make_inputs(family, model.config)
    save_file({name: value.contiguous() for name, value in (batch | {"targets": targets}).items()}, folder / "inputs.safetensors")

    double = copy.deepcopy(model).double()
    rounded = double(**batch).logits
    record = {"transformers": transformers.__version__, "torch": torch.__version__, "class": family.architecture}
    record |= {"sites": list(family.sites), "cases": list(make_cases(family)), "variants": {}}
    with Float64():
        golden = masked(double, family, batch, targets)
        check(double, family, batch, targets, golden)
        record["float32_gap"] = (rounded - golden["logits"]).abs().max().item()
        for variant, heads in family.variants.items():
            try:
                logits = pruned(model, heads, batch, folder / variant)
            except AttributeError as error:
                record["prune_heads_error"] = f"{type(error).__name__}: {error}"
                break
            golden[f"logits.{variant}"], record["variants"][variant] = logits, heads
            record["reload_error"] = read_back(model, batch, folder / variant, logits)
    save_file({key: value.contiguous() for key, value in golden.items()}, folder / "golden.safetensors")
    (folder / "golden.json").write_text(json.dumps(record, indent=1) + "\n")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    errors = [record[key] for key in ("prune_heads_error", "reload_error") if record.get(key)]
    print(f"{name:14} {size / 1000:5.1f} kB  float32 gap {record['float32_gap']:.0e}", *record["variants"], *errors)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name, family in FAMILIES.items():
        make(name, family)
