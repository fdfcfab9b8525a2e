"""Imports run down only: agentsite → transports → actions → … → coordination → Django.

Read from the files, not by importing them: a wrong import inside a function counts too. One layer
knows those below it, and nothing above; that is what lets each be read and tested without the rest.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# From the top. A module belongs to the longest prefix that fits it.
LAYERS = [
    "agentsite",
    "chat.transports",
    "chat.management",
    "chat.actions",
    "chat.executor",
    "chat",
    "chat.llm",
    "coordination",
]
PLACE = {name: place for place, name in enumerate(LAYERS)}


def modules() -> list[Path]:
    folders = [ROOT / "agentsite", ROOT / "chat", ROOT / "coordination"]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every imported name, absolute; those for type checkers too."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def layer(module: str) -> str | None:
    fitting = [name for name in LAYERS if f"{module}.".startswith(f"{name}.")]
    return max(fitting, key=len, default=None)


def reaches_up(importer: str, imported: str) -> bool:
    above, below = layer(importer), layer(imported)
    if above is None or below is None or above == below:
        return False
    return PLACE[below] < PLACE[above]


def test_no_module_imports_a_layer_above_its_own():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in modules()
        for line, imported in imports(path)
        if reaches_up(name_of(path), imported)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("forbidden", ["django", "coordination", "channels"])
def test_the_models_know_neither_django_nor_coordination(forbidden):
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in modules()
        if layer(name_of(path)) == "chat.llm"
        for line, imported in imports(path)
        if imported.split(".")[0] == forbidden
    ]
    assert not wrong, "\n".join(wrong)


def test_coordination_knows_no_model_library():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in modules()
        if layer(name_of(path)) == "coordination"
        for line, imported in imports(path)
        if imported.split(".")[0] in {"pydantic_ai", "openai", "anthropic", "ag_ui"}
    ]
    assert not wrong, "\n".join(wrong)


def test_the_rule_itself_sees_what_it_should(tmp_path):
    assert reaches_up("coordination.guard", "chat.models.ChatSession")
    assert reaches_up("chat.memory", "chat.actions.stop")
    assert reaches_up("chat.llm.demo", "chat.memory")
    assert not reaches_up("chat.memory", "chat.models.Memory")
    assert not reaches_up("chat.transports.api", "chat.actions.stop")
    assert not reaches_up("chat.transports.api", "django.http")


def test_no_two_modules_of_the_product_import_each_other():
    """When they load, that is: an import inside a function is how a knot is undone, and is seen."""
    names = {name_of(path) for path in modules()}
    below = {
        name_of(path): {module_of(name, names) for name in loaded_at_once(path)} - {None}
        for path in modules()
    }
    wrong = sorted(
        f"{first} and {second}"
        for first, seconds in below.items()
        for second in seconds
        if second and first < second and first in below[second]
    )
    assert not wrong, "\n".join(wrong)


def loaded_at_once(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(), str(path))
    top = {node.lineno for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)}
    yield from (name for line, name in imports(path) if line in top)


def module_of(name: str, known: set[str]) -> str | None:
    """``chat.models.Memory`` is in ``chat.models``."""
    return next((module for module in (name, name.rpartition(".")[0]) if module in known), None)
