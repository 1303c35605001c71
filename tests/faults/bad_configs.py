"""Configurations that must be refused: counts that no model has, layers that the weights lack, code of their own, text that is no JSON."""

from __future__ import annotations

from typing import Any

from bad_kit import Call, Kit, as_nobody, case, line

import headcount as hc


def _load(kit: Kit, **config: Any) -> Call:
    folder = kit.plain(**config)
    return lambda: hc.load(folder)


def _text(kit: Kit, content: bytes) -> Call:
    folder = kit.plain()
    (folder / "config.json").write_bytes(content)
    return lambda: hc.load(folder)


def _map(kit: Kit, **config: Any) -> Call:
    """The same without weights, where nothing but the configuration says what is wrong."""
    folder = kit.plain(**config)
    (folder / "model.safetensors").unlink()
    return line("map", folder)


def _legacy(kit: Kit, pruned: Any) -> Call:
    folder = kit.plain(pruned_heads=pruned)
    return line("load-legacy", folder, "--out", kit.place / "out")


@case("configs", "missing keys: bert.encoder.layer.2", "and 15 more", "Nothing is filled in at random")
def more_layers_than_the_weights(kit: Kit) -> Call:
    return _load(kit, num_hidden_layers=3)


@case("configs", "unexpected keys: bert.encoder.layer.1", "and 15 more", "Nothing is filled in at random")
def fewer_layers_than_the_weights(kit: Kit) -> Call:
    return _load(kit, num_hidden_layers=1)


@case("configs", "num_hidden_layers may be at most 1024, got 1000000", "use the config.json that came with the weights")
def a_million_layers(kit: Kit) -> Call:
    return _load(kit, num_hidden_layers=1_000_000)


@case("configs", "num_hidden_layers may be at most 1024, got 1000000", "use the config.json that came with the weights")
def a_million_layers_without_weights(kit: Kit) -> Call:
    return _map(kit, num_hidden_layers=1_000_000)


@case("configs", "num_attention_heads must be at least 1, got 0", "use the config.json that came with the weights")
def no_heads(kit: Kit) -> Call:
    return _load(kit, num_attention_heads=0)


@case("configs", "num_attention_heads must be at least 1, got -6", "use the config.json that came with the weights")
def negative_heads(kit: Kit) -> Call:
    return _load(kit, num_attention_heads=-6)


@case("configs", "(48)", "(7)", "Correct it")
def heads_that_do_not_divide_the_width(kit: Kit) -> Call:
    return _map(kit, num_attention_heads=7)


@case("configs", "num_attention_heads", "six", "Correct it")
def heads_as_text(kit: Kit) -> Call:
    return _map(kit, num_attention_heads="six")


@case("configs", "num_attention_heads", "1.5", "Correct it")
def one_and_a_half_heads(kit: Kit) -> Call:
    return _map(kit, num_attention_heads=1.5)


@case("configs", "declares a model of more than", "use the config.json that came with the weights")
def width_of_ten_million(kit: Kit) -> Call:
    return _load(kit, hidden_size=12_000_000)


@case("configs", "hidden_size may be at most 1099511627776, got", "use the config.json that came with the weights")
def width_beyond_64_bits(kit: Kit) -> Call:
    return _map(kit, hidden_size=6 * 10**30)


@case("configs", "hidden_size must be at least 1, got -48", "use the config.json that came with the weights")
def negative_width(kit: Kit) -> Call:
    return _load(kit, hidden_size=-48)


@case("configs", "declares a model of more than", "use the config.json that came with the weights")
def vocabulary_of_a_billion(kit: Kit) -> Call:
    return _load(kit, vocab_size=10**9)


@case("configs", "-5", "Use config.json and weights that were saved together")
def negative_vocabulary(kit: Kit) -> Call:
    return _load(kit, vocab_size=-5)


@case("configs", "-1", "Correct it")
def negative_positions(kit: Kit) -> Call:
    return _map(kit, max_position_embeddings=-1)


@case("configs", "config.json is no valid JSON", "restore or rewrite it")
def number_of_five_thousand_digits(kit: Kit) -> Call:
    return _text(kit, b'{"model_type": "bert", "hidden_size": ' + b"9" * 5000 + b"}")


@case("configs", "is missing", "name a folder that save or save_pretrained wrote")
def missing_configuration(kit: Kit) -> Call:
    folder = kit.plain()
    (folder / "config.json").unlink()
    return lambda: hc.load(folder)


@case("configs", "line 1 column 1 (char 0)", "restore or rewrite it")
def empty_configuration(kit: Kit) -> Call:
    return _text(kit, b"")


@case("configs", "must hold an object, got list", "use the one that came with the weights")
def configuration_that_is_a_list(kit: Kit) -> Call:
    return _text(kit, b"[]")


@case("configs", "line 9 column 12 (char 200)", "restore or rewrite it")
def torn_configuration(kit: Kit) -> Call:
    return _text(kit, (kit.stock.plain() / "config.json").read_bytes()[:200])


@case("configs", "config.json is no valid JSON", "restore or rewrite it")
def configuration_of_brackets(kit: Kit) -> Call:
    return _text(kit, b'{"a":' * 500_000)


@case("configs", "has 1073741824 bytes", "files of this kind have at most 10485760")
def configuration_of_a_gigabyte(kit: Kit) -> Call:
    folder = kit.plain()
    with (folder / "config.json").open("r+b") as file:
        file.truncate(2**30)
    return lambda: hc.load(folder)


@case("configs", "0xe9", "restore or rewrite it")
def configuration_in_latin_1(kit: Kit) -> Call:
    return _text(kit, '{"model_type": "bert", "name": "é"}'.encode("latin-1"))


@case("configs", "0xff", "restore or rewrite it")
def configuration_in_utf_16(kit: Kit) -> Call:
    return _text(kit, '{"model_type": "bert"}'.encode("utf-16"))


@case("configs", "is no regular file", "put the file itself there")
def configuration_that_is_a_folder(kit: Kit) -> Call:
    folder = kit.plain()
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    return lambda: hc.load(folder)


@case("configs", "is missing", "name a folder that save or save_pretrained wrote")
def configuration_that_links_to_itself(kit: Kit) -> Call:
    folder = kit.plain()
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    return lambda: hc.load(folder)


@case("configs", "Permission denied", "Check its permissions and links")
def configuration_that_may_not_be_read(kit: Kit) -> Call:
    folder = kit.plain()
    (folder / "config.json").chmod(0)
    return as_nobody(lambda: hc.load(folder))


@case("configs", "names the architecture None", "pass auto='AutoModel…'")
def unknown_model_type(kit: Kit) -> Call:
    return _load(kit, model_type="brt", architectures=None)


@case("configs", "LlamaForCausalLM", "missing keys", "Nothing is filled in at random")
def model_type_of_another_class(kit: Kit) -> Call:
    return _load(kit, architectures=["LlamaForCausalLM"])


@case("configs", "builds no configuration", "brt", "Correct it")
def unknown_model_type_of_an_auto_class(kit: Kit) -> Call:
    folder = kit.plain(model_type="brt", architectures=None)
    return lambda: hc.load(folder, auto="AutoModel")


@case("configs", "builds no BertForSequenceClassification", "'six'", "Correct it")
def heads_as_text_in_a_pruned_checkpoint(kit: Kit) -> Call:
    folder = kit.plain(pruned_heads={"0": [1]}, num_attention_heads="six")
    return lambda: hc.load_legacy(folder)


@case("configs", "AutoModelForCausalLM has no class for the model type 'vit'")
def auto_class_that_the_model_does_not_have(kit: Kit) -> Call:
    folder = kit.plain(model_type="vit")
    return lambda: hc.load(folder, auto="AutoModelForCausalLM")


@case("configs", "names the architecture 'NoSuchModel'", "pass auto='AutoModel…'")
def unknown_architecture(kit: Kit) -> Call:
    return _load(kit, architectures=["NoSuchModel"])


@case("configs", "names the architecture 'pipeline'", "pass auto='AutoModel…'")
def architecture_that_is_no_model(kit: Kit) -> Call:
    return _load(kit, architectures=["pipeline"])


@case("configs", "names the architecture 7", "pass auto='AutoModel…'")
def architecture_that_is_a_number(kit: Kit) -> Call:
    return _load(kit, architectures=7)


@case("configs", "float23", "Use config.json and weights that were saved together")
def unknown_dtype(kit: Kit) -> Call:
    return _load(kit, dtype="float23")


@case("configs", "\"__import__('os').system('true')\"", "Use config.json and weights that were saved together")
def unknown_activation(kit: Kit) -> Call:
    return _load(kit, hidden_act="__import__('os').system('true')")


@case("configs", "asks for remote code (_attn_implementation: 'someone/kernel')", "only if you trust its author")
def attention_from_the_hub(kit: Kit) -> Call:
    return _load(kit, _attn_implementation="someone/kernel")


@case("configs", "someone/kernel", "only if you trust its author")
def attention_from_the_hub_for_a_part(kit: Kit) -> Call:
    return _load(kit, attn_implementation={"text_config": "someone/kernel"})


@case("configs", "cannot be loaded as BertForSequenceClassification", "Use config.json and weights that were saved together")
def labels_that_are_a_number(kit: Kit) -> Call:
    return _load(kit, id2label=7)


@case("configs", "asks for remote code (auto_map)", "only if you trust its author")
def code_of_its_own(kit: Kit) -> Call:
    folder = kit.plain(auto_map={"AutoModel": "evil.Model"})
    (folder / "evil.py").write_text("import os\nos.mkdir('/tmp/headcount-was-here')\n")
    return lambda: hc.load(folder)


@case("configs", "asks for remote code (text_config.auto_map)", "only if you trust its author")
def code_of_its_own_in_a_part(kit: Kit) -> Call:
    folder = kit.plain(text_config={"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"})
    (folder / "evil.py").write_text("import os\nos.mkdir('/tmp/headcount-was-here')\n")
    return lambda: hc.load(folder)


@case("configs", "config.headcount has schema 9", "Update headcount")
def record_of_a_later_version(kit: Kit) -> Call:
    return _load(kit, headcount={"schema": 9, "blocks": {}})


@case("configs", "config.headcount must be an object with 'schema' and 'blocks'", "got [1]")
def record_that_is_a_list(kit: Kit) -> Call:
    return _load(kit, headcount=[1])


@case("configs", "'encoder.layer.9.attention.self'", "use the config.json that was saved with it")
def record_with_a_block_of_nobody(kit: Kit) -> Call:
    return _load(kit, headcount={"schema": 1, "blocks": {"encoder.layer.9.attention.self": {"heads": [0], "of": 6}}})


@case("configs", "block 'encoder.layer.0.attention.self' lists heads [0, 6]", "they must be ascending, unique and below 6")
def record_with_heads_out_of_range(kit: Kit) -> Call:
    return _load(kit, headcount={"schema": 1, "blocks": {"encoder.layer.0.attention.self": {"heads": [0, 6], "of": 6}}})


@case("configs", "config.pruned_heads", "headcount load-legacy")
def pruned_heads_of_transformers_4(kit: Kit) -> Call:
    return _load(kit, pruned_heads={"0": [1]})


@case("configs", "pruned_heads names head 99 of layer 0, which has 6", "use the config.json that came with the weights")
def pruned_head_out_of_range(kit: Kit) -> Call:
    return _legacy(kit, {"0": [99]})


@case("configs", "pruned_heads names head -1 of layer 0, which has 6", "use the config.json that came with the weights")
def pruned_head_below_zero(kit: Kit) -> Call:
    return _legacy(kit, {"0": [-1]})


@case("configs", "must map each layer once to a list of distinct heads", "got '0': [1, 1]")
def pruned_head_twice(kit: Kit) -> Call:
    return _legacy(kit, {"0": [1, 1]})


@case("configs", "must map each layer once to a list of distinct heads", "got '00': [2]")
def pruned_layer_twice(kit: Kit) -> Call:
    return _legacy(kit, {"0": [1], "00": [2]})


@case("configs", "pruned_heads names layer 44", "Use the config.json that came with the weights")
def pruned_layer_that_is_not_there(kit: Kit) -> Call:
    return _legacy(kit, {"44": [1]})


@case("configs", "must map each layer once to a list of distinct heads", "got '²': [1]")
def pruned_layer_with_a_strange_digit(kit: Kit) -> Call:
    return _legacy(kit, {"²": [1]})


@case("configs", "must map each layer once to a list of distinct heads", "got '0': [True]")
def pruned_heads_of_truth_values(kit: Kit) -> Call:
    return _legacy(kit, {"0": [True]})


@case("configs", "its tensors have other shapes than its config.json builds", "Use config.json and weights that were saved together")
def pruned_heads_that_do_not_fit_the_weights(kit: Kit) -> Call:
    return _legacy(kit, {"0": [1]})
