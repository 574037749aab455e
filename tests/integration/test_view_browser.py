"""The page of a trace in a real browser: what each step shows, by keyboard, on a phone, in both colour schemes.

Needs the playwright package and a Chromium that is there already; nothing is installed from here.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from canopy_backend.evidence import Decision
from canopy_backend.items import TextItem
from canopy_client.answer import Answer, Cited
from canopy_client.trace import TraceFile
from canopy_client.view import page as page_of
from canopy_client.view import pictures
from tests.unit.client import view_data

sync_api = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
LONG = TextItem(
    id="long",
    title="x" * 300,
    text=f"{'unbroken' * 60} judo. " + " ".join(f"Sentence {n} of many." for n in range(90)) + " Nobody teaches it.",
)


def example() -> TraceFile:
    """The unit tests' example, with items of odd lengths and one question without a trace."""

    async def run() -> list[Answer]:
        wide = await view_data.answer([LONG, view_data.HOSTILE], [view_data.TALK])
        plain = await view_data.answer([view_data.JUDO, view_data.TIMES], [view_data.TALK], trace=False)
        return [wide, plain]

    content = view_data.example()
    return replace(content, answers=[*content.answers, *asyncio.run(run())])


EXAMPLE = example()
ITEMS = [(place, one) for place, answer in enumerate(EXAMPLE.answers[:3]) for one in answer.evidence]
NAMED = [f"{place}-{one.evidence.item_id}" for place, one in ITEMS]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = own if Path(own).exists() else next(filter(None, map(shutil.which, NAMES)), None)
        if found is None:
            pytest.skip(f"no browser here: neither playwright's own Chromium nor one of {', '.join(NAMES)}")
        # Chromium's sandbox refuses to run as root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=found, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("view") / "trace.html"
    path.write_text(page_of(EXAMPLE), encoding="utf-8")
    return path.as_uri()


Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Open]:
    """Opens the page; at the end nothing was asked of a network, and nothing went wrong in any page."""
    contexts: list[Any] = []
    told: list[str] = []

    def start(width: int = 1280, height: int = 900, question: int = 0, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: told.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: told.append(f"error: {error}"))
        page.on("request", lambda request: told.append(request.url) if request.url != address else None)
        page.on("dialog", lambda dialog: (told.append("dialog"), dialog.dismiss()))
        page.goto(address)
        if question:
            page.locator("nav button").nth(question).click()
        return page

    yield start
    for context in contexts:
        context.close()
    assert told == []


def choose(page: Any, cited: Cited) -> None:
    """Open an item by its number, and put the keyboard into its replay."""
    page.locator("button.hit", has=page.get_by_text(f"[{cited.number}]", exact=True)).first.click()
    page.locator("#replay").focus()


def walked(nodes: list[Decision]) -> list[tuple[Decision, list[Decision]]]:
    """Each step after the first: a node that was split or kept, with the parts that it is compared with."""
    below = {one.node: [part for part in nodes if part.parent == one.node] for one in nodes}
    return [(one, below[one.node]) for one in nodes if one.outcome != "dropped"]


def expected(cited: Cited, step: int) -> list[str]:
    """The state of each fragment after a step, read off the decisions."""
    states = ["open"] * cited.evidence.fragments
    for node, parts in walked(cited.evidence.trace.nodes)[:step]:
        for one in [node] if node.outcome == "kept" else [part for part in parts if part.outcome == "dropped"]:
            states[one.first : one.last] = [one.outcome] * (one.last - one.first)
    return states


def shown(page: Any, cited: Cited) -> list[str]:
    """The state of each fragment that the page shows, read off the item's own text, rows or picture."""
    item, edges = cited.original.item, cited.original.edges
    if item.modality == "text":
        runs = page.locator(".source .run").evaluate_all("all => all.map(one => [one.classList[1], one.textContent])")
        text = "".join(part for _, part in runs)
        assert text == visible(item.text), "the item's own text, nothing added and nothing left out"
        marked = [state for state, part in runs for _ in part]
        return [marked[len(visible(item.text[:edge]))] for edge in edges[:-1]] if item.text else []
    if item.modality == "table":
        rows = page.locator(".source tbody tr")
        states = rows.evaluate_all("all => all.map(one => one.className.split(' ')[0] || 'open')")
        said = rows.locator("td.state").all_inner_texts()
        assert [word.strip() or "open" for word in said] == states, "said in words too"
        return [state or "open" for state in states]
    if item.modality == "image":
        return [page.locator(".source figure").get_attribute("class")]
    width = page.locator(".timeline").bounding_box()["width"]
    blocks = page.locator(".timeline span").evaluate_all(
        "all => all.map(one => [one.classList[0], parseFloat(one.style.left), parseFloat(one.style.width)])"
    )
    assert width > 0
    middles = [100 * (left + right) / 2 / edges[-1] for left, right in itertools.pairwise(edges)]
    return [next(state for state, left, size in blocks if left <= middle < left + size) for middle in middles]


def visible(text: str) -> str:
    return text.replace("\u202e", "‹U+202E›")


@pytest.mark.parametrize(("question", "cited"), ITEMS, ids=NAMED)
def test_each_step_shows_what_the_trace_decided(question: int, cited: Cited, opened: Open) -> None:
    page = opened(question=question)
    choose(page, cited)
    steps = walked(cited.evidence.trace.nodes)
    page.keyboard.press("Home")
    for place in range(len(steps) + 1):
        assert page.locator(".where").inner_text() == f"{place + 1} / {len(steps) + 1}"
        if cited.evidence.item_id != "empty":
            assert shown(page, cited) == expected(cited, place)
        node, parts = steps[place - 1] if place else (cited.evidence.trace.nodes[0], [])
        scores = [float(one) for one in page.locator(".bar .score").all_inner_texts()]
        assert scores == pytest.approx([one.score for one in (node, *parts)], abs=5e-4)
        fates = page.locator(".bar .fate").all_inner_texts()
        left = "lower" if node.outcome == "kept" else "dropped"
        assert fates[1:] == [left if part.outcome == "dropped" else "entered" for part in parts]
        assert fates[0] == (node.outcome if place else "scored")
        assert page.locator(".tree .node:not(.hidden)").count() == 1 + sum(len(below) for _, below in steps[:place])
        page.keyboard.press("ArrowRight")
    assert page.locator(".where").inner_text() == f"{len(steps) + 1} / {len(steps) + 1}", "the last step is the last"
    page.keyboard.press("ArrowLeft")
    assert page.locator(".where").inner_text() == f"{max(1, len(steps))} / {len(steps) + 1}"


def test_every_comparison_is_listed_with_both_scores_and_leads_to_its_step(opened: Open) -> None:
    page = opened()
    cited = EXAMPLE.answers[0].evidence[0]
    choose(page, cited)
    page.locator("#replay summary").click()
    rows = [row.split("\t") for row in page.locator(".comparisons tbody tr").all_inner_texts()]
    nodes = {one.node: one for one in cited.evidence.trace.nodes}
    below = [one for one in cited.evidence.trace.nodes if one.parent >= 0]
    assert [(float(row[2]), float(row[4])) for row in rows] == [
        pytest.approx((one.score, nodes[one.parent].score), abs=5e-4) for one in below
    ]
    assert [row[3] for row in rows] == ["≥" if one.outcome != "dropped" else "<" for one in below]
    page.locator(".comparisons button").nth(2).click()
    assert page.locator(".where").inner_text().startswith("3 /")
    assert page.locator(".comparisons tr.now").count() == 2


def test_parts_of_a_kept_node_are_shown_where_their_scores_are_known(browser: Any, tmp_path: Path) -> None:
    answer = EXAMPLE.answers[1]
    judo = answer.evidence[2]
    kept = next(one for one in judo.evidence.trace.nodes if one.outcome == "kept" and one.last - one.first == 2)
    lower = [
        Decision(90 + n, kept.node, kept.first + n, kept.first + n + 1, kept.depth + 1, 0.1, "dropped") for n in (0, 1)
    ]
    nodes = [*(one for one in judo.evidence.trace.nodes if one.parent != kept.node), *lower]
    longer = replace(judo, evidence=replace(judo.evidence, trace=replace(judo.evidence.trace, nodes=nodes)))
    content = replace(EXAMPLE, answers=[replace(answer, evidence=[*answer.evidence[:2], longer])])
    path = tmp_path / "kept.html"
    path.write_text(page_of(content), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    choose(page, longer)
    page.keyboard.press("End")
    assert page.locator(".bar .fate").all_inner_texts() == ["kept", "lower", "lower"]
    assert shown(page, longer) == expected(judo, 99), "what a kept node was compared with stays kept"
    page.close()


def test_the_question_the_rounds_and_the_critic_are_shown(opened: Open) -> None:
    page = opened()
    answer = EXAMPLE.answers[0]
    assert page.locator("h1").inner_text() == answer.question
    assert page.locator(".answer").inner_text() == answer.text
    assert f"{answer.tokens_before} → {answer.tokens_after}" in page.locator(".totals").inner_text()
    assert "The critic found the evidence sufficient" in page.locator(".totals").inner_text()
    rounds = page.locator(".round").all_inner_texts()
    assert len(rounds) == len(answer.rounds)
    for text, one in zip(rounds, answer.rounds, strict=True):
        for said in (one.query, one.verdict.rationale, one.verdict.answer, one.verdict.missing, one.verdict.query):
            assert said in text
        for hit in one.hits:
            assert (hit.title or hit.item_id) in text
    for cited in answer.evidence:
        assert (
            f"{cited.evidence.tokens_in} → {cited.evidence.tokens_kept} tokens" in page.locator(".rounds").inner_text()
        )
    page.locator(".cite").click()
    assert page.locator("#replay-title").inner_text() == "[1] Judo"
    assert page.locator(".hit[aria-pressed=true] .number").all_inner_texts() == ["[1]", "[1]"]


def test_everything_can_be_reached_and_used_by_keyboard(opened: Open) -> None:
    page = opened()
    order: list[str] = []
    for _ in range(80):
        page.keyboard.press("Tab")
        name = page.evaluate(
            "() => { const one = document.activeElement;"
            " return one === document.body ? '' : one.getAttribute('aria-label') || one.className || one.tagName; }"
        )
        if not name:
            break
        order.append(name)
    assert order[0] == "skip"
    inside = ["First step", "Step back", "Play", "Step forward", "Last step", "Step", "SUMMARY"]
    start = order.index("Replay")
    assert order[start : start + 8] == ["Replay", *inside]
    hits = sum(len(one.hits) for one in EXAMPLE.answers[0].rounds)
    assert sum(name.startswith("hit") for name in order[:start]) == hits
    clickable = page.locator("button:visible, a:visible, summary:visible, input:visible").count()
    assert len(order) == clickable + 1, "all that can be pressed, and the replay itself"
    assert page.locator("button").evaluate_all(
        "all => all.every(one => (one.getAttribute('aria-label') || one.textContent).trim())"
    )


def test_keys_mean_what_they_mean_where_the_focus_is(opened: Open) -> None:
    page = opened()
    where = page.locator(".where")
    page.locator("body").press("ArrowLeft")
    assert where.inner_text() == "4 / 5", "from anywhere on the page"
    page.locator("#replay").press("Home")
    assert where.inner_text() == "1 / 5"
    page.get_by_label("Step forward").press("Enter")
    page.get_by_label("Step forward").press(" ")
    assert where.inner_text() == "3 / 5", "space presses the button that has the focus"
    page.get_by_label("Step", exact=True).press("ArrowRight")
    assert where.inner_text() == "4 / 5", "the scrubber moves by one, not by two"
    page.get_by_label("Step", exact=True).press("Home")
    assert where.inner_text() == "1 / 5"
    page.locator("#replay").press("Control+ArrowRight")
    assert where.inner_text() == "1 / 5", "the browser's own keys are left alone"
    page.locator("button.hit").nth(1).press("Enter")
    assert page.locator("#replay-title").inner_text() == "[2] Hall times"
    page.locator(".source .scroll").press("ArrowLeft")
    assert where.inner_text() == "4 / 4", "in a wide table the arrows scroll it"


def test_playing_goes_on_by_itself_to_the_end_and_stops_when_touched(opened: Open) -> None:
    page = opened()
    page.clock.install()
    page.goto(page.url)
    where, replay = page.locator(".where"), page.locator("#replay")
    replay.press(" ")
    assert where.inner_text() == "1 / 5", "from the end it starts again"
    assert page.get_by_label("Pause").count() == 1
    page.clock.run_for(2500)
    assert where.inner_text() == "3 / 5"
    replay.press(" ")
    page.clock.run_for(5000)
    assert where.inner_text() == "3 / 5"
    replay.press(" ")
    page.clock.run_for(1300)
    replay.press("ArrowLeft")
    page.clock.run_for(5000)
    assert where.inner_text() == "3 / 5"
    page.get_by_role("button", name="Play", exact=True).click()
    page.clock.run_for(9000)
    assert where.inner_text() == "5 / 5"
    assert page.get_by_role("button", name="Play", exact=True).count() == 1


def test_steps_are_told_to_a_screen_reader(opened: Open) -> None:
    page = opened()
    status = page.get_by_role("status")
    assert status.get_attribute("aria-live") == "polite"
    page.locator("#replay").press("Home")
    assert "whole item scores 0.163" in status.inner_text()
    page.keyboard.press("ArrowRight")
    assert status.inner_text().startswith("Sentences 1–8 (0.163): 1 of 2 parts")
    assert "Step 2 of 5" in page.get_by_label("Step", exact=True).get_attribute("aria-valuetext")
    assert page.locator(".tree").get_attribute("aria-hidden") == "true"
    assert page.locator(".source s").count() == 1
    assert page.locator("main, h1").count() == 2


def test_hostile_text_is_shown_as_text(opened: Open) -> None:
    page = opened(question=1)
    choose(page, EXAMPLE.answers[1].evidence[0])
    assert page.locator("#replay-title bdi").inner_text() == view_data.HOSTILE_TITLE
    assert page.locator(".source").inner_text().startswith('<img src=x onerror="window.hacked = 1"> judo')
    assert "‹U+202E›" in page.locator(".source").inner_text()
    assert page.evaluate("() => window.hacked") is None
    assert page.locator("img, iframe, object, embed, link, form, base").count() == 0
    assert page.locator("script").count() == 3
    assert page.locator("svg").count() == 5


def test_the_policy_holds_even_for_a_script_that_got_in(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    ran = page.evaluate(
        "() => { const one = document.createElement('script'); one.textContent = 'window.ran = 1';"
        " document.body.append(one); return window.ran; }"
    )
    assert ran is None
    assert page.evaluate("() => fetch('data:text/plain,x').then(() => 'sent', () => 'refused')") == "refused"
    assert (
        page.evaluate(
            "() => new Promise(done => { const one = new Image(); one.onload = () => done('loaded');"
            " one.onerror = () => done('refused'); one.src = 'data:image/gif;base64,R0lGODlhAQABAAAAACw='; })"
        )
        == "refused"
    )
    page.close()


@pytest.mark.parametrize("question", range(4))
def test_a_phone_needs_no_sideways_scrolling(question: int, opened: Open) -> None:
    page = opened(width=360, height=740, question=question, has_touch=True, is_mobile=True)
    for number in range(page.locator("button.hit").count()):
        page.locator("button.hit").nth(number).tap()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        for details in page.locator("#replay details:not([open]) summary").all():
            details.tap()
        assert page.evaluate("() => document.documentElement.scrollWidth") == 360
        assert page.evaluate("() => document.activeElement.closest('#replay') !== null")
    for button in page.locator(".buttons button").all():
        box = button.bounding_box()
        assert min(box["width"], box["height"]) >= 40, "large enough for a finger"
        assert box["x"] + box["width"] <= 360


CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
      if (colour[3] > 0) throw new Error('half transparent: ' + at.className);
    }
    throw new Error('no ground');
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !one.checkVisibility({ visibilityProperty: true })) continue;
    if (['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(one.tagName)) continue;
    const [a, b] = [light(parse(getComputedStyle(one).color)), light(ground(one))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), one.className + ': ' + walk.currentNode.data.slice(0, 30)]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_its_ground(scheme: str, opened: Open, tmp_path: Path) -> None:
    page = opened(color_scheme=scheme, reduced_motion="reduce")
    for place, answer in enumerate(EXAMPLE.answers):
        page.locator("nav button").nth(place).click()
        for cited in answer.evidence:
            choose(page, cited)
            for key in ("End", "ArrowLeft", "ArrowLeft"):
                page.keyboard.press(key)
                found = page.evaluate(CONTRAST)
                assert len(found) > 20
                assert [text for ratio, text in found if ratio < 4.5] == []
    shot = tmp_path / f"{scheme}.png"
    page.screenshot(path=shot)
    assert shot.stat().st_size > 10_000
    ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(ground) > 600) == (scheme == "light")


def test_motion_is_reduced_where_asked_for(opened: Open) -> None:
    for wish, still in (("reduce", True), ("no-preference", False)):
        page = opened(reduced_motion=wish)
        times = page.locator(".bar .fill").first.evaluate("one => getComputedStyle(one).transitionDuration")
        scroll = page.evaluate("() => getComputedStyle(document.documentElement).scrollBehavior")
        assert (times == "0s", scroll == "auto") == (still, still)


def test_an_answer_without_a_trace_shows_what_was_kept(opened: Open) -> None:
    answer: Answer = EXAMPLE.answers[3]
    page = opened(question=3)
    for cited in answer.evidence:
        choose(page, cited)
        text = page.locator("#replay").inner_text()
        assert "not traced" in text
        assert page.locator(".source mark").all_text_contents() == [one.text for one in cited.evidence.regions]


def test_a_picture_is_shown_where_the_page_holds_it(browser: Any, tmp_path: Path) -> None:
    answer = EXAMPLE.answers[0]
    folder = Path(__file__).resolve().parents[2] / "examples" / "corpus" / "images"
    item = replace(view_data.FLAG, uri="pilot_flag.png")
    flag = replace(answer.evidence[2], original=replace(answer.evidence[2].original, item=item))
    evidence = [*answer.evidence[:2], flag, *answer.evidence[3:]]
    content = replace(EXAMPLE, answers=[replace(answer, evidence=evidence)])
    path = tmp_path / "picture.html"
    path.write_text(page_of(content, pictures(content, folder)), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    choose(page, flag)
    picture = page.get_by_role("img", name=view_data.FLAG.caption)
    assert picture.evaluate("one => one.decode().then(() => one.naturalWidth)") > 100
    page.close()


def test_what_failed_is_said(browser: Any, tmp_path: Path) -> None:
    answer = replace(EXAMPLE.answers[0], text="", stop="reader_failed", error="the reader\u202e did <b>not</b> answer")
    path = tmp_path / "failed.html"
    path.write_text(page_of(replace(EXAMPLE, answers=[answer, EXAMPLE.answers[1]])), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    said = page.locator(".failure")
    assert said.count() == 1
    assert said.inner_text().startswith("What failed: the reader")
    assert "<b>not</b> answer" in said.inner_text()
    assert "The reader gave no answer" in page.locator(".totals").first.inner_text()
    page.close()


def test_an_answer_without_evidence_says_so(browser: Any, tmp_path: Path) -> None:
    answer = replace(EXAMPLE.answers[0], evidence=[], text="", stop="no_items")
    answer.rounds = [replace(EXAMPLE.answers[0].rounds[0], hits=[], verdict=None)]
    path = tmp_path / "none.html"
    path.write_text(page_of(replace(EXAMPLE, answers=[answer])), encoding="utf-8")
    assert msgspec.json.encode(answer)
    page = browser.new_page()
    page.goto(path.as_uri())
    for said in ("No answer.", "Nothing was found.", "No evidence was found", "Nothing was retrieved"):
        assert said in page.locator("body").inner_text()
    page.close()
