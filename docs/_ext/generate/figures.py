"""The figures of an iteration, from their declarations."""

from generate.tables import code, table
from workbench.schema.figures import COMMUNICATION_FIGURES, ITERATION, PHASE_FIGURES

_GROUPS = {"phases": (ITERATION, *PHASE_FIGURES), "communication": COMMUNICATION_FIGURES}


def markdown(group: str) -> str:
    """Return a table of the figures of a group: ``phases`` or ``communication``."""
    rows = [(code(figure.name), figure.meaning, figure.certainty) for figure in _GROUPS[group]]
    return table(("figure", "definition", "how certain"), rows)
