import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    driver = pytest.importorskip("playwright.sync_api", reason="pages are tested by playwright, which is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("pages are tested in chromium, which is not installed")
    with driver.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens HTML from a file; in the end nothing may have been asked for beside it, and the console is empty."""
    faults: list[str] = []
    pages: list[Any] = []

    def opened(html: str, *, width: int = 1440, scheme: str = "light", height: int = 900) -> Any:
        path = tmp_path / f"page{len(pages)}.html"
        path.write_text(html, encoding="utf-8", newline="\n")
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        pages.append(page)

        def route(asked: Any) -> None:
            if asked.request.url == path.as_uri():
                asked.continue_()
                return
            faults.append(f"request: {asked.request.url}")
            asked.abort()

        page.route("**/*", route)
        page.on("console", lambda message: faults.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.set_default_timeout(10_000)
        page.goto(path.as_uri())
        return page

    yield opened
    for page in pages:
        page.close()
    assert not faults


@pytest.fixture
def violations() -> Callable[[Any], list[str]]:
    """What axe-core finds serious or critical in a page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed").Axe()

    def found(page: Any) -> list[str]:
        checked = axe.run(page).response
        assert checked["passes"]  # it ran
        serious = [one for one in checked["violations"] if one["impact"] in ("serious", "critical")]
        return [f"{one['id']}: {[node['html'] for node in one['nodes'][:3]]}" for one in serious]

    return found
