/** The state of the page, and its display. `head` is -1 for the mean of all heads. */
const state = { ...findStrongestHead(), query: data.start, turn: 0 };

/** Returns the head whose removal has the largest effect, so that the first map is worth a look. */
function findStrongestHead() {
  let strongest = { layer: data.layers.length - 1, head: -1 };
  let largest = 0;
  data.answers.effects.forEach((row, layer) => row.forEach((effect, head) => {
    if (Math.abs(effect) <= largest) return;
    largest = Math.abs(effect);
    strongest = { layer, head };
  }));
  return strongest;
}

async function show(focus = false) {
  state.turn += 1;
  const { turn, layer, query } = state;
  markQuery(query, focus);
  const weights = await unpack(layer);
  if (turn !== state.turn) return; // a later call shows its own layer
  const rows = Array.from({ length: weights.heads }, (_, head) => getRow(weights, head, query));
  const row = state.head < 0 ? averageRows(rows) : rows[state.head];
  const patches = getPatches(row);
  const scale = getById("scale").value;
  const layerMaximum = Math.max(...rows.map((values) => Math.max(...getPatches(values))));
  const getTop = (values) => ({ map: Math.max(...values), layer: layerMaximum, robust: percentile(values, 0.98) })[scale];
  showSettings();
  paintMap(row, getTop(patches), getById("strength").value / 100);
  paintBar(getTop(patches));
  showBarNote(patches, getTop(patches), scale);
  showSentence(row, query);
  showMasses(row);
  showHeads(rows, state.head, getTop, (head) => choose(state.layer, head));
  showAnswers(layer, state.head);
  markEffect(layer, state.head);
  if (getById("numbers").open) showNumbers(row, getText("numbersCaption", describeState()));
  getById("attention").dataset.shown = [layer, state.head, query].join(" ");
}

/** Returns the values that captions are filled with. */
function describeState() {
  return {
    head: state.head < 0 ? getText("headMeanOf") : nameHead(state.head),
    layer: data.layers[state.layer].place,
    query: nameToken(state.query),
  };
}

function showBarNote(patches, top, scale) {
  const clipped = patches.filter((weight) => weight > top).length;
  const values = { ...describeState(), count: clipped, largest: formatPercent(Math.max(...patches)) };
  getById("bar-note").textContent = getText(scale === "robust" ? "barNoteRobust" : "barNote", values);
}

function showSettings() {
  const { place, name, heads } = data.layers[state.layer];
  getById("layer").value = state.layer;
  getById("layer").setAttribute("aria-valuetext", getText("layerName", { place, name }));
  getById("layer-name").textContent = getText("layerName", { place, name });
  getById("strength-value").textContent = getText("percent", { value: getById("strength").value });
  if (getById("head").length !== heads + 1) {
    const options = Array.from({ length: heads + 1 }, (_, i) => createElement("option", { value: i - 1 }, nameHead(i - 1)));
    getById("head").replaceChildren(...options);
  }
  getById("head").value = state.head;
}

function chooseQuery(query, focus) {
  state.query = query;
  return show(focus);
}

function choose(layer, head) {
  state.layer = layer;
  state.head = Math.min(head, data.layers[layer].heads - 1);
  return show();
}

function connectControls() {
  getById("layer").max = data.layers.length - 1;
  getById("layer").disabled = data.layers.length === 1;
  getById("layer").addEventListener("input", () => choose(Number(getById("layer").value), state.head));
  getById("head").addEventListener("change", () => choose(state.layer, Number(getById("head").value)));
  for (const [value, name] of [["map", "scaleMap"], ["layer", "scaleLayer"], ["robust", "scaleRobust"]]) {
    getById("scale").append(createElement("option", { value }, getText(name)));
  }
  getById("scale").addEventListener("change", () => show());
  getById("strength").addEventListener("input", () => show());
  getById("numbers").addEventListener("toggle", () => show());
}

function showAbout() {
  const [rows, columns] = data.grid;
  const { width, height } = data.picture;
  getById("title").textContent = getText("title", { model: data.model });
  getById("subtitle").textContent = getText("subtitle", { photo: data.photo, width, height, rows, columns,
    patchHeight: data.patch[0], patchWidth: data.patch[1] });
  const notes = [...data.notes, getText("aboutWeights"), getText("aboutRemoval")];
  getById("about").replaceChildren(...notes.map((note) => createElement("li", {}, note)));
}

function showFailure(error) {
  getById("failure").hidden = false;
  getById("failure").textContent = getText("failure", { reason: error.message });
}

function start() {
  fillTexts();
  showAbout();
  buildPhoto();
  buildGrid(chooseQuery);
  buildPrefix(chooseQuery);
  buildEffects(choose);
  connectControls();
  const showStatistics = buildStatistics();
  connectTabs(document.querySelector('[role="tablist"]'), (button) => {
    if (button.id === "tab-statistics") showStatistics();
  });
  return show();
}

Promise.resolve().then(start).catch(showFailure);
