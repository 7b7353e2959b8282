"""What the package depends on has a licence that its own, BSD, allows to depend on."""

import json
import re
from importlib.metadata import distribution

import pytest
from environments import NOTEBOOK, RANK, ROOT, project_table
from packaging.requirements import Requirement

ALLOWED = re.compile(
    r"BSD|MIT|Apache|ISC|Zlib|CC0-1\.0|BSL-1\.0|MPL[- ]2\.0|Python Software Foundation|PSF|0BSD|"
    r"Mozilla Public License 2\.0|Databricks|Jupyter"
)
FORBIDDEN = re.compile(r"\bA?GPL|General Public License|proprietary|SSPL", re.IGNORECASE)
FRONT_END = ROOT / "labextension"
EXTRAS = ("notebooks", "mlflow", "tensorboard")


def requirements():
    table = project_table(NOTEBOOK)
    lines = [*table["dependencies"], *project_table(RANK)["dependencies"]]
    for extra in EXTRAS:
        lines += table["optional-dependencies"][extra]
    return sorted({Requirement(line).name for line in lines} - {"gradient-workbench"})


def licence_of(name):
    """What a distribution says of its licence: an expression, a text's first line, classifiers."""
    about = distribution(name).metadata
    kinds = [one for one in about.get_all("Classifier") or () if one.startswith("License")]
    text = (about.get("License") or "").strip().partition("\n")[0]
    return " ".join([about.get("License-Expression") or "", text, *kinds]).strip()


def test_python_dependencies():
    found = {name: licence_of(name) for name in requirements()}
    assert len(found) > 20
    wrong = {
        name: text for name, text in found.items()
        if not ALLOWED.search(text) or FORBIDDEN.search(text)
    }  # fmt: skip
    assert wrong == {}


def declared():
    return set(json.loads((FRONT_END / "package.json").read_text())["dependencies"])


def test_dependencies_of_the_front_end():
    modules = FRONT_END / "node_modules"
    if not modules.exists():
        pytest.skip("the front end's packages are not installed here: cd labextension && jlpm")
    found = {
        name: json.loads((modules / name / "package.json").read_text())["license"]
        for name in declared()
    }
    wrong = {
        name: text for name, text in found.items()
        if not ALLOWED.search(text) or FORBIDDEN.search(text)
    }  # fmt: skip
    assert wrong == {}


def test_imports_of_the_front_end_are_declared():
    """The packages that its sources import are those in package.json, which has no others."""
    sources = [*(FRONT_END / "src").rglob("*.ts"), *(FRONT_END / "src").rglob("*.tsx")]
    name = r"'((?:@[\w-]+/)?[\w-]+)'"
    pattern = re.compile(
        rf"(?:\bfrom {name};$)|(?:^import {name};$)|(?:\bimport\({name}\))", re.MULTILINE
    )
    styles = re.compile(r"@import[^;]*['\"]~?((?:@[\w-]+/)?[\w-]+)/")
    texts = [path.read_text() for path in sources]
    imported = {one for text in texts for found in pattern.findall(text) for one in found if one}
    for path in (FRONT_END / "style").glob("*.css"):
        imported |= set(styles.findall(path.read_text()))
    folders = {path.name for path in (FRONT_END / "src").iterdir() if path.is_dir()}
    assert imported - folders == declared()
