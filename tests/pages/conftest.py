import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start headless Chromium."""
    driver = pytest.importorskip("playwright.sync_api", reason="pages are tested by playwright, which is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("pages are tested in chromium, which is not installed")
    with driver.sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield chrome
        chrome.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open HTML from a file; at the end no other request may have been made, and the console is empty."""
    faults: list[str] = []
    pages: list[Any] = []

    def open_html(html: str, *, width: int = 1440, scheme: str = "light", height: int = 900) -> Any:
        path = tmp_path / f"page{len(pages)}.html"
        path.write_text(html, encoding="utf-8", newline="\n")
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        pages.append(page)

        def handle(route: Any) -> None:
            if route.request.url == path.as_uri():
                route.continue_()
                return
            faults.append(f"request: {route.request.url}")
            route.abort()

        page.route("**/*", handle)
        page.on("console", lambda message: faults.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.set_default_timeout(10_000)
        page.goto(path.as_uri())
        return page

    yield open_html
    for page in pages:
        page.close()
    assert not faults


@pytest.fixture
def violations() -> Callable[[Any], list[str]]:
    """Return a function that lists the serious and critical problems that axe-core reports."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed").Axe()

    def list_violations(page: Any) -> list[str]:
        results = axe.run(page).response
        assert results["passes"]  # it ran
        serious = [rule for rule in results["violations"] if rule["impact"] in ("serious", "critical")]
        return [f"{rule['id']}: {[node['html'] for node in rule['nodes'][:3]]}" for rule in serious]

    return list_violations


# Texts of visible nodes, and of attributes that a screen reader or a tooltip shows.
COLLECT_TEXTS = """() => {
  const texts = [document.title];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { parentElement: node, textContent: text } = walker.currentNode;
    if (!node.closest("script, style") && node.checkVisibility()) texts.push(text.trim());
  }
  for (const name of ["aria-label", "aria-valuetext", "alt", "title"]) {
    for (const node of document.querySelectorAll(`[${name}]`)) texts.push(node.getAttribute(name));
  }
  return texts;
}"""


@pytest.fixture
def find_untranslated() -> Callable[[Any, str], list[str]]:
    """Return a function that lists the texts with Latin letters alone, but for names that match a pattern."""

    def list_texts(page: Any, names: str) -> list[str]:
        texts = set(page.evaluate(COLLECT_TEXTS))
        assert any(re.search(r"[\u4e00-\u9fff]", text) for text in texts)
        latin = [text for text in texts if re.search("[A-Za-z]", text) and not re.search(r"[\u4e00-\u9fff]", text)]
        return sorted(text for text in latin if not re.fullmatch(names, text))

    return list_texts
