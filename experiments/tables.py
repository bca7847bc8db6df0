"""The manuscript's tables and figures again, paper beside ours, from the stored results of a comparison.

python experiments/tables.py                           # results/comparison/
python experiments/tables.py --name published          # a comparison made with --name published

Writes results/<name>/tables/ (Markdown, LaTeX and CSV per table, tables.md, tables.tex) and results/<name>/figures/.
Nothing is computed anew: a cell that was not run says so, with the command that makes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from experiments.engine.command import one_line_errors
from experiments.engine.figures import draw_all
from experiments.engine.stored import load_ablations, load_paper, load_stored
from experiments.engine.tables import SideBySide, side_by_side
from experiments.engine.typeset import csv, latex, latex_document, markdown
from features.files import write_text

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors
def tables(
    name: Annotated[str, typer.Option(help="Name of the comparison, as given to compare.py.")] = "comparison",
    results: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
) -> None:
    """Write the tables and figures of a stored comparison beside the manuscript's."""
    console = Console(soft_wrap=True)
    stored = load_stored(results, name)
    paper, ablations = load_paper(), load_ablations(results, stored)
    made = side_by_side(stored, paper, ablations)
    write_tables(made, stored.folder / "tables")
    reported = paper["bench"]["overall_mutation_score_percent"]
    drawn, left_out = draw_all(stored, ablations, reported, stored.folder / "figures")
    console.print(f"{len(made)} tables in {stored.folder / 'tables'}, {len(drawn)} figures beside them")
    for table in made:
        if table.commands:
            cells = int((table.cells["missing"] != "").sum())
            console.print(f"  Table {table.number}: {cells} cells not run; {'; '.join(table.commands)}")
    for sentence in left_out:
        console.print(f"  {sentence}")


def write_tables(made: list[SideBySide], folder: Path) -> None:
    """One file per table and kind, and all of them together as tables.md and tables.tex."""
    for table in made:
        write_text(folder / f"table{table.number}.md", markdown(table))
        write_text(folder / f"table{table.number}.tex", latex(table))
        write_text(folder / f"table{table.number}.csv", csv(table))
    write_text(folder / "tables.md", "# Paper beside ours\n\n" + "\n".join(map(markdown, made)))
    write_text(folder / "tables.tex", latex_document(made))


if __name__ == "__main__":
    app()
