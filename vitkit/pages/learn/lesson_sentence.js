/* Attention between the words of a sentence: two heads, with or without a causal mask. */

lessons.sentence = (root) => {
  const { words, queries, keys } = data.sentence;
  const heads = { "sentence.meaning": { queries, keys }, "sentence.neighbour": encodeNeighbours(words.length) };
  const head = createChoice("sentence.heads", Object.keys(heads), show);
  const causal = createCheckbox("sentence.causal", false, show);
  const list = createElement("div", { class: "words", role: "toolbar", "aria-label": getText("sentence.words") });
  const map = createHeatMap("sentence.map", { ends: [0, 1], names: words });
  const shares = createBars("sentence.shares");
  const announcement = createAnnouncement("sentence.says");
  const query = createElement("p", { id: "sentence.query", class: "soft number" });
  const getHeads = () => [getText("sentence.from"), ...words];
  const table = createNumberTable("sentence.map", getHeads, () => computeWeights().map((row, i) => [words[i], ...row]));
  let chosen = data.sentence.first;

  const buttons = words.map((word, index) => {
    const button = createElement("button", { type: "button", id: `sentence.word${index}`, class: "word" }, word);
    button.addEventListener("click", () => choose(index));
    button.addEventListener("keydown", (event) => {
      const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: words.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(Math.min(Math.max(to, 0), words.length - 1));
      buttons[chosen].focus();
    });
    return button;
  });

  function choose(index) {
    chosen = index;
    show();
  }

  function computeWeights() {
    const vectors = heads[head.value];
    return computeAttention(vectors.queries, vectors.keys, causal.input.checked);
  }

  function show() {
    const rows = computeWeights();
    const row = rows[chosen];
    const vectors = heads[head.value];
    const scores = computeScores(vectors.queries, vectors.keys)[chosen];
    buttons.forEach((button, index) => {
      button.setAttribute("aria-pressed", index === chosen);
      button.tabIndex = index === chosen ? 0 : -1;
      button.style.setProperty("--share", `${Math.round(100 * row[index])}%`);
    });
    paint(map.canvas, rows);
    markCell(map.canvas, chosen);
    shares.show(row.map((share, index) => {
      const hidden = causal.input.checked && index > chosen;
      const score = getText("sentence.note", { score: formatNumber(scores[index]), share: formatPercent(share) });
      return { label: words[index], share, off: hidden, note: hidden ? getText("sentence.hidden") : score };
    }));
    const best = row.indexOf(Math.max(...row));
    announcement.show(getText("sentence.looks", { word: words[chosen], place: chosen + 1, most: words[best], share: formatPercent(row[best]) }));
    const numbers = vectors.queries[chosen].map(formatNumber).join(", ");
    query.textContent = getText("sentence.asks", { word: words[chosen], numbers });
    table.fill();
  }

  list.append(...buttons);
  const note = createElement("p", { class: "soft" }, getText("sentence.hand"));
  root.append(
    createElement("div", { class: "row" }, head.node, causal.node), list, announcement.node,
    createElement("div", { class: "pair" }, createElement("div", {}, shares.node, query, note), map.node), table.node);
  show();
};

/** Returns queries that match the key of the position before; both are rotated as in lesson 4. */
function encodeNeighbours(count) {
  const turns = [0.9, 0.35];
  const encode = (position) => turns.flatMap((turn) => [3 * Math.cos(turn * position), 3 * Math.sin(turn * position)]);
  const positions = Array.from({ length: count }, (_, position) => position);
  return { queries: positions.map((position) => encode(position - 1)), keys: positions.map(encode) };
}
