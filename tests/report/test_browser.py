"""A report opens in a real browser: no error, no request but for itself, pictures drawn, nothing cut off."""

import struct

import pytest

from marius_py import cli
from tests.browser import Browser
from tests.report.test_page import trained  # noqa: F401 - a fixture

pytest.importorskip("matplotlib", reason="reports need matplotlib")

FACTS = """
Promise.all([...document.images].map(image => image.decode())).then(() => ({
    title: document.title,
    sections: [...document.querySelectorAll('h2')].map(one => one.textContent),
    pictures: [...document.images].map(one => [
        one.alt, one.naturalWidth, one.naturalHeight, one.clientWidth, one.complete]),
    captions: [...document.querySelectorAll('figcaption')].map(one => one.textContent),
    cells: [...document.querySelectorAll('td')].map(one => one.textContent),
    wrapped: [...document.querySelectorAll('td:first-child')].filter(one => one.clientHeight > 45).map(
        one => one.textContent),
    scripts: document.scripts.length,
    width: document.documentElement.scrollWidth,
    height: document.documentElement.scrollHeight,
}))
"""
SECTIONS = ["Test", "Training", "Throughput", "Pipeline", "Ranks", "Relations", "Embeddings"]
PICTURES = 10


@pytest.fixture(scope="module")
def page(trained, tmp_path_factory):  # noqa: F811
    output = tmp_path_factory.mktemp("page") / "a report & more.html"
    assert cli.report([str(trained), "--output", str(output), "--no-figures"]) == 0
    return output


@pytest.mark.parametrize("width", [1000, 400])
def test_a_report_in_a_browser(page, width):
    with Browser() as browser:
        visit = browser.visit(page, FACTS, width=width)
    assert visit.errors == []
    assert visit.requests[0] == page.as_uri()
    assert all(address.startswith("data:image/svg+xml;base64,") for address in visit.requests[1:])
    facts = visit.facts
    assert facts["title"] == "Run run"
    assert facts["sections"] == SECTIONS
    assert len(facts["pictures"]) == PICTURES
    assert [picture[0] for picture in facts["pictures"]] == facts["captions"]
    for name, natural_width, natural_height, shown_width, complete in facts["pictures"]:
        assert complete, name
        assert natural_width > 300, name
        assert natural_height > 80, name
        assert 0.7 * min(width - 32, 800) <= shown_width <= width, name
    assert {"r0", "r1", "r2", "complex"} <= set(facts["cells"])
    assert facts["wrapped"] == [], "words are broken up, though a table may be scrolled"
    assert facts["scripts"] == 0
    assert facts["width"] == width, "the page is wider than the window"
    assert facts["height"] > 3000
    assert visit.screenshot.startswith(b"\x89PNG")
    assert struct.unpack(">I", visit.screenshot[16:20])[0] == width
    assert len(visit.screenshot) > 100_000, "the pictures are blank"


def test_the_browser_sees_what_a_page_does(tmp_path):
    """What the test above rules out would be found."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><title>bad</title><h2>One</h2><img src='missing.png'>"
        "<img src='http://example.invalid/a.png'><script>console.error('wrong'); throw Error('x')</script>"
    )
    with Browser() as browser:
        visit = browser.visit(page, "document.querySelectorAll('h2').length")
    assert visit.facts == 1
    assert [address.rpartition("/")[2] for address in visit.requests[1:]] == ["missing.png", "a.png"]
    assert any("wrong" in error for error in visit.errors)
    assert any("Error: x" in error for error in visit.errors)
