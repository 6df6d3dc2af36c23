"""Search in Chinese pages by pairs of neighbouring characters: no dictionary, the same rule in Python and browser."""

import re
from itertools import pairwise

from sphinx.application import Sphinx
from sphinx.search.zh import SearchChinese

HAN = re.compile("[\u4e00-\u9fff]+")


class PairSearch(SearchChinese):
    """Index `缓存区` as 缓存 and 存区; Latin words as English does."""

    language_name = (
        "English"  # whose stemmer the page loads; Sphinx 9.0 names one that it does not have, and search stops
    )
    js_splitter_code = """
var splitQuery = (query) => {
  const pairs = (run) => run.length < 2 ? [run] : [...run].slice(1).map((end, i) => run[i] + end);
  const han = query.match(/[\\u4e00-\\u9fff]+/g) || [];
  return [...(query.match(/[a-zA-Z0-9_]+/g) || []), ...han.flatMap(pairs)];
};
"""

    def split(self, input: str) -> list[str]:
        """Return the words of a text."""
        han = [a + b for run in HAN.findall(input) for a, b in pairwise(run)]
        return super().split(input) + han


def setup(app: Sphinx) -> dict[str, bool]:
    """Replace Sphinx's search in Chinese."""
    app.add_search_language(PairSearch)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
