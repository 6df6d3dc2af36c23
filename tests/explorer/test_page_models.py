"""Models in the page: the shelf, files that are dropped, and the bench of extensions."""

import json

import pytest

from explorer_client import CONFIG

pytestmark = pytest.mark.slow  # test_page.py has the flows of the default run, in one session of the browser


def safetensors(header):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def test_the_shelf_is_walked_by_arrows(tab):
    tab.open("view=model&model=llama-2-7b")
    tab.page.focus('[data-model="llama-2-7b"]')
    tab.after(lambda: tab.page.keyboard.press("ArrowDown"))
    assert tab.page.evaluate("document.activeElement.getAttribute('aria-checked')") == "true"
    assert tab.page.locator("h1").inner_text() != "llama-2-7b"
    tab.assert_calm()


def test_a_wrong_config_says_what_is_wrong(tab):
    tab.open("view=model")
    for text in (b'{"model_type": "llama", "hidden_size": "wide"}', b"{not json", b""):
        tab.give(("config.json", text))
        tab.page.wait_for_selector(".said.error")
        [said] = tab.said
        assert len(said) > 20
        assert "Error" not in said  # a sentence, and no class of Python
        tab.page.evaluate("document.querySelector('.said.error').remove()")
        tab.page.reload()
        tab.page.wait_for_selector("#stage[data-drawn]:not([aria-busy])")
    assert tab.strangers == []


def test_a_file_that_is_no_model_is_not_sent(tab):
    tab.open("view=model")
    sent = []
    tab.page.on("request", lambda request: sent.append(request.method))
    for name, data, words in (
        ("notes.txt", b"hello", "neither"),
        ("cut.safetensors", (1000).to_bytes(8, "little") + b"{}", "truncated"),
        ("huge.safetensors", (1 << 40).to_bytes(8, "little") + b"{}", "1 MiB"),
    ):
        tab.give((name, data))
        tab.until(f"document.querySelector('.drop .said').textContent.includes('{words}')")
    assert "POST" not in sent
    tab.assert_calm()


def test_of_a_checkpoint_the_header_alone_is_sent(tab):
    tab.open("view=model")
    header = {
        "model.layers.0.self_attn.q_proj.weight": {"dtype": "F32", "shape": [512, 512], "data_offsets": [0, 1048576]}
    }
    head = safetensors(header)
    bodies = []
    tab.page.on(
        "request", lambda request: bodies.append(request.post_data_buffer) if request.method == "POST" else None
    )
    config = json.dumps(CONFIG).encode()
    tab.after(lambda: tab.give(("model.safetensors", head + bytes(1048576)), ("config.json", config)))
    assert bodies == [head + config]
    assert "40,000" in tab.page.locator(".facts").inner_text()
    tab.assert_calm()


def test_a_dropped_file_is_read(tab):
    tab.open("view=model")
    drop = """(text) => { const files = new DataTransfer();
        files.items.add(new File([text], 'config.json', { type: 'application/json' }));
        const drop = new DragEvent('drop', { dataTransfer: files, bubbles: true });
        document.querySelector('.drop').dispatchEvent(drop); }"""
    tab.after(lambda: tab.page.evaluate(drop, json.dumps(CONFIG)))
    assert "40,000" in tab.page.locator(".facts").inner_text()
    tab.assert_calm()


def test_attention_without_a_study_says_what_to_start(tab):
    tab.open("view=attention")
    assert "study" in tab.page.locator("#stage .why, #stage .error").first.inner_text().lower()
    assert tab.strangers == []
