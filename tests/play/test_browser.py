"""The page in headless Chromium: what a user does with the mouse and with the keyboard."""

from __future__ import annotations

import re
import runpy
from typing import TYPE_CHECKING, Any

import pytest

from logitport_play import runs
from logitport_play.web.serving import PlayServer
from logitport_testing import StoryModel, simulate
from tests.play.accessibility import CONTRAST, NAMELESS
from tests.play.browser import executable, launched
from tests.play.conftest import FILE, running
from tests.play.recordings import AS_RECORDED, NEW, REFUSING, STEPS, write_recording

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install '.[browser]'")
if executable() is None:
    pytest.skip("Chromium is not installed: apt-get install chromium", allow_module_level=True)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

expect = playwright.expect


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, server: PlayServer, folder: Path) -> Iterator[Page]:
    (folder / "my.py").write_text(FILE)
    yield from opened(browser, server.url)


def opened(browser: Browser, url: str, cards: int = 1, **options: Any) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1600, "height": 900}, **options)
    page = context.new_page()
    page.set_default_timeout(60_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("request", lambda request: None if request.url.startswith((url, "data:")) else problems.append(request.url))
    page.goto(url)
    expect(page.locator(".card")).to_have_count(cards)
    yield page
    context.close()
    assert [one for one in problems if "ERR_FAILED" not in one] == []


def run(page: Page, steps: int) -> None:
    """Run these steps from the prompt."""
    expect(page.locator(".lane").first.locator(".lp-tile")).not_to_have_count(0)
    page.get_by_role("button", name="Reset").click()
    expect(page.locator(".lp-tile")).to_have_count(0)
    expect(page.get_by_text("Press Step or Run")).to_be_visible()
    page.get_by_label("steps to run").fill(str(steps))
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".lane").first.locator(".lp-tile")).to_have_count(steps)


def add(page: Page, name: str, lane: int = 0) -> None:
    where = page.locator(".lane").nth(lane)
    count = where.locator(".card").count()
    where.get_by_label("Add a processor").select_option(name)
    expect(where.locator(".card")).to_have_count(count + 1)


def words(page: Page, lane: int = 0) -> list[str]:
    return page.locator(".lane").nth(lane).locator(".lp-tile").all_text_contents()


def settled(page: Page) -> None:
    """Wait until the changes of fields have run."""
    page.evaluate("() => new Promise((wake) => setTimeout(wake, 300))")  # the page's own timers are due before
    expect(page.locator('.lane[aria-busy="true"]')).to_have_count(0)


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_shows_effects_without_a_click(browser: Browser, width: int, scheme: str) -> None:
    with running(PlayServer(seed=7)) as server:
        for page in opened(browser, server.url, 5, color_scheme=scheme):
            page.set_viewport_size({"width": width, "height": 900})
            examples = page.locator(".example")
            expect(examples).to_have_count(3)
            for name, figures in (("figure", 2), (".bars", 1)):
                assert [one.locator(name).count() for one in examples.all()] == [figures] * 3
            assert all(one.locator("figure").nth(0).locator(".counted").count() for one in examples.all())
            expect(examples.first.locator("figure").nth(1)).to_be_in_viewport()
            expect(page.locator(".lane .lp-tile")).to_have_count(24)
            assert page.evaluate(CONTRAST) == []
            assert page.evaluate(NAMELESS) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_an_example_can_be_changed(browser: Browser) -> None:
    with running(PlayServer(seed=7)) as server:
        for page in opened(browser, server.url, 5):
            page.get_by_role("button", name="Change A sampler").click()
            expect(page.locator(".lane .card b")).to_have_text(["min_p"])
            expect(page.get_by_label("prompt")).to_have_value("The old king")
            expect(page.locator(".lane .lp-prompt")).to_have_text("The old king")
            settled(page)
            shown = page.locator(".example").nth(2).locator("figure").nth(1).locator(".lp-tile").all_text_contents()
            assert words(page) == shown


def test_a_processor_can_be_switched_off(page: Page) -> None:
    add(page, "disallowed_tokens")
    run(page, 6)
    expect(page.locator(".lp-effects li")).to_have_count(2)
    page.get_by_label("run card 1, Boost").uncheck()
    expect(page.get_by_label("run card 1, Boost")).to_be_focused()
    expect(page.locator(".lp-effects li")).to_have_text([re.compile("disallowed_tokens")])
    expect(page.get_by_label("token_ids of 1: disallowed_tokens")).to_be_visible()
    page.reload()
    expect(page.get_by_label("run card 1, Boost")).not_to_be_checked()
    page.get_by_label("run card 1, Boost").check()
    expect(page.locator(".lp-effects li")).to_have_count(2)


def test_required_fields_are_marked(page: Page) -> None:
    add(page, "no_repeat_ngram")
    size, window = page.get_by_label("ngram_size of 2"), page.get_by_label("window_size of 2")
    assert (size.get_attribute("required"), window.get_attribute("required")) == ("", None)
    expect(page.locator(".card").nth(1).locator(".star")).to_have_count(1)
    size.fill("")
    expect(page.locator(".card").nth(1)).to_have_class(re.compile("failed"))
    expect(page.locator(".card-error").nth(1)).to_have_text("ngram_size: a value is required")
    size.fill("3")
    expect(page.locator(".card.failed")).to_have_count(0)


def test_an_error_of_an_earlier_step_marks_its_card(page: Page) -> None:
    add(page, "my.py:Fails")
    run(page, 6)
    expect(page.locator(".card.failed")).to_have_count(1)
    expect(page.locator(".card").nth(1).locator(".card-error")).to_contain_text("failed in 1 of 6 steps")
    page.get_by_label("run card 2, Fails").uncheck()
    expect(page.locator(".card.failed")).to_have_count(0)


def test_a_click_on_a_tile_shows_its_step(page: Page) -> None:
    run(page, 6)
    expect(page.get_by_role("heading", name="Step 6")).to_be_visible()
    page.locator(".lp-tile").nth(2).click()
    expect(page.get_by_role("heading", name="Step 3")).to_be_visible()
    page.locator(".lp-column[data-step='4']").first.click(force=True)
    expect(page.get_by_role("heading", name="Step 5")).to_be_visible()
    expect(page.locator(".lp-column.lp-current")).to_have_count(2)


def test_a_click_on_a_candidate_forces_it_and_goes_on(page: Page) -> None:
    run(page, 6)
    page.locator(".lp-tile").nth(2).click()
    before = words(page)
    candidate = page.locator("tr:not(.lp-chosen) .lp-force").first
    token = candidate.get_attribute("data-token")
    candidate.click()
    expect(page.locator(".lp-tile.lp-given")).to_have_count(1)
    expect(page.get_by_role("heading", name="Step 3")).to_be_visible()
    settled(page)
    assert page.locator(".lp-chosen .lp-force").get_attribute("data-token") == token
    after = words(page)
    assert (after[:2], len(after)) == (before[:2], 6)
    assert after[2] != before[2]


def test_the_shown_step_stays_where_each_reply_has_one_step(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    run(page, 6)
    page.locator(".lp-tile").nth(2).click()
    monkeypatch.setattr(runs, "_BUDGET_SECONDS", 0.0)
    page.get_by_label("bias of 1: Boost").fill("10")
    expect(page.locator(".lp-effects")).to_contain_text("by +10")
    settled(page)
    expect(page.get_by_role("heading", name="Step 3")).to_be_visible()
    page.get_by_label("Compare").check()
    for lane in (0, 1):
        expect(page.locator(".lane").nth(lane).locator(".lp-tile")).to_have_count(6)
        expect(page.locator(".lane").nth(lane).get_by_role("heading", name="Step 3")).to_be_visible()


def test_the_keyboard_alone(page: Page) -> None:
    """From the prompt to a forced id, without a mouse."""
    run(page, 1)
    page.get_by_role("button", name="Reset").press("Enter")
    page.get_by_label("prompt").focus()
    page.keyboard.press("Control+.")
    expect(page.locator(".lp-tile")).to_have_count(1)
    page.get_by_label("steps to run").fill("5")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".lp-tile")).to_have_count(6)
    page.get_by_role("radio").nth(5).focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("heading", name="Step 5")).to_be_visible()
    expect(page.get_by_role("radio").nth(4)).to_be_focused()
    page.keyboard.press("Tab")
    while "lp-force" not in str(page.evaluate("document.activeElement.className")):
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    token = page.evaluate("document.activeElement.dataset.token")
    page.keyboard.press("Enter")
    expect(page.locator(".lp-tile").nth(4)).to_have_class(re.compile("lp-given"))
    expect(page.locator(f'.lp-force[data-token="{token}"]')).to_be_focused()
    page.get_by_role("button", name="move later").first.focus()
    add(page, "temperature")
    page.get_by_role("button", name="move earlier 2: temperature").press("Enter")
    expect(page.locator(".card b").first).to_have_text("temperature")
    page.get_by_role("button", name="remove 1: temperature").press("Space")
    expect(page.locator(".card")).to_have_count(1)
    expect(page.get_by_role("button", name="remove 1: Boost")).to_be_focused()


def test_forms(page: Page) -> None:
    run(page, 4)
    field = page.get_by_label("bias of 1: Boost")
    assert (field.get_attribute("min"), field.get_attribute("max"), field.input_value()) == ("-10", "10", "1.5")
    before = words(page)
    field.fill("10")
    expect(page.locator(".lp-effects")).to_contain_text("by +10")
    settled(page)
    assert words(page) != before
    add(page, "logit_bias")
    json = page.get_by_label("parameters of 2: logit_bias")
    json.fill('{"logit_bias": ')
    expect(json).to_have_attribute("aria-invalid", "true")
    json.fill('{"logit_bias": {"9": -100}}')
    expect(json).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator(".lp-effects")).to_contain_text("\N{MINUS SIGN}100")
    add(page, "disallowed_tokens")
    page.get_by_label("token_ids of 3: disallowed_tokens").fill("5, 6")
    expect(page.locator(".lp-effects")).to_contain_text("denied 2 ids")


def test_a_saved_file_is_loaded_again(page: Page, folder: Path) -> None:
    run(page, 4)
    expect(page.locator(".origin")).to_have_text(re.compile(r"my.py · saved \d+ s ago"))
    path = folder / "my.py"
    path.write_text(FILE.replace("edits.bias([9]", "edits.deny([5, 6]) or edits.bias([39]"))
    expect(page.locator(".lp-effects")).to_contain_text("denied 2 ids")
    settled(page)
    good = words(page)
    path.write_text("class Boost(:")
    expect(page.get_by_role("alert")).to_contain_text("my.py has an error; its last good version goes on")
    expect(page.get_by_role("alert")).to_contain_text("SyntaxError")
    expect(page.locator(".origin")).to_contain_text("error, last good version")
    expect(page.locator(".card.failed .card-error")).to_contain_text("my.py has an error")
    settled(page)
    assert words(page) == good
    page.get_by_role("button", name="Step", exact=True).click()
    expect(page.locator(".lp-tile")).to_have_count(5)
    path.write_text(FILE)
    expect(page.locator(".problem")).to_have_count(0)


def test_two_chains_side_by_side(page: Page) -> None:
    run(page, 8)
    page.get_by_label("Compare").check()
    expect(page.locator(".lane")).to_have_count(2)
    expect(page.locator(".lane").nth(1).locator(".lp-tile")).to_have_count(8)
    assert words(page, 0) == words(page, 1)
    expect(page.locator(".lp-differs")).to_have_count(0)
    page.locator(".lane").nth(1).get_by_label("bias of 1: Boost").fill("10")
    expect(page.locator(".lp-differs")).not_to_have_count(0)
    assert words(page, 0) != words(page, 1)
    page.get_by_role("button", name="Step", exact=True).click()
    for lane in (0, 1):
        expect(page.locator(".lane").nth(lane).locator(".lp-tile")).to_have_count(9)
    page.get_by_label("Compare").uncheck()
    expect(page.locator(".lane")).to_have_count(1)
    expect(page.locator(".lp-differs")).to_have_count(0)


def test_settings_run_again(page: Page) -> None:
    run(page, 8)
    before = words(page)
    page.get_by_label("seed").fill("8")
    settled(page)
    other = words(page)
    assert (len(other), other != before) == (8, True)
    page.get_by_label("seed").fill("7")
    settled(page)
    assert words(page) == before
    page.get_by_label("choose").select_option("the best id")
    page.get_by_label("prompt").fill("The old king <b>")
    settled(page)
    expect(page.locator(".lp-prompt")).to_have_text("The old king <b>")
    page.reload()
    expect(page.get_by_label("prompt")).to_have_value("The old king <b>")
    expect(page.locator(".lp-tile")).to_have_count(8)


def test_the_export(page: Page, tmp_path: Path) -> None:
    run(page, 5)
    page.get_by_role("button", name="Export as test").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert path.read_text() == page.locator("#code").text_content()
    (tmp_path / "my.py").write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        runpy.run_path(str(path))["test_boost"]()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_server_that_is_gone(page: Page) -> None:
    page.route("**/api/files", lambda route: route.abort())
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    page.unroute("**/api/files")
    expect(page.locator(".problem")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_and_contrast(browser: Browser, server: PlayServer, folder: Path, scheme: str) -> None:
    (folder / "my.py").write_text(FILE)
    for page in opened(browser, server.url, color_scheme=scheme):
        add(page, "my.py:Fails")
        add(page, "no_repeat_ngram")
        add(page, "top_p")
        for _ in range(5):
            add(page, "temperature")
        run(page, 24)
        for step in (2, 12, 23):
            page.locator(".lp-tile").nth(step).click()
            assert page.evaluate(CONTRAST) == []
            assert page.evaluate(NAMELESS) == []


@pytest.mark.parametrize("width", [1000, 1600])
def test_nothing_is_wider_than_the_page(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for name in ("no_repeat_ngram", "dry", "temperature", "top_p"):
        add(page, name)
    run(page, 40)
    for compared in (False, True):
        if compared:
            page.get_by_label("Compare").check()
            expect(page.locator(".lp-tile")).to_have_count(80)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for table in page.locator(".lp-scroll").all():
            assert table.evaluate("one => one.scrollWidth - one.clientWidth") <= 1


@pytest.fixture
def recorded(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """The page of a recording."""
    (tmp_path / "my.py").write_text(NEW)
    write_recording(tmp_path / "engine.lprec")
    tokenizer = StoryModel.tokenizer_path
    server = PlayServer([tmp_path / "my.py"], recording=tmp_path / "engine.lprec", tokenizer=tokenizer)
    with running(server):
        yield from opened(browser, server.url)


def test_a_recording(recorded: Page, tmp_path: Path) -> None:
    page = recorded
    facts, alert = page.locator("#facts"), page.get_by_role("alert")
    expect(facts).to_have_text(f"differs in {STEPS - 1} of {STEPS} rows")
    expect(page.locator(".lp-tile")).to_have_count(STEPS)
    expect(page.locator(".lp-tile.lp-differs")).to_have_count(STEPS - 1)
    expect(page.get_by_role("heading", name="Step 1, after")).to_be_visible()  # the first difference
    expect(page.locator(".lp-difference")).to_contain_text("The new version allows 1 id")
    expect(page.locator(".lp-table")).to_have_count(0)
    page.get_by_role("button", name="Next difference").click()
    page.get_by_role("button", name="Next difference").click()
    expect(page.get_by_role("heading", name="Step 3, after")).to_be_visible()
    expect(page.get_by_role("columnheader")).to_have_text(["candidate", "model", re.compile("^1"), re.compile("^2")])
    page.locator(".lp-tile").nth(2).click()
    expect(page.get_by_role("heading", name="Step 2, after")).to_be_visible()
    page.get_by_role("button", name="Previous difference").click()
    expect(page.get_by_role("heading", name="Step 1, after")).to_be_visible()

    (tmp_path / "my.py").write_text(AS_RECORDED)
    expect(facts).to_have_text(f"no difference in {STEPS} rows")
    expect(page.locator(".lp-differs")).to_have_count(0)
    (tmp_path / "my.py").write_text("class NoRepeat(:")
    expect(alert).to_contain_text("my.py has an error; its last good version goes on")
    (tmp_path / "my.py").write_text(NEW)
    expect(facts).to_contain_text("differs")
    expect(page.locator(".problem")).to_have_count(0)

    (tmp_path / "my.py").write_text(REFUSING)
    expect(facts).to_have_text("request chat-edits: not compared: processor NoRepeat: no strength")
    expect(alert).to_contain_text("processor NoRepeat: no strength")
    expect(page.locator(".lp-tile")).to_have_count(0)
    (tmp_path / "my.py").write_text(NEW)
    expect(facts).to_contain_text("differs")

    page.get_by_label("request").select_option("1")
    expect(facts).to_have_text("differs in 4 of 4 rows, 4 without recorded edits or logits not compared")
    expect(page.locator(".card b")).to_have_text(["1: top_k", "2: Cooler"])
    page.get_by_label("version of 2: Cooler").select_option("")
    expect(alert).to_contain_text("Cooler is not in the recording: choose a version of it")
    expect(page.locator(".lp-tile")).to_have_count(0)
    page.get_by_label("version of 2: Cooler").select_option("my.py:Cooler")
    expect(page.locator(".lp-tile")).to_have_count(STEPS)
    expect(page.locator(".problem")).to_have_count(0)
    page.locator(".lp-tile").nth(2).click()
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 1600


def test_another_request_during_a_replay(recorded: Page) -> None:
    page = recorded
    expect(page.locator("#facts")).to_have_text(f"differs in {STEPS - 1} of {STEPS} rows")
    held: list[Any] = []
    page.route("**/api/replay", lambda route: held.insert(0, route), times=1)
    page.get_by_label("request").select_option("1")
    while not held:
        page.wait_for_timeout(50)
    page.get_by_label("request").select_option("0")
    held[0].continue_()
    settled(page)
    expect(page.locator(".lp-tile")).to_have_count(STEPS)
    expect(page.locator("#facts")).to_have_text(f"differs in {STEPS - 1} of {STEPS} rows")
    expect(page.locator(".problem")).to_have_count(0)


def test_the_view_of_a_notebook(browser: Browser, tmp_path: Path) -> None:
    """Its tiles work without a script."""
    html = simulate([("top_k", {"top_k": 4})], StoryModel(), StoryModel().encode("Once upon a time"), 5)._repr_html_()
    (tmp_path / "view.html").write_text(f"<!doctype html><meta charset=utf-8>{html}")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "view.html").as_uri())
    expect(page.get_by_role("heading", name="Step 1", exact=False)).to_be_visible()
    expect(page.locator(".lp-pane:visible")).to_have_count(1)
    page.locator(".lp-tile").nth(3).click()
    expect(page.get_by_role("heading", name="Step 4")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("heading", name="Step 5")).to_be_visible()
    expect(page.locator(".lp-pane:visible")).to_have_count(1)
    context.close()
