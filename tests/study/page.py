"""A page as a test reads it."""

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "wbr", "link", "img", "input", "hr"}
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></svg><b>x",
    "'-->{{ 7*7 }}]]>",
]


class Page(HTMLParser):
    """Reads a page: checks that elements nest, and keeps elements and text."""

    def __init__(self, html):
        super().__init__()
        self.stack, self.elements, self.texts = [], [], []
        self.feed(html)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.stack[-1] if self.stack else "", data))

    def all(self, tag):
        return [attrs for found, attrs in self.elements if found == tag]

    def text(self, *tags):
        joined = "".join(data for tag, data in self.texts if (not tags or tag in tags) and tag != "script")
        return re.sub(r"\s+", " ", joined)
