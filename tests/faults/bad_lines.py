"""Command lines that must be refused: what typer lets through included."""

from __future__ import annotations

from bad_kit import Call, Kit, case, line


@case("command lines", "no command 'ct'", "Did you mean 'cut'?", code=2)
def unknown_verb(kit: Kit) -> Call:
    return line("ct")


@case("command lines", "no command 'сut'", "Did you mean 'cut'?", code=2)
def verb_of_look_alikes(kit: Kit) -> Call:
    return line("сut", "x")


@case("command lines", "--haeds", "--heads", code=2)
def unknown_option(kit: Kit) -> Call:
    return line("cut", "x", "--haeds", "L0H1", "--out", "y")


@case("command lines", "--hеads", "--heads", code=2)
def option_of_look_alikes(kit: Kit) -> Call:
    return line("cut", "x", "--hеads", "L0H1", "--out", "y")


@case("command lines", "'--out' requires an argument", code=2)
def option_without_a_value(kit: Kit) -> Call:
    return line("cut", "x", "--out")


@case("command lines", "'--seed'", "integer", "headcount score --help", code=2)
def text_for_a_number(kit: Kit) -> Call:
    return line("score", "demo/entailment", "--seed", "seven")


@case("command lines", "'--seed'", "0", code=2)
def negative_seed(kit: Kit) -> Call:
    return line("score", "demo/entailment", "--seed", "-1")


@case("command lines", "'--limit'", "1", code=2)
def negative_limit(kit: Kit) -> Call:
    return line("score", "demo/entailment", "--limit", "-5")


@case("command lines", "--batch-size is a number from 1 on, or auto", "got 0", code=2)
def batch_size_of_nothing(kit: Kit) -> Call:
    return line("score", "demo/entailment", "--batch-size", "0")


@case("command lines", "'--level'", "0.999", code=2)
def level_above_one(kit: Kit) -> Call:
    return line("score", "demo/entailment", "--level", "95")


@case("command lines", "name the heads to remove by one of --heads, --plan and --scores", code=2)
def no_way_to_say_what_goes(kit: Kit) -> Call:
    return line("cut", "x", "--out", kit.place / "out")


@case("command lines", "name the heads to remove by one of --heads, --plan and --scores", code=2)
def two_ways_to_say_what_goes(kit: Kit) -> Call:
    return line("cut", "x", "--heads", "L0H1", "--plan", "plan.json", "--out", kit.place / "out")


@case("command lines", "--scores and --keep belong together", "--scores FILE --keep 24", code=2)
def scores_without_a_budget(kit: Kit) -> Call:
    return line("cut", "x", "--scores", "scores.csv", "--out", kit.place / "out")


@case("command lines", "--keep takes a number of query heads such as 24", "50%", "got 'half'", code=2)
def budget_that_is_no_number(kit: Kit) -> Call:
    return line("cut", "x", "--scores", "scores.csv", "--keep", "half", "--out", kit.place / "out")


@case("command lines", "--quiet and --verbose exclude each other", code=2)
def quiet_and_verbose(kit: Kit) -> Call:
    return line("map", "x", "-q", "-v")


@case("command lines", "--workers and --join share the work through a run folder", "name it with --out", code=2)
def workers_without_a_folder(kit: Kit) -> Call:
    return line("score", "demo/entailment", "--by", "magnitude", "--workers", "3")


@case("command lines", "no importance 'gradeint'", "Did you mean 'gradient'?", code=2)
def unknown_method(kit: Kit) -> Call:
    return line("score", "demo/entailment", "--by", "gradeint")


@case("command lines", "no engine 'spark'", "Known: local, ray", code=2)
def unknown_engine(kit: Kit) -> Call:
    return line("score", "demo/entailment", "--by", "magnitude", "--engine", "spark", "--out", kit.place / "run")


@case("command lines", "'AutoModelForCasualLM'", "Did you mean 'AutoModelForCausalLM'?", code=2)
def unknown_auto_class(kit: Kit) -> Call:
    return line("map", kit.stock.plain(), "--auto", "AutoModelForCasualLM")


@case("command lines", "--device cud is not available here", code=2)
def unknown_device(kit: Kit) -> Call:
    return line("check", kit.stock.plain(), "--device", "cud")


@case("command lines", "is no folder", "name a folder with config.json and weights")
def path_with_a_nul(kit: Kit) -> Call:
    return line("map", "./model\0x")


@case("command lines", "aaa is no folder", "name a folder with config.json and weights")
def path_of_a_hundred_thousand_letters(kit: Kit) -> Call:
    return line("map", "/" + "a" * 100_000)


@case("command lines", "aaa is no folder", "name a folder with config.json and weights")
def hub_id_of_a_hundred_thousand_letters(kit: Kit) -> Call:
    return line("map", "a" * 100_000)


@case("command lines", "is no folder", "name a folder with config.json and weights")
def path_with_bytes_that_are_no_text(kit: Kit) -> Call:
    return line("map", "./model\udcff")


@case("command lines", "'someone/../../etc' is neither a folder nor a hub id that can be fetched")
def hub_id_that_climbs(kit: Kit) -> Call:
    return line("map", "someone/../../etc")


@case("command lines", "Invalid value for '--out", "Value error, embedded null byte", code=2)
def out_with_a_nul(kit: Kit) -> Call:
    return line("cut", kit.stock.plain(), "--heads", "L0H1", "--out", f"{kit.place}/o\0ut")


@case("command lines", "File name too long", "name another path")
def out_of_a_thousand_letters(kit: Kit) -> Call:
    return line("cut", kit.stock.plain(), "--heads", "L0H1", "--out", kit.place / ("o" * 1000))


@case("command lines", "Invalid value for '--out", "Value error, embedded null byte", code=2)
def run_with_a_nul(kit: Kit) -> Call:
    return line("score", "demo/entailment", "--by", "magnitude", "--out", f"{kit.place}/r\0un")


@case("command lines", "Invalid value for '--train", "Value error, embedded null byte", code=2)
def train_with_a_nul(kit: Kit) -> Call:
    return line("score", "demo/entailment", "--train", f"{kit.place}/t\0rain.tsv")


@case("command lines", "Invalid value for '--scores", "Value error, embedded null byte", code=2)
def scores_with_a_nul(kit: Kit) -> Call:
    return line("cut", kit.stock.plain(), "--scores", f"{kit.place}/s\0.csv", "--keep", "3", "--out", kit.place / "out")
