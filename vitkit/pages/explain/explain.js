/** What is asked, and showing the answer everywhere. `head` is -1 for the mean of all. */
const state = { ...foremost(), query: data.start, turn: 0 };

/** The head whose removal changes most: where there is something to see. */
function foremost() {
  let found = { layer: data.layers.length - 1, head: -1 };
  let most = 0;
  data.answers.effects.forEach((row, layer) => row.forEach((effect, head) => {
    if (Math.abs(effect) <= most) return;
    most = Math.abs(effect);
    found = { layer, head };
  }));
  return found;
}

async function show(focus = false) {
  state.turn += 1;
  const { turn, layer, query } = state;
  markQuery(query, focus);
  const found = await unpack(layer);
  if (turn !== state.turn) return;
  const rows = Array.from({ length: found.heads }, (_, head) => rowOf(found, head, query));
  const row = state.head < 0 ? meanOf(rows) : rows[state.head];
  const scale = byId("scale").value;
  const shared = Math.max(...rows.map((one) => Math.max(...patchesOf(one))));
  const topOf = (patches) => ({ map: Math.max(...patches), layer: shared, robust: percentile(patches, 0.98) })[scale];
  showSettings();
  paintMap(row, topOf(patchesOf(row)), byId("strength").value / 100);
  paintBar(topOf(patchesOf(row)));
  showBarNote(patchesOf(row), topOf(patchesOf(row)), scale);
  showSentence(row, query);
  showMasses(row);
  showHeads(rows, state.head, topOf, (head) => choose(state.layer, head));
  showAnswers(layer, state.head);
  markEffect(layer, state.head);
  if (byId("numbers").open) showNumbers(row, say("numbersCaption", told()));
  byId("attention").dataset.shown = [layer, state.head, query].join(" ");
}

/** What captions say of the state. */
function told() {
  return { head: state.head < 0 ? say("headMeanOf") : headName(state.head), layer: data.layers[state.layer].place, query: tokenName(state.query) };
}

function showBarNote(patches, top, scale) {
  const clipped = patches.filter((weight) => weight > top).length;
  const values = { ...told(), count: clipped, largest: percent(Math.max(...patches)) };
  byId("bar-note").textContent = say(scale === "robust" ? "barNoteRobust" : "barNote", values);
}

function showSettings() {
  const { place, name, heads } = data.layers[state.layer];
  byId("layer").value = state.layer;
  byId("layer").setAttribute("aria-valuetext", say("layerName", { place, name }));
  byId("layer-name").textContent = say("layerName", { place, name });
  byId("strength-value").textContent = `${byId("strength").value} %`;
  if (byId("head").length !== heads + 1) {
    const names = Array.from({ length: heads + 1 }, (_, place) => element("option", { value: place - 1 }, headName(place - 1)));
    byId("head").replaceChildren(...names);
  }
  byId("head").value = state.head;
}

function ask(query, focus) {
  state.query = query;
  return show(focus);
}

function choose(layer, head) {
  state.layer = layer;
  state.head = Math.min(head, data.layers[layer].heads - 1);
  return show();
}

function wire() {
  byId("layer").max = data.layers.length - 1;
  byId("layer").disabled = data.layers.length === 1;
  byId("layer").addEventListener("input", () => choose(Number(byId("layer").value), state.head));
  byId("head").addEventListener("change", () => choose(state.layer, Number(byId("head").value)));
  for (const [value, name] of [["map", "scaleMap"], ["layer", "scaleLayer"], ["robust", "scaleRobust"]]) {
    byId("scale").append(element("option", { value }, say(name)));
  }
  byId("scale").addEventListener("change", () => show());
  byId("strength").addEventListener("input", () => show());
  byId("numbers").addEventListener("toggle", () => show());
}

function showAbout() {
  const [rows, columns] = data.grid;
  const { width, height } = data.picture;
  byId("title").textContent = say("title", { model: data.model });
  byId("subtitle").textContent = say("subtitle", { photo: data.photo, width, height, rows, columns,
    patchHeight: data.patch[0], patchWidth: data.patch[1] });
  byId("about").replaceChildren(...[...data.notes, say("aboutWeights"), say("aboutRemoval")].map((one) => element("li", {}, one)));
}

function fail(error) {
  byId("failure").hidden = false;
  byId("failure").textContent = say("failure", { reason: error.message });
}

function start() {
  fillTexts();
  showAbout();
  buildPhoto();
  buildGrid(ask);
  buildPrefix(ask);
  buildEffects(choose);
  wire();
  const showData = buildOverData();
  tabs(document.querySelector('[role="tablist"]'), (button) => {
    if (button.id === "tab-data") showData();
  });
  return show();
}

Promise.resolve().then(start).catch(fail);
