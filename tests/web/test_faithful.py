"""What the page says agrees with the data: chance by kind of attention, no bar of what was not measured, commands that make what is shown."""

from __future__ import annotations

import pytest
import synthetic


@pytest.fixture
def translation():
    """A run of an encoder and a decoder whose cross-attention has no dependencies."""
    run = synthetic.run(synthetic.TRANSLATION)
    portraits, size = run["profiles"], len(run["profiles"]["relation"]["names"])
    chance = {"encoder-self": 0.01, "decoder-self": 0.02, "cross": 0.03}
    for part in ("pos", "relation"):
        portraits[part]["expected_by_kind"] = {kind: [value] * len(portraits[part]["names"]) for kind, value in chance.items()}
    for at, head in enumerate(run["heads"]):
        if head.startswith("cross"):
            portraits["relation"]["share"][at] = [None] * size
        if head.startswith("decoder"):
            portraits["relation"]["share"][at] = [0.5, 0.0] + [None] * (size - 2)
            portraits["pos"]["share"][at] = [None] * len(portraits["pos"]["names"])
    return run


def chances(page, title):
    figure = page.locator(".figure", has=page.get_by_role("heading", name=title))
    return {float(value) for value in figure.locator(".chance").evaluate_all("all => all.map(e => e.dataset.chance)")}


def test_chance_is_that_of_the_kind_of_attention(open_run_page, translation):
    run_page = open_run_page(synthetic.report(translation), "head/encoder.L1H2")
    assert chances(run_page.page, "Part of speech of the key") == {0.01}
    assert chances(run_page.page, "Other word of a dependency") == {0.01}
    assert chances(run_page.go("head/decoder.L1H2"), "Other word of a dependency") == {0.02}
    assert chances(run_page.go("head/cross.L1H2"), "Part of speech of the key") == {0.03}


def test_what_was_not_measured_has_no_bar(open_run_page, translation):
    run_page = open_run_page(synthetic.report(translation), "head/cross.L1H2")
    part = run_page.page.get_by_label("Other word of a dependency")
    assert "Dependencies join words of one text; cross-attention joins two texts." in part.inner_text()
    assert run_page.page.locator(".head-title").inner_text().count("Cross-attention") == 1
    page = run_page.go("head/decoder.L1H2")
    assert page.get_by_label("Part of speech of the key").inner_text().count("Not measured for this head") == 1
    figure = page.locator(".figure", has=page.get_by_role("heading", name="Other word of a dependency"))
    assert figure.locator(".bar").count() == 2
    assert figure.locator(".value").all_text_contents() == ["50.0 %", "0.0 %"]


def command(page):
    return page.get_by_label("Command for this K").inner_text()


def test_a_command_makes_the_plan_that_is_shown(open_run_page):
    run_page = open_run_page(synthetic.report(synthetic.run()), "pruning?keep=95&method=gradient")
    page = run_page.page
    text = "headcount prune bert-base-uncased --method gradient --keep 95 --seed 0 --out pruned"
    assert command(page) == text
    page.get_by_label("Plan of seed").select_option("2")
    assert command(page) == text.replace("--seed 0", "--seed 2")
    page = run_page.go("pruning?keep=95&method=gradient&heads=L0H0+L3H1&protect=1&one=1")
    assert command(page) == f"{text} --protected L0H0,L3H1 --floor 1"
    page = run_page.go("pruning?keep=144&method=gradient")
    assert page.get_by_label("Command for this K").count() == 0
    assert "Nothing would be removed" in page.locator(".take").inner_text()
    assert (
        command(run_page.go("pruning?keep=95&method=rank:+fisher"))
        == "headcount cut bert-base-uncased --plan plan-by-fisher-order-95.json --out pruned"
    )


def timed(of, point):
    row = {"of": of, "point": point["id"], "rounds": 5, **{name: point[name] for name in ("method", "keep", "seed")}}
    shapes = ((1, 512), (8, 64), (8, 128), (32, 512))
    return synthetic.judge(
        [
            {
                **row,
                "name": name,
                "batch": batch,
                "length": length,
                "seconds": 0.02 / speed,
                "low": 0.0199 / speed,
                "high": 0.0201 / speed,
                "speedup": speed,
                "speedup_low": 0.97 * speed,
                "speedup_high": 1.03 * speed,
            }
            for batch, length in shapes
            for name, speed in (("dense", 1.0), ("removed", 1.0 + batch / 10 + length / 1000))
        ]
    )


@pytest.mark.parametrize("after", ["", ", repaired", ", recovered 2"])
def test_a_timed_model_has_its_own_value_and_one_size_is_told_everywhere(open_run_page, after):
    run = synthetic.run()
    point = next(run_page for run_page in run["curves"]["points"] if (run_page["method"], run_page["seed"]) == ("gradient", 2))
    point["value"] = 0.5561
    run["bench"] = timed(f"rank, by=gradient, {point['keep']} heads, seed 2{after}", point)
    run_page = open_run_page(synthetic.report(run), "cost")
    text = run_page.page.locator("main").inner_text()
    assert (
        f"Removing the heads of gradient, {point['keep']} heads, seed 2 makes a pass 1.61 to 4.71 times as fast over 4 sizes of batch and length"
        in text
    )
    assert f"One pruned model has both numbers: gradient with {point['keep']} heads, accuracy 0.556" in text
    assert "rank, by=" not in text
    assert "cannot be beaten" not in text
    page = run_page.go(f"pruning?method=surgeon&keep={point['keep']}")
    card = page.locator(".stat", has_text="latency").inner_text()
    assert (
        f"for surgeon. Measured for gradient, {point['keep']} heads, seed 2: 1.93 times as fast as the dense model at batch 8, length 128"
        in card
    )
    page = run_page.go(f"pruning?method=gradient&keep={point['keep']}")
    assert "batch 8, length 128" in page.locator(".stat", has_text="latency").inner_text()


def test_left_out_attention_says_what_shows_it(open_run_page):
    run = synthetic.run(synthetic.SMALL) | {"attention": None, "attention_left_out": True}
    page = open_run_page(synthetic.report(run), "attention").page
    text = "Attention maps were left out of this file for its size; headcount report --max-mb 10 RUN, or headcount serve RUN, shows them."
    assert page.locator(".missing").all_inner_texts() == [text]


@pytest.mark.parametrize(
    ("method", "seed", "verdict"),
    [("gradient", 0, "certified"), ("surgeon", 2, None), ("gradient", 1, "undecided"), (None, 0, None)],
)
def test_the_page_begins_with_the_model_of_the_summary(open_run_page, method, seed, verdict):
    run = synthetic.run(synthetic.SMALL)
    curves = run["curves"]
    chosen = next((point for point in curves["points"] if (point["method"], point["seed"]) == (method, seed)), None)
    curves["chosen"] = chosen and {"point": chosen["id"], "verdict": verdict}
    if chosen:
        chosen["verdict"] = verdict
    if verdict is None:
        curves["sizes"] = []
    page = open_run_page(synthetic.report(run), "pruning").page
    assert page.get_by_label("Method", exact=True).input_value() == (method or curves["points"][0]["method"])
    assert page.get_by_label("Plan of seed").input_value() == str(seed)
    starts_there = chosen and verdict != "undecided"
    assert page.get_by_role("heading", name=f"Keep {chosen['keep'] if starts_there else 12} of 12 heads").is_visible()
    text = page.locator(".takeaway").first.inner_text()
    assert (f"With {method}, {chosen['keep']} of 12 heads" if chosen else "No model was chosen") in text
    words = {
        "certified": "(certified, margin 2pt)",
        "undecided": "(no size is certified",
        None: "(the best on the selection split",
    }
    assert not chosen or (words[verdict] in text and chosen["bound_text"] in text and "n = 872" in text)
    page.get_by_role("link", name="Overview", exact=True).click()
    assert page.locator(".summary .tag").all_inner_texts() == (["certified within 2pt"] if verdict == "certified" else [])
    if verdict == "certified":  # above the sentences, which it pushed aside into a column of their own
        badge, sentences = page.locator(".summary .tag").bounding_box(), page.locator(".summary p").first.bounding_box()
        assert badge["y"] + badge["height"] <= sentences["y"] and badge["x"] == sentences["x"] and badge["width"] < 200


def test_heads_of_the_address_that_are_unknown_are_named(open_run_page):
    run_page = open_run_page(synthetic.report(synthetic.run(synthetic.SMALL)), "overview?heads=L0H1+L9H9+L2H3")
    page = run_page.page
    assert page.locator(".notice").inner_text() == "This run has no head “L9H9”, so it is not selected."
    assert page.locator("#said").text_content() == page.locator(".notice").inner_text()
    assert "2 heads selected" in page.locator(".selection").inner_text()
    page.get_by_role("link", name="Pruning", exact=True).click()
    assert not page.locator(".notice").is_visible()
    page = run_page.go("head/nobody?heads=a+b+c+d+e+<b>")
    text = page.locator(".notice").inner_text()
    assert text.startswith("This run has no head “nobody”; L0H3 is shown instead. ")
    assert text.endswith("This run has no heads “a”, “b”, “c”, “d” and 2 more, so they are not selected.")
    assert not run_page.go("overview?heads=L0H1").locator(".notice").is_visible()


def test_back_goes_to_the_view_and_head_before(open_run_page):
    page = open_run_page(synthetic.report(synthetic.run(synthetic.SMALL)), "overview").page
    page.get_by_role("link", name="Pruning", exact=True).click()
    slider = page.locator(".slider input")
    for _ in range(3):
        slider.press("ArrowLeft")
    text = page.locator(".slider h2").inner_text()
    page.get_by_role("link", name="Head", exact=True).click()
    first = page.locator(".head-title h2").inner_text()
    page.get_by_role("button", name="Next").click()
    assert page.locator(".head-title h2").inner_text() != first
    page.go_back()
    page.locator(".head-title h2", has_text=first).wait_for()
    page.go_back()
    page.locator(".slider h2", has_text=text).wait_for()
    page.go_back()
    page.locator(".map").wait_for()
    page.go_forward()
    page.locator(".slider h2", has_text=text).wait_for()
    assert "#/pruning" in page.url


def test_a_run_against_itself_differs_in_nothing(open_run_page):
    run = synthetic.run(synthetic.SMALL)
    payload = synthetic.report(run, run)
    payload["comparison"]["warnings"] = ["Both runs are of the same weights.", "The data differ."]
    page = open_run_page(payload, "compare").page
    text = page.locator("main").inner_text()
    assert "No head differs." in text
    assert "changes most" not in text
    assert page.locator(".warnings li").all_inner_texts() == ["The data differ."]
    assert "Both runs are of the same weights." in text
    ticks = page.locator(".scatter .axis text").all_text_contents()
    assert "0" not in ticks
    assert ticks.count("1") == 2


def test_the_strongest_head_of_a_role_has_it(open_run_page):
    run = synthetic.run(synthetic.SMALL)
    roles = run["roles"]
    role = roles["names"].index("sink")
    for at, (head, of) in enumerate(zip(roles["rows"]["head"], roles["rows"]["role"], strict=True)):
        if of == role:
            roles["rows"]["bias"][at], roles["rows"]["has_role"][at] = (9.0, False) if head == 3 else (2.0 if head == 5 else 1.0, head == 5)
    roles["labels"] = [[role] if head == 5 else [] for head in range(12)]
    page = open_run_page(synthetic.report(run), "roles").page
    row = page.locator("tbody tr", has_text="sink").first.inner_text()
    assert "1 on the map" in row
    assert row.count("L1H1") == 2


def test_numbers_stand_out_but_names_do_not(open_run_page):
    run = synthetic.run(synthetic.SMALL) | {"summary": ["16 of l0 go at p = 6e-36, 1.31 × as fast (L0H3, bert-2)."]}
    page = open_run_page(synthetic.report(run)).page
    assert page.locator(".lead strong").all_inner_texts() == ["16", "6e-36", "1.31 ×"]
