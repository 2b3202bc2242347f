/** The model's output with all heads and without the chosen one, and the effect of removing each head. */

const TOP = 5;
// Change of a probability, or cosine distance: below it the colours stay pale, as small changes matter little.
const FULL_COLOUR = 0.01;
const DECREASE = [224, 122, 106];
const INCREASE = [103, 169, 207];

function formatPoints(change) {
  return getText("points", { change: formatSigned(100 * change, countDigits() + 1) });
}

function findLargestEffect() {
  return Math.max(...data.answers.effects.flat().map(Math.abs));
}

/** Returns the decimals of effects, in points or thousandths, so that the largest is not 0; Python keeps 6 of a share. */
function countDigits() {
  const largest = findLargestEffect() * (data.answers.kind === "classes" ? 100 : 1000);
  return largest > 0 ? Math.min(Math.max(1 - Math.floor(Math.log10(largest)), 1), 3) : 1;
}

/** Formats a number with its sign; the minus is as wide as the plus. */
function formatSigned(value, digits) {
  const text = Math.abs(value).toFixed(digits);
  return Number(text) === 0 ? text : `${value < 0 ? "−" : "+"}${text}`;
}

function showAnswers(layer, head) {
  const { answers } = data;
  getById("answers-title").textContent = getText(answers.kind === "classes" ? "answersTitle" : "answersEmbeddingTitle");
  const parts = answers.kind === "classes" ? [createClassTable(layer, head)] : [createNote("embeddingOnly", { width: answers.width })];
  if (answers.multilabel) parts.push(createNote("multilabel"));
  parts.push(head >= 0 ? createVerdict(layer, head) : createNote("chooseHead"));
  getById("answers").replaceChildren(...parts);
}

function createNote(name, values = {}) {
  return createElement("p", { class: "soft" }, getText(name, values));
}

/** Ranks classes by logit: probabilities near 0 or 1 are equal in the digits that are kept. */
function rankClasses(logits) {
  return logits.map((_, index) => index).sort((a, b) => logits[b] - logits[a] || a - b);
}

/** The classes with the highest probability, and the first class without the head. */
function createClassTable(layer, head) {
  const { now, without } = data.answers;
  const then = head < 0 ? null : {
    probabilities: without[layer].probabilities[head],
    logits: without[layer].logits[head],
  };
  const classes = rankClasses(now.logits).slice(0, TOP);
  const first = then && rankClasses(then.logits)[0];
  if (then && !classes.includes(first)) classes.push(first);
  const titles = then ? ["class", "probability", "without", "change", "logitChange"] : ["class", "probability"];
  const caption = then ? getText("caption", { head: nameHead(head), layer: data.layers[layer].place }) : getText("captionPlain");
  const heads = titles.map((name, column) => createElement("th", { scope: "col", class: column ? "number" : "name" }, getText(name)));
  return createElement("table", { class: "answers" }, createElement("caption", {}, caption), createElement("tr", {}, ...heads),
    ...classes.map((index) => createClassRow(index, now, then)));
}

function createClassRow(index, now, then) {
  const name = data.answers.classes[index];
  const bar = createElement("span");
  bar.style.width = `${100 * now.probabilities[index]}%`;
  const track = createElement("span", { class: "track", "aria-hidden": "true" }, bar);
  const cells = [
    createElement("th", { scope: "row" }, createElement("span", { class: "class-name", title: name }, name), track),
    createCell("probability", now.probabilities[index], formatPercent),
  ];
  if (then) {
    const change = then.probabilities[index] - now.probabilities[index];
    const logit = then.logits[index] - now.logits[index];
    cells.push(
      createCell("without", then.probabilities[index], formatPercent),
      createCell("change", change, (value) => formatSigned(100 * value, countDigits())),
      createCell("logit", logit, (value) => formatSigned(value, 2)),
    );
  }
  return createElement("tr", { "data-class": index }, ...cells);
}

function createCell(kind, value, format) {
  return createElement("td", { class: "number", "data-kind": kind, "data-value": value }, format(value));
}

function createVerdict(layer, head) {
  const { answers } = data;
  const sizes = answers.effects.flat().map(Math.abs);
  const effect = answers.effects[layer][head];
  const mean = sizes.reduce((sum, size) => sum + size, 0) / sizes.length;
  const rank = 1 + sizes.filter((size) => size > Math.abs(effect)).length;
  const place = data.layers[layer].place;
  const values = { head: nameHead(head), layer: place, rank, count: sizes.length };
  const attributes = { class: "verdict", "data-effect": effect, "data-mean": mean, "data-rank": rank };
  if (answers.kind === "embedding") {
    return createElement("p", attributes, getText("verdictEmbedding", { ...values, change: effect.toFixed(countDigits() + 3), mean: mean.toFixed(countDigits() + 3) }));
  }
  const now = rankClasses(answers.now.logits)[0];
  const then = rankClasses(answers.without[layer].logits[head])[0];
  const sentences = [getText("verdict", { ...values, class: answers.classes[now], change: formatPoints(effect),
    mean: getText("points", { change: (100 * mean).toFixed(countDigits() + 1) }) })];
  if (then !== now) sentences.push(getText("verdictFlips", { other: answers.classes[then] }));
  return createElement("p", attributes, sentences.join(getText("space")));
}

function buildEffects(choose) {
  const { answers } = data;
  const scale = answers.kind === "classes" ? 100 : 1000;
  getById("effects-title").textContent = getText("effectsTitle");
  const largest = Math.max(findLargestEffect(), FULL_COLOUR);
  const full = formatNumber(scale * largest);
  getById("effects-hint").textContent = answers.kind === "classes"
    ? getText("effectsHint", { class: answers.classes[rankClasses(answers.now.logits)[0]], full })
    : getText("effectsHintEmbedding", { full });
  const columns = Math.max(...answers.effects.map((row) => row.length));
  const heads = Array.from({ length: columns }, (_, head) => createElement("th", { scope: "col" }, getText("headName", { head })));
  const table = createElement("table", {}, createElement("tr", {}, createElement("td"), ...heads));
  answers.effects.forEach((row, layer) => {
    const place = data.layers[layer].place;
    const cells = row.map((effect, head) => {
      const button = createElement("button", { type: "button", "data-layer": layer, "data-head": head, "data-effect": effect },
        answers.kind === "classes" ? formatSigned(scale * effect, countDigits()) : (scale * effect).toFixed(countDigits()));
      const change = answers.kind === "classes" ? formatPoints(effect) : effect.toFixed(countDigits() + 3);
      button.setAttribute("aria-label", getText("effectsCell", { layer: place, head, change }));
      const colour = tint(answers.kind === "classes" && effect < 0 ? DECREASE : INCREASE, Math.abs(effect) / largest);
      Object.assign(button.style, { background: formatRgb(colour), color: chooseInk(colour) });
      button.addEventListener("click", () => choose(layer, head));
      return createElement("td", {}, button);
    });
    table.append(createElement("tr", {}, createElement("th", { scope: "row" }, getText("layerNumber", { layer: place })), ...cells));
  });
  getById("effects").replaceChildren(table);
}

/** Mixes the colour with near white. */
function tint(colour, share) {
  return colour.map((channel) => Math.round(244 + (channel - 244) * share));
}

/** Returns black or white, whichever has more contrast on the colour (WCAG 2.2's relative luminance). */
function chooseInk(colour) {
  const [red, green, blue] = colour.map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

function markEffect(layer, head) {
  for (const button of getById("effects").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", Number(button.dataset.layer) === layer && Number(button.dataset.head) === head);
  }
}
