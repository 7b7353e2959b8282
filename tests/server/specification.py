"""Checks answers against ``rest-api.yml``."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from jsonschema import Draft7Validator

import workbench.server

SPEC = yaml.safe_load(Path(workbench.server.__file__).with_name("rest-api.yml").read_text())


def _nullable(node):
    """OpenAPI 3.0 says `nullable`, where JSON Schema has a type of its own."""
    if isinstance(node, list):
        return [_nullable(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {key: _nullable(value) for key, value in node.items()}
    if plain.pop("nullable", False) is True:
        plain["type"] = [plain["type"], "null"]
    return plain


COMPONENTS = _nullable(SPEC["components"])


def validate(value, name):
    """Raise where `value` is not as the schema of that name has it."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": COMPONENTS}
    Draft7Validator(schema).validate(value)


def described(path, method, status):
    """Return the specification of one answer."""
    told = SPEC["paths"][path][method]["responses"]
    assert str(status) in told, f"{method} {path} answered {status}, which is not described"
    told = told[str(status)]
    if "$ref" in told:
        told = SPEC["components"]["responses"][told["$ref"].rpartition("/")[2]]
    return told


def validate_answer(path, method, status, headers, body):
    """Raise where an answer is not as the specification has it."""
    told = described(path, method, status)
    kind = headers["Content-Type"].partition(";")[0]
    schema = _nullable(told["content"][kind]["schema"])
    Draft7Validator({**schema, "components": COMPONENTS}).validate(json.loads(body))
