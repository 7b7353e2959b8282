"""The list of the tables that programs of the repository have written into docs/proof."""

from pathlib import Path

PROOF = Path(__file__).parents[2] / "proof"


def markdown() -> str:
    """Return a toctree of the tables that there are, or say that there is none."""
    names = sorted(page.stem for page in PROOF.glob("*.md") if page.stem != "index")
    if not names:
        return "No table has been made in this checkout."
    return "\n".join(["```{toctree}", ":maxdepth: 1", "", *names, "```"])
