"""How Sphinx builds the site: `make docs`, offline, warnings as errors."""

import sys
from pathlib import Path

import posenc

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project, author, copyright = "posenc", "The posenc authors", "The posenc authors"
version = release = posenc.__version__
language = "en"  # `make docs` builds the pages again with zh_CN, under zh/
locale_dirs = ["locale"]
gettext_compact = False

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "chinese_search",
    "links",
    "mathml",
    "pages",  # writes the gallery's scripts, so it comes first
    "uses",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "_build",
    "locale",
    "_ext",
    "stacks_head.md",
    "README.md",
    "_made/examples",
    "_made/cache",
    "_made/gallery/*.ipynb",
    "_made/gallery/*.py",
]
nb_execution_mode = "cache"  # the chapters of the guide that are notebooks
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_cache_path = "docs/_made/cache"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "deflist", "attrs_inline"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
autodoc_typehints = "signature"
autodoc_default_options = {"inherited-members": False, "undoc-members": False}
autodoc_member_order = "bysource"
autoclass_content = "class"
napoleon_numpy_docstring = False

html_theme = "pydata_sphinx_theme"
html_title = "posenc"
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["posenc.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "navbar_end": ["language", "theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}

sphinx_gallery_conf = {
    "image_scrapers": ("drawings.collect",),
    "parallel": 2,
    "examples_dirs": "_made/examples",
    "gallery_dirs": "_made/gallery",
    "filename_pattern": r"\.py",
    "doc_module": ("posenc",),
    "backreferences_dir": "_made/backreferences",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,  # that page asks the network for its table
    "show_signature": False,
    "remove_config_comments": True,
}
