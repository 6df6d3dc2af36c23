"""Show a cell's figure in the gallery: ours know no pyplot, so the gallery's own way of finding figures misses them."""

from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst


def collect(_block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the figure that the last line of a cell returned; return the text that shows it."""
    names = block_vars["example_globals"]
    figure = names.get("___")  # the value of the last line, until a later cell has one
    if not isinstance(figure, Figure) or figure is names.get("_posenc_shown"):
        return ""
    names["_posenc_shown"] = figure
    path = next(block_vars["image_path_iterator"])
    figure.savefig(path, dpi=110)
    return figure_rst([path], gallery_conf["src_dir"])
