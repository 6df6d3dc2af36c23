"""The explorer: a page in the browser that shows what `posenc.measure` computes.

`posenc explore` starts a small server on this machine. It answers before torch is imported; encodings and views
load beside it.
"""
