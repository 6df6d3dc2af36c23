// Highlights encodings in the charts and copies the command; the page is complete without it.
(() => {
  const bar = document.getElementById("chips");
  const series = document.querySelectorAll(".series");
  const chips = bar ? [...bar.querySelectorAll("button")] : [];
  if (chips.length > 1) {
    bar.hidden = false;
    const show = () => {
      const picked = new Set(chips.filter((c) => c.getAttribute("aria-pressed") === "true").map((c) => c.dataset.s));
      series.forEach((s) => s.classList.toggle("dim", picked.size > 0 && !picked.has(s.dataset.s)));
      document.querySelectorAll("tr[data-s]").forEach((r) => r.classList.toggle("picked", picked.has(r.dataset.s)));
    };
    const flip = (key) => {
      chips.filter((c) => c.dataset.s === key).forEach((c) =>
        c.setAttribute("aria-pressed", c.getAttribute("aria-pressed") !== "true"));
      show();
    };
    chips.forEach((c) => c.addEventListener("click", () => flip(c.dataset.s)));
    series.forEach((s) => s.addEventListener("click", () => flip(s.dataset.s)));
  }
  const copy = document.getElementById("copy");
  if (copy && navigator.clipboard) {
    copy.hidden = false;
    copy.addEventListener("click", () =>
      navigator.clipboard.writeText(document.getElementById("command").textContent).then(
        () => { copy.textContent = copy.dataset.copied; },
        () => { copy.textContent = copy.dataset.failed; }));
  }
})();
