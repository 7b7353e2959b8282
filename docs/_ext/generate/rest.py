"""The REST API, from the OpenAPI file that the server is tested against."""

from pathlib import Path
from typing import Any

import yaml

import workbench
from generate.tables import code, prose, table

FILE = Path(workbench.__file__).parent / "server" / "rest-api.yml"
_METHODS = ("get", "post", "put", "delete")


def markdown() -> str:
    """Return the routes, and the schemas of what they send."""
    api = load()
    base = api["servers"][0]["url"]
    sections = [_text(api["info"]), "## Authentication", _authentication(api), "## Routes"]
    for path, methods in api["paths"].items():
        for method in _METHODS:
            if method in methods:
                sections += [f"### {method.upper()} `{base}{path}`", _route(methods[method], api)]
    sections.append("## Schemas")
    for name, schema in api["components"]["schemas"].items():
        sections += [f"({_anchor(name)})=\n### {name}", _schema(schema)]
    return "\n\n".join(sections)


def load() -> dict[str, Any]:
    """Return the content of the OpenAPI file."""
    content: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))
    return content


def _text(part: dict[str, Any]) -> str:
    """Return a summary and a description: Markdown by OpenAPI's definition."""
    texts = [f"{part['summary']}." if "summary" in part else "", part.get("description", "")]
    return "\n\n".join(prose(text.replace("\n", "\n\n")) for text in texts if text)


def _authentication(api: dict[str, Any]) -> str:
    schemes = api["components"]["securitySchemes"].values()
    rows = [(code(one["name"]), one["in"], one.get("description", "")) for one in schemes]
    return "One of:\n\n" + table(("name", "in", "value"), rows)


def _route(route: dict[str, Any], api: dict[str, Any]) -> str:
    parts = [_text(route)]
    if route.get("parameters"):
        rows = [
            (code(one["name"]), one["in"], _type(one["schema"]), one.get("description", ""))
            for one in route["parameters"]
        ]
        parts.append(table(("parameter", "in", "type", "meaning"), rows))
    if "requestBody" in route:
        body = route["requestBody"]
        parts.append(f"Body: {body.get('description', '')}; {_content(body)}.")
    responses = [(status, _resolved(one, api)) for status, one in route["responses"].items()]
    rows = [(status, one["description"], _content(one)) for status, one in responses]
    parts.append(table(("status", "meaning", "content"), rows))
    return "\n\n".join(parts)


def _resolved(response: dict[str, Any], api: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in response:
        found: dict[str, Any] = api["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
        return found
    return response


def _content(part: dict[str, Any]) -> str:
    """Return the media types, and the schema of each."""
    kinds = part.get("content", {}).items()
    return ", ".join(f"`{kind}` ({_type(content['schema'])})" for kind, content in kinds)


def _schema(schema: dict[str, Any]) -> str:
    """Return a table of the fields of an object, or the alternatives in words."""
    about = schema.get("description", "")
    if "properties" not in schema:
        return f"{about}\n\n{_type(schema)}".strip()
    required = schema.get("required", [])
    rows = [
        (
            code(name),
            _type(field) + ("" if name in required else ", optional"),
            field.get("description", ""),
        )
        for name, field in schema["properties"].items()
    ]
    return f"{about}\n\n{table(('field', 'type', 'meaning'), rows)}".strip()


def _type(schema: dict[str, Any]) -> str:
    """Return a type in words, with links to named schemas."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{_anchor(name)})"
    for word in ("oneOf", "anyOf", "allOf"):
        if word in schema:
            return " or ".join(map(_type, schema[word]))
    if "enum" in schema:
        return " or ".join(code(str(value)) for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        kind = f"array of {_type(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        kind = f"object of {_type(schema['additionalProperties'])} by name"
    if kind == "object" and "properties" in schema:
        names = schema["properties"].items()
        kind = f"object with {', '.join(f'`{name}` ({_type(one)})' for name, one in names)}"
    return f"{kind} or null" if schema.get("nullable") else kind


def _anchor(name: str) -> str:
    return f"schema-{name.lower()}"
