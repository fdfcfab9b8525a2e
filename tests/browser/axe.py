"""The audit of a page by axe-core, as the tests ask for it."""

from pathlib import Path

from playwright.sync_api import Page

AXE = Path(__file__).parent.parent / "js" / "node_modules" / "axe-core" / "axe.min.js"


def faults(page: Page) -> list[str]:
    """What axe holds to be serious or worse, with the elements."""
    assert AXE.exists(), f"npm ci --prefix {AXE.parents[2]}"
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [
        f"{fault['id']}: {node['html']}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
