"""The explorer: a web page that shows what `posenc.measure` computes.

`posenc explore` starts a small server on this machine. The page answers before torch is imported: encodings and views
load in a second thread.

The server answers in English. The page translates the answers by the table `posenc/zh/explorer.json`, so that it
switches its language without a request. It recognises a text by its template, the argument of `posenc.languages.tr`,
which names the format of every value: {name:s} for text, or a format of numbers as in {length:,}.
"""
