"""The page in a real browser: what it shows is what ``--json`` prints, and it answers to hand and keyboard."""

import json
import os
from typing import Any

import pytest

if os.environ.get("PLANFREEZE_TEST_CHROMIUM") != "required":
    pytest.importorskip("selenium")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from planfreeze.cache.pack import Pack
from planfreeze.packs import pack_plans
from planfreeze.pages import gather_report, make_document
from planfreeze.resolve import find_plans

PHONE = 360


def places(page: Any, **wanted: str) -> list[int]:
    """Places of the programs with some values."""
    return [i for i, program in enumerate(page.programs) if wanted.items() <= program.items()]


def test_it_opens_without_a_complaint_or_a_request(page):
    assert page.ask("document.readyState") == "complete" and page.find("h1").text == "3 frozen plans"
    assert page.ask("performance.getEntriesByType('resource').length") == 0
    assert page.ask("JSON.parse(document.getElementById('report').textContent).programs.length") == len(page.programs)


def test_the_table_shows_the_numbers_of_json(page):
    assert page.order == list(range(len(page.programs)))
    for index, program in enumerate(page.programs):
        name, arch, *numbers = page.cells(index)
        assert name.splitlines()[0] == program["group"] and arch == program["arch"]
        for field, value in program["fields"].items():
            telling = len({p["fields"][field] for p in page.programs if p["group"] == program["group"]}) > 1
            assert (f"{field}={value}" in name) is (telling or program["group"] == "toys_copy")
        shown = [text.replace(",", "") for text in numbers]
        occupancy, launches, seconds = shown.pop(5), shown.pop(), shown.pop()
        assert [float(text) for text in shown] == [
            program["registers"],
            program["spill_store_bytes"] + program["spill_load_bytes"],
            program["static_shared_bytes"] + program["dynamic_shared_bytes"],
            program["threads"],
            program["resident_ctas"],
            program["bytes"],
        ]
        assert float(seconds) == pytest.approx(program["provenance"]["seconds"], abs=0.0051)
        assert float(occupancy.removesuffix("%")) == pytest.approx(program["occupancy"] * 100, abs=0.051)
        assert launches == ("\u2013" if program["launches"] is None else str(program["launches"]))


def test_the_totals_are_those_of_json(page):
    totals = dict(text.split("\n") for text in page.texts("#totals div"))
    cubins = {program["blob"]: program["bytes"] for program in page.programs}
    assert totals["programs"] == str(len(page.programs)) and totals["families"] == "2"
    assert totals["cubins"] == f"{sum(cubins.values()) / 1000:.2f}kB"
    assert totals["most registers"] == str(max(program["registers"] for program in page.programs))
    assert totals["spilling"] == "0"
    seconds = sum(program["provenance"]["seconds"] for program in page.programs)
    assert float(totals["compile time"].removesuffix("s")) == pytest.approx(seconds, abs=0.06)


@pytest.mark.parametrize(("column", "field"), [("Registers", "registers"), ("Cubin bytes", "bytes")])
def test_a_press_sorts_the_greatest_first_another_one_the_least_first_and_a_third_as_planned(page, column, field):
    planned = page.order
    greatest = sorted(planned, key=lambda index: -page.programs[index][field])
    least = sorted(planned, key=lambda index: page.programs[index][field])
    for order, told in ((greatest, {column: "descending"}), (least, {column: "ascending"}), (planned, {})):
        page.head(column).click()
        assert page.order == order and page.sorted_by() == told


def test_what_is_not_known_comes_last_in_either_direction(page):
    unknown = places(page, launches=None)
    for _ in range(2):
        page.head("Launches").send_keys(Keys.ENTER)
        assert page.order[-len(unknown) :] == unknown
    assert [page.programs[i]["launches"] for i in page.order[: -len(unknown)]] == sorted(
        program["launches"] for program in page.programs if program["launches"] is not None
    )


def test_the_keyboard_reaches_filter_head_and_rows_and_opens_a_program(page):
    page.find("#text").send_keys("toys_copy")
    (index,) = places(page, group="toys_copy")
    assert page.order == [index]
    page.head("Compile s").send_keys(Keys.TAB)
    assert "Launches" in page.browser.switch_to.active_element.text
    page.browser.switch_to.active_element.send_keys(Keys.TAB)
    row = page.browser.switch_to.active_element
    assert row.text == "toys_copy" and row.get_attribute("aria-expanded") == "false"
    row.send_keys(Keys.SPACE)
    told = page.find(f"#{row.get_attribute('aria-controls')}")
    program = page.programs[index]
    assert row.get_attribute("aria-expanded") == "true" and told.is_displayed()
    for fact in (program["key"], program["blob"], program["symbol"], "mode=plain", "toys-tp1-sm_90a"):
        assert fact in told.text
    row.send_keys(Keys.SPACE)
    assert not told.is_displayed()


@pytest.mark.parametrize(
    ("typed", "wanted"), [("TOYS_ADD block=1024 sm_90a", {"arch": "sm_90a"}), ("block=1024", {}), ("nothing", None)]
)
def test_words_filter_table_charts_and_totals(page, typed, wanted):
    page.find("#text").send_keys(typed)
    found = (
        []
        if wanted is None
        else [i for i in places(page, **wanted) if page.programs[i]["fields"].get("block") == "1024"]
    )
    assert page.order == page.bright == found
    assert page.find("#count").text == f"{len(found)} of 9 programs"
    assert page.find("#totals dd").text == str(len(found))
    assert page.find("#nothing").is_displayed() is (wanted is None)


def test_families_and_targets_filter_and_a_family_is_chosen_in_its_chart(page):
    page.find("#strips button[data-family='toys_add']").click()
    assert page.order == places(page, group="toys_add")
    page.find("#arch").send_keys("sm_120a")
    assert page.order == page.bright == places(page, group="toys_add", arch="sm_120a")
    assert page.find("#strips button[aria-pressed='true']").text == "toys_add"
    page.find("#strips button[data-family='toys_add']").click()
    assert page.order == places(page, arch="sm_120a")


def test_marks_stand_where_the_numbers_say(page):
    sizes = page.marks("#strips .mark", "cx")
    assert len(sizes) == len(page.programs) and page.texts("#strips .head svg text")[-1] == "20 kB"
    for shown, x in sizes:
        assert float(x[:-1]) == pytest.approx(page.programs[int(shown)]["bytes"] / 20_000 * 100)
    spots = page.marks("#scatter .mark", "cx", "cy")
    assert sorted(int(index) for shown, _, _ in spots for index in shown.split(",")) == list(range(len(page.programs)))
    for shown, x, y in spots:
        for program in (page.programs[int(index)] for index in shown.split(",")):
            assert float(x[:-1]) == pytest.approx(program["registers"] / 256 * 100)
            assert float(y) == pytest.approx(210 * (1 - program["occupancy"]))


def test_the_timeline_shows_one_build_at_a_time_over_its_processes(page, reported):
    builds = {build["build"]: build for build in reported.content["builds"]}
    of_build = [builds[program["provenance"]["build"]] for program in page.programs]
    shown = page.marks("#timeline .mark", "x", "y")
    end_s = float([text for text in page.texts("#timeline text") if text.endswith(" s")][-1].removesuffix(" s"))
    assert sorted(int(index) for index, _, _ in shown) == [
        i for i, build in enumerate(of_build) if build["programs"] == 7
    ]
    assert len({y for _, _, y in shown}) == 2
    for index, x, _ in shown:
        began_s = page.programs[int(index)]["provenance"]["started_s"] - of_build[int(index)]["started_s"]
        assert float(x[:-1]) == pytest.approx(began_s / end_s * 100, abs=0.01)
    assert "7 programs" in page.find("#build-facts").text and "2 compile processes" in page.find("#build-facts").text
    page.find("#builds option:first-child").click()
    assert len(page.marks("#timeline .mark")) == 2 and "2 programs" in page.find("#build-facts").text


def test_coverage_names_what_is_unused_and_what_is_unplanned(page, reported):
    text = page.find("#coverage").text
    assert "later.json" in text and "used 2 of 4 planned programs" in text
    for found in reported.content["coverage"]["plans"]:
        for name in (*found["unused"], *(gap["program"] for gap in found["unplanned"])):
            assert name in text


def test_a_mark_says_what_it_is_and_leads_to_its_row(page):
    mark = page.find("#strips .mark[data-programs='2']")
    page.browser.execute_script("arguments[0].dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))", mark)
    tip = page.find("#tip").text
    program = page.programs[2]
    assert (
        program["group"] in tip and f"{program['bytes']:,} bytes" in tip and f"{program['registers']} registers" in tip
    )
    page.browser.execute_script("arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", mark)
    assert page.find("#facts-2").is_displayed() and page.browser.switch_to.active_element.text == program["group"]


def brightness(page: Any) -> float:
    """How light the ground is, from 0 to 255."""
    colour = page.ask("getComputedStyle(document.body).backgroundColor")
    return sum(map(float, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 3


def test_it_is_dark_where_that_is_preferred_and_the_button_turns_it(page):
    assert brightness(page) > 200
    page.prefer("dark")
    assert brightness(page) < 60
    page.find("#theme").click()
    assert brightness(page) > 200 and page.find("#theme").text == "Dark"
    page.find("#theme").click()
    assert brightness(page) < 60


def test_a_phone_scrolls_in_one_direction_and_sorts(page):
    page.resize(PHONE, is_phone=True)
    page.find("tbody button").click()
    for details in page.browser.find_elements(By.CSS_SELECTOR, "details:not([open]) summary"):
        page.browser.execute_script("arguments[0].click()", details)
    assert page.ask("document.documentElement.scrollWidth") == page.ask("innerWidth") == PHONE
    shown = "[...document.querySelectorAll('main *')].filter((element) => element.checkVisibility())"
    beyond = f"{shown}.filter((element) => element.getBoundingClientRect().right > innerWidth + 0.5)"
    assert page.ask(f"{beyond}.map((element) => element.outerHTML.slice(0, 80))") == []
    assert not page.find("thead").is_displayed()
    page.find("#order option[value='size down']").click()
    assert page.order == sorted(range(len(page.programs)), key=lambda index: -page.programs[index]["bytes"])
    assert page.ask("getComputedStyle(document.querySelector('td[data-label]'), '::before').content") == '"Target"'


HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


def test_text_that_looks_like_markup_is_shown_as_it_is(open_page, reported, tmp_path):
    content = json.loads(json.dumps(reported.content))
    for program in content["programs"]:
        program["group"] = HOSTILE + program["group"]
        program["fields"] = {HOSTILE: HOSTILE}
        program["labels"] = {HOSTILE: HOSTILE}
    content["programs"][0] |= {"symbol": HOSTILE, "arch": "sm_90a", "plans": [HOSTILE]}
    content["plans"][0]["name"] = content["store"] = content["coverage"]["recording"] = HOSTILE
    content["coverage"]["plans"][0]["unplanned"] = [{"program": HOSTILE, "nearest": HOSTILE}]
    path = tmp_path / "report.html"
    path.write_text(make_document(content))
    page = open_page(path, content)
    page.find("tbody button").click()
    assert HOSTILE in page.browser.title and page.browser.title.endswith("planfreeze")
    assert page.ask("[document.scripts.length, document.images.length]") == [2, 0]
    assert f"{HOSTILE}={HOSTILE}" in page.find("tbody tr.more").text
    for selector in ("#plans", "#origin", "#coverage", "#strips"):
        assert HOSTILE in page.find(selector).text
    assert page.problems() == []


def test_a_page_of_a_pack_says_that_nobody_noted_the_build(open_page, reported, tmp_path):
    plans = find_plans(reported.store, None)
    pack_plans(plans, reported.store, tmp_path / "all.pfz")
    content = gather_report(plans, Pack.open(tmp_path / "all.pfz"))
    path = tmp_path / "report.html"
    path.write_text(make_document(content))
    page = open_page(path, content)
    assert "keep no note" in page.find("#build-facts").text and not page.find("#builds").is_displayed()
    assert page.ask("document.querySelectorAll('#timeline svg').length") == 0
    assert not page.find("#coverage").is_displayed() and page.cells(0)[-1] == "\u2013"
    assert page.problems() == []
