"""Models in the page: the shelf, files that are dropped, and the bench of extensions."""

import json
import re

CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_hidden_layers": 5,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rope_theta": 40000.0,
}


def safetensors(header):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def give(tab, *files):
    """Choose files as a person does: (name, bytes)."""
    chosen = [{"name": name, "mimeType": "application/octet-stream", "buffer": data} for name, data in files]
    tab.page.set_input_files("#model-file", chosen)


def test_the_shelf_is_searched_and_a_model_drawn(tab):
    tab.open("view=model&model=llama-2-7b")
    assert tab.page.locator("h1").inner_text() == "llama-2-7b"
    assert int(re.search(r"\d+", tab.page.locator("#panel [role=status]").first.inner_text()).group()) >= 25
    before = tab.look()
    tab.page.fill("#model-search", "llama-3.1")
    assert tab.page.locator("[data-model]").count() == 1
    after = tab.after(lambda: tab.page.click('[data-model="llama-3.1-8b"]'))
    assert after != before
    assert {"kept", "blended", "divided"} <= set(
        tab.page.eval_on_selector_all(".strip li", "all => all.map((n) => n.dataset.kind)")
    )
    assert "model=llama-3.1-8b" in tab.page.url or tab.page.locator("h1").inner_text() == "llama-3.1-8b"
    tab.assert_calm()


def test_the_shelf_is_walked_by_arrows(tab):
    tab.open("view=model&model=llama-2-7b")
    tab.page.focus('[data-model="llama-2-7b"]')
    tab.after(lambda: tab.page.keyboard.press("ArrowDown"))
    assert tab.page.evaluate("document.activeElement.getAttribute('aria-checked')") == "true"
    assert tab.page.locator("h1").inner_text() != "llama-2-7b"
    tab.assert_calm()


def test_a_config_of_ones_own_is_read(tab):
    tab.open("view=model")
    tab.after(lambda: give(tab, ("config.json", json.dumps(CONFIG).encode())))
    assert tab.said == []
    facts = tab.page.locator(".facts").inner_text()
    assert "40,000" in facts
    assert "4,096" in facts
    assert tab.page.locator('.strip li button[aria-label^="layer"]').count() == 5
    tab.assert_calm()


def test_a_wrong_config_says_what_is_wrong(tab):
    tab.open("view=model")
    for text in (b'{"model_type": "llama", "hidden_size": "wide"}', b"{not json", b""):
        give(tab, ("config.json", text))
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
        ("cut.safetensors", (1000).to_bytes(8, "little") + b"{}", "cut off"),
        ("huge.safetensors", (1 << 40).to_bytes(8, "little") + b"{}", "1 MiB"),
    ):
        give(tab, (name, data))
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
    tab.after(lambda: give(tab, ("model.safetensors", head + bytes(1048576)), ("config.json", config)))
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


def test_the_bench_answers_to_target_and_methods(tab):
    tab.open("view=extension")
    rows = tab.page.locator(".strip.narrow")
    assert rows.count() >= 6
    before = tab.look()
    farther = tab.after(lambda: tab.slide("target", 0.9))
    assert farther != before
    assert tab.after(lambda: tab.slide("beta_slow", 0.6)) != farther
    n = rows.count()
    tab.after(lambda: tab.page.uncheck('.methods input[value="yarn"]'))
    assert rows.count() == n - 1
    assert "yarn" not in tab.page.locator(".strips").inner_text()
    tab.assert_calm()


def test_attention_without_a_study_says_what_to_start(tab):
    tab.open("view=attention")
    assert "study" in tab.page.locator("#stage .why, #stage .error").first.inner_text().lower()
    assert tab.strangers == []
