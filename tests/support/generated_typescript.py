"""TypeScript that is made from declarations in Python: `labextension/src/generated/*.ts`.

After a change of a declaration: ``python tests/support/generated_typescript.py``.
"""

from __future__ import annotations

from pathlib import Path

from workbench.schema.figures import COMMUNICATION_FIGURES, PHASE_FIGURES

FOLDER = Path(__file__).parents[2] / "labextension/src/generated"
_HEAD = """/**
 * {content}
 *
 * Made from `{source}` by `tests/support/generated_typescript.py`: do not edit.
 */
"""


def figures() -> str:
    """Return the labels and colours of the phases and of overlapped communication."""
    shown = [figure for figure in (*PHASE_FIGURES, *COMMUNICATION_FIGURES) if figure.color]
    colors = [f"  {figure.name}: '{figure.color}'" for figure in shown]
    labels = [f"    {figure.name}: trans.__('{figure.label}')" for figure in shown]
    head = _HEAD.format(
        content="The figures that are drawn: their colours and names.",
        source="workbench/schema/figures.py",
    )
    return "\n".join(
        [
            f"{head}",
            "import { ITranslate } from '../common/translate';",
            "",
            "export const COLORS = {",
            ",\n".join(colors),
            "} as const;",
            "",
            "export type DrawnFigure = keyof typeof COLORS;",
            "",
            "/** The figure's name in the user's language. */",
            "export function figureName(figure: DrawnFigure, trans: ITranslate): string {",
            "  const names: Record<DrawnFigure, string> = {",
            ",\n".join(labels),
            "  };",
            "  return names[figure];",
            "}",
            "",
        ]
    )


FILES = {"figures.ts": figures}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, make in FILES.items():
        (FOLDER / name).write_text(make())


if __name__ == "__main__":
    main()
