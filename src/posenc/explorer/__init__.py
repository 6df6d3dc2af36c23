"""The explorer: a web page that shows what `posenc.measure` computes.

`posenc explore` starts a small server on this machine. The page answers before torch is imported: encodings and views
load in a second thread.
"""
