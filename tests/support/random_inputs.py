"""Strategies of Hypothesis for what arrives from outside: JSON, damaged files, wire messages."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hostile import TEXTS, places
from hypothesis import settings
from hypothesis import strategies as st

CORPUS = Path(__file__).parents[1] / "properties" / "corpus"
"""Inputs that once failed, a folder for each kind; the tests of that kind read all of them."""


def one_in(count):
    """Settings of a test whose examples take long: it has one for each `count` of the others."""
    return settings(max_examples=max(2, settings.default.max_examples // count))


def corpus(kind):
    """Return the stored inputs of a kind, by name."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / kind).glob("[!.]*"))}


texts = st.one_of(st.sampled_from(TEXTS), st.text(max_size=20))
numbers = st.one_of(
    st.integers(-3, 300),
    st.integers(),
    st.sampled_from((2**31, 2**32, 2**53, 2**63, 2**64, 10**19, 10**400, -(10**400))),
    st.floats(),
    st.sampled_from((1e308, -1e308, 5e-324, -0.0)),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)


@st.composite
def damaged_json(draw, plain, others=json_values):
    """The JSON text of a value in which up to four values are replaced, removed or repeated."""
    plain = copy.deepcopy(plain)
    for _ in range(draw(st.integers(1, 4))):
        found = list(places(plain))
        if not found:
            break
        place, key = found[draw(st.integers(0, len(found) - 1))]
        kind = draw(st.integers(0, 5))
        if kind <= 2:
            place[key] = draw(others)
        elif kind == 3:
            place[key] = copy.deepcopy(found[draw(st.integers(0, len(found) - 1))][0])
        elif isinstance(place, dict):
            del place[key]
        else:
            place.append(copy.deepcopy(place[key]))
    return json.dumps(plain)


@st.composite
def damaged_bytes(draw, data):
    """The bytes cut short, or with some changed, inserted, removed or repeated."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + draw(st.binary(min_size=1, max_size=9)) + data[at:]
        elif kind == 2:
            data = data[:at] + data[at + draw(st.integers(1, 99)) :]
        elif kind == 3:
            data = data[:at] + data[at : at + draw(st.integers(1, 200))] + data[at:]
        else:
            change = draw(st.binary(min_size=1, max_size=4))
            data = data[:at] + change + data[at + len(change) :]
    return data


@functools.cache
def instances(cls):
    """Instances of a dataclass, whose fields have any values of their types."""
    hints = get_type_hints(cls)
    return st.builds(cls, **{one.name: _values(hints[one.name]) for one in dataclasses.fields(cls)})


def _values(hint: Any) -> st.SearchStrategy[Any]:
    origin, given = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return st.one_of(st.none(), _values(given[0]))
    if origin is Literal:
        return st.sampled_from(given)
    if origin in {list, tuple}:
        return st.lists(_values(given[0]), max_size=4).map(origin)
    if origin is dict:
        return st.dictionaries(_values(given[0]), _values(given[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        return instances(hint)
    return {
        int: st.integers(-(2**70), 2**70),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=12),
        bool: st.booleans(),
        bytes: st.binary(max_size=40),
        Any: st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=9)),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner),
            max_leaves=4,
        ),
    }[hint]
