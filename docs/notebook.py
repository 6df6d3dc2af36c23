"""Write examples/position_encoding.ipynb from its script, run: `python docs/notebook.py`, with the extra `docs`."""

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

EXAMPLES = Path(__file__).parents[1] / "examples"


def cells_of(script: str) -> list[nbformat.NotebookNode]:
    """Return the cells of a script: those marked `# %% [markdown]` are strings, the others code."""
    cells = []
    for mark, text in re.findall(r"^# %%([^\n]*)\n(.*?)(?=^# %%|\Z)", script, re.MULTILINE | re.DOTALL):
        if "[markdown]" in mark:
            cells.append(new_markdown_cell(text.strip().strip('"')))
        else:
            cells.append(new_code_cell(text.strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # the same each time, so that a new run changes no line without need
    return cells


if __name__ == "__main__":
    notebook = new_notebook(cells=cells_of((EXAMPLES / "position_encoding.py").read_text()))
    NotebookClient(notebook, kernel_name="python3").execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
    nbformat.write(notebook, EXAMPLES / "position_encoding.ipynb")
