/** The answer as it is and without the chosen head, and what every head does to it. */

const SHOWN = 5;
// Of a probability, or of 1 minus a cosine: smaller changes matter little, and their colours stay pale.
const FULL = 0.01;
const LESS = [224, 122, 106];
const MORE = [103, 169, 207];

function points(change) {
  return say("points", { change: signed(100 * change, digits() + 1) });
}

function largestEffect() {
  return Math.max(...data.answers.effects.flat().map(Math.abs));
}

/** So many that the largest effect is no row of zeros, of points or of thousandths: Python keeps 6 of a share. */
function digits() {
  const largest = largestEffect() * (data.answers.kind === "classes" ? 100 : 1000);
  return largest > 0 ? Math.min(Math.max(1 - Math.floor(Math.log10(largest)), 1), 3) : 1;
}

/** With a minus that is as wide as the plus. */
function signed(value, digits) {
  const text = Math.abs(value).toFixed(digits);
  return Number(text) === 0 ? text : `${value < 0 ? "−" : "+"}${text}`;
}

function showAnswers(layer, head) {
  const { answers } = data;
  const single = head >= 0;
  byId("answers-title").textContent = say(answers.kind === "classes" ? "answersTitle" : "answersVectorTitle");
  const parts = answers.kind === "classes" ? [classTable(layer, head)] : [note("vectorOnly", { width: answers.width })];
  if (answers.several) parts.push(note("several"));
  parts.push(single ? verdict(layer, head) : note("chooseHead"));
  byId("answers").replaceChildren(...parts);
}

function note(name, values = {}) {
  return element("p", { class: "soft" }, say(name, values));
}

/** By logits: of several chances near 0, or near 1, the digits that are kept are the same. */
function order(logits) {
  return logits.map((_, place) => place).sort((a, b) => logits[b] - logits[a] || a - b);
}

/** The likeliest classes now, and those that are among the likeliest without the head. */
function classTable(layer, head) {
  const { now, without } = data.answers;
  const then = head < 0 ? null : {
    chances: without[layer].chances[head],
    logits: without[layer].logits[head],
  };
  const places = order(now.logits).slice(0, SHOWN);
  const first = then && order(then.logits)[0];
  if (then && !places.includes(first)) places.push(first);
  const titles = then ? ["class", "probability", "without", "change", "logitChange"] : ["class", "probability"];
  const caption = then ? say("caption", { head: headName(head), layer: data.layers[layer].place }) : say("captionPlain");
  const heads = titles.map((name, place) => element("th", { scope: "col", class: place ? "number" : "name" }, say(name)));
  return element("table", { class: "answers" }, element("caption", {}, caption), element("tr", {}, ...heads),
    ...places.map((place) => classRow(place, now, then)));
}

function classRow(place, now, then) {
  const name = data.answers.classes[place];
  const filled = element("span");
  filled.style.width = `${100 * now.chances[place]}%`;
  const track = element("span", { class: "track", "aria-hidden": "true" }, filled);
  const cells = [
    element("th", { scope: "row" }, element("span", { class: "called", title: name }, name), track),
    numberCell("probability", now.chances[place], percent),
  ];
  if (then) {
    const change = then.chances[place] - now.chances[place];
    const logit = then.logits[place] - now.logits[place];
    cells.push(
      numberCell("without", then.chances[place], percent),
      numberCell("change", change, (value) => signed(100 * value, digits())),
      numberCell("logit", logit, (value) => signed(value, 2)),
    );
  }
  return element("tr", { "data-class": place }, ...cells);
}

function numberCell(kind, value, text) {
  return element("td", { class: "number", "data-kind": kind, "data-value": value }, text(value));
}

function verdict(layer, head) {
  const { answers } = data;
  const sizes = answers.effects.flat().map(Math.abs);
  const own = answers.effects[layer][head];
  const mean = sizes.reduce((sum, size) => sum + size, 0) / sizes.length;
  const rank = 1 + sizes.filter((size) => size > Math.abs(own)).length;
  const place = data.layers[layer].place;
  const values = { head: headName(head), layer: place, rank, count: sizes.length };
  const attributes = { class: "verdict", "data-effect": own, "data-mean": mean, "data-rank": rank };
  if (answers.kind === "vector") {
    return element("p", attributes, say("verdictVector", { ...values, change: own.toFixed(digits() + 3), mean: mean.toFixed(digits() + 3) }));
  }
  const now = order(answers.now.logits)[0];
  const then = order(answers.without[layer].logits[head])[0];
  const told = { ...values, class: answers.classes[now], change: points(own), mean: say("points", { change: (100 * mean).toFixed(digits() + 1) }) };
  const flips = then === now ? "" : ` ${say("verdictFlips", { other: answers.classes[then] })}`;
  return element("p", attributes, say("verdict", told) + flips);
}

function buildEffects(choose) {
  const { answers } = data;
  const scale = answers.kind === "classes" ? 100 : 1000;
  byId("effects-title").textContent = say("effectsTitle");
  const largest = Math.max(largestEffect(), FULL);
  const full = short(scale * largest);
  byId("effects-hint").textContent = answers.kind === "classes"
    ? say("effectsHint", { class: answers.classes[order(answers.now.logits)[0]], full })
    : say("effectsHintVector", { full });
  const most = Math.max(...answers.effects.map((row) => row.length));
  const heads = Array.from({ length: most }, (_, head) => element("th", { scope: "col" }, say("headName", { head })));
  const table = element("table", {}, element("tr", {}, element("td"), ...heads));
  answers.effects.forEach((row, layer) => {
    const place = data.layers[layer].place;
    const cells = row.map((effect, head) => {
      const button = element("button", { type: "button", "data-layer": layer, "data-head": head, "data-effect": effect },
        answers.kind === "classes" ? signed(scale * effect, digits()) : (scale * effect).toFixed(digits()));
      const told = answers.kind === "classes" ? points(effect) : effect.toFixed(digits() + 3);
      button.setAttribute("aria-label", say("effectsCell", { layer: place, head, change: told }));
      const colour = blended(answers.kind === "classes" && effect < 0 ? LESS : MORE, Math.abs(effect) / largest);
      Object.assign(button.style, { background: rgb(colour), color: readable(colour) });
      button.addEventListener("click", () => choose(layer, head));
      return element("td", {}, button);
    });
    table.append(element("tr", {}, element("th", { scope: "row" }, `${say("layer")} ${place}`), ...cells));
  });
  byId("effects").replaceChildren(table);
}

/** From near white to the colour. */
function blended(colour, share) {
  return colour.map((channel) => Math.round(244 + (channel - 244) * share));
}

/** Black or white, whichever is told apart from a ground more easily (WCAG 2.2's relative luminance). */
function readable(colour) {
  const [red, green, blue] = colour.map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

function markEffect(layer, head) {
  for (const button of byId("effects").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", Number(button.dataset.layer) === layer && Number(button.dataset.head) === head);
  }
}
