/* Who looks at whom in a sentence: two heads, with or without a causal mask. */

lessons.sentence = (root) => {
  const { words, seeks, offers } = data.sentence;
  const heads = { "sentence.meaning": [seeks, offers], "sentence.neighbour": neighbours(words.length) };
  const head = choice("sentence.heads", Object.keys(heads), show);
  const causal = checkbox("sentence.causal", false, show);
  const list = element("div", { class: "words", role: "toolbar", "aria-label": say("sentence.words") });
  const picture = heatMap("sentence.map", { ends: [0, 1], names: words });
  const shares = bars("sentence.shares");
  const spoken = announcement("sentence.says");
  const query = element("p", { id: "sentence.query", class: "soft number" });
  const table = numbers("sentence.map", () => [say("sentence.from"), ...words], () => weights().map((row, i) => [words[i], ...row]));
  let chosen = data.sentence.first;

  const buttons = words.map((word, place) => {
    const button = element("button", { type: "button", id: `sentence.word${place}`, class: "word" }, word);
    button.addEventListener("click", () => choose(place));
    button.addEventListener("keydown", (event) => {
      const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: words.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(Math.min(Math.max(to, 0), words.length - 1));
      buttons[chosen].focus();
    });
    return button;
  });

  function choose(place) {
    chosen = place;
    show();
  }

  function weights() {
    const [queries, keys] = heads[head.value];
    return attention(queries, keys, causal.input.checked);
  }

  function show() {
    const rows = weights();
    const row = rows[chosen];
    const [queries, keys] = heads[head.value];
    const scores = scoresOf(queries, keys)[chosen];
    buttons.forEach((button, place) => {
      button.setAttribute("aria-pressed", place === chosen);
      button.tabIndex = place === chosen ? 0 : -1;
      button.style.setProperty("--share", `${Math.round(100 * row[place])}%`);
    });
    paint(picture.canvas, rows);
    mark(picture.canvas, chosen);
    shares.show(row.map((share, to) => {
      const hidden = causal.input.checked && to > chosen;
      const note = hidden ? say("sentence.hidden") : say("sentence.note", { score: short(scores[to]), share: percent(share) });
      return { label: words[to], share, off: hidden, note };
    }));
    const best = row.indexOf(Math.max(...row));
    spoken.tell(say("sentence.looks", { word: words[chosen], place: chosen + 1, most: words[best], share: percent(row[best]) }));
    query.textContent = say("sentence.asks", { word: words[chosen], numbers: queries[chosen].map(short).join(", ") });
    table.fill();
  }

  list.append(...buttons);
  root.append(
    element("div", { class: "row" }, head.whole, causal.whole), list, spoken.whole,
    element("div", { class: "pair" }, element("div", {}, shares.whole, query, element("p", { class: "soft" }, say("sentence.hand"))), picture.whole),
    table.whole);
  show();
};

/** Queries that want the place before theirs, and keys that say where they stand: turned as in lesson 4. */
function neighbours(count) {
  const turns = [0.9, 0.35];
  const at = (place, size) => turns.flatMap((turn) => [size * Math.cos(turn * place), size * Math.sin(turn * place)]);
  const places = Array.from({ length: count }, (_, place) => place);
  return [places.map((place) => at(place - 1, 3)), places.map((place) => at(place, 3))];
}
