/* Two vectors as arrows, and their dot product. */

lessons.vectors = (root) => {
  const LIMIT = 4;
  const UNIT = 50; // of the drawing, for a length of 1
  const vectors = { a: [3, 1], b: [1, 2.5] };
  const plane = createSvg("svg", { viewBox: "-220 -220 440 440", class: "plane", role: "group", "aria-label": getText("vectors.plane") });
  const readout = createReadout("vectors.read", ["dot", "lengthA", "lengthB", "cosine", "angle", "projection"]);
  const announcement = createAnnouncement("vectors.says");
  const projection = createSvg("line", { class: "projection" });
  const drop = createSvg("line", { class: "drop" });
  const arrows = { a: createArrow("a"), b: createArrow("b") };
  plane.append(createGrid(), drop, projection, ...Object.values(arrows).map(({ group }) => group));
  const presets = createElement("div", { class: "row" }, ...Object.entries({
    same: [[3, 1], [1.5, 0.5]], right: [[3, 1], [-1, 3]], opposite: [[3, 1], [-3, -1]], zero: [[3, 1], [0, 0]],
  }).map(([name, [a, b]]) => {
    const button = createElement("button", { type: "button", id: `vectors.${name}` }, getText(`vectors.${name}`));
    button.addEventListener("click", () => {
      Object.assign(vectors, { a: [...a], b: [...b] });
      show();
    });
    return button;
  }));

  function createGrid() {
    const lines = [];
    for (let value = -LIMIT; value <= LIMIT; value += 1) {
      const kind = value === 0 ? "axis" : "rule";
      lines.push(createSvg("line", { class: kind, x1: value * UNIT, x2: value * UNIT, y1: -LIMIT * UNIT, y2: LIMIT * UNIT }));
      lines.push(createSvg("line", { class: kind, y1: value * UNIT, y2: value * UNIT, x1: -LIMIT * UNIT, x2: LIMIT * UNIT }));
    }
    return createSvg("g", { "aria-hidden": "true" }, ...lines);
  }

  function createArrow(name) {
    const line = createSvg("line", { class: `shaft ${name}` });
    const head = createSvg("polygon", { class: `head ${name}`, points: "0,0 -14,-7 -14,7" });
    const letter = createSvg("text", { class: `letter ${name}`, "aria-hidden": "true" }, name);
    const grip = createSvg("circle", {
      id: `vectors.${name}`, class: "grip", r: 26, tabindex: 0, role: "slider",
      "aria-label": getText("vectors.grip", { name }), "aria-valuemin": -LIMIT, "aria-valuemax": LIMIT,
    });
    grip.addEventListener("keydown", (event) => moveByKey(event, name));
    grip.addEventListener("pointerdown", (event) => {
      grip.setPointerCapture(event.pointerId);
      event.preventDefault();
      grip.focus({ preventScroll: true });
    });
    grip.addEventListener("pointermove", (event) => grip.hasPointerCapture(event.pointerId) && moveByPointer(event, name));
    return { group: createSvg("g", {}, line, head, letter, grip), line, head, letter, grip };
  }

  function moveByKey(event, name) {
    const step = event.shiftKey ? 0.1 : 0.5;
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!direction) return;
    event.preventDefault();
    setVector(name, vectors[name].map((value, axis) => value + step * direction[axis]));
  }

  function moveByPointer(event, name) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(plane.getScreenCTM().inverse());
    setVector(name, [point.x / UNIT, -point.y / UNIT]);
  }

  function setVector(name, values) {
    vectors[name] = values.map((value) => Math.round(10 * Math.min(Math.max(value, -LIMIT), LIMIT)) / 10);
    show();
  }

  function show() {
    const { a, b } = vectors;
    for (const name of ["a", "b"]) drawArrow(arrows[name], vectors[name]);
    const product = dot(a, b);
    const foot = a.map((value) => (value * product) / dot(a, a));
    setEnds(projection, [0, 0], Number.isNaN(foot[0]) ? [0, 0] : foot);
    setEnds(drop, b, Number.isNaN(foot[0]) ? b : foot);
    const values = {
      dot: product, lengthA: length(a), lengthB: length(b), cosine: cosine(a, b),
      angle: (Math.acos(Math.min(Math.max(cosine(a, b), -1), 1)) * 180) / Math.PI, projection: product / length(a),
    };
    readout.show(values);
    const meaning = Number.isNaN(values.cosine) ? "none" : product > 1e-9 ? "with" : product < -1e-9 ? "against" : "across";
    announcement.show(getText(`vectors.${meaning}`, { dot: formatNumber(product), sum: `${formatTerm(a[0], b[0])} + ${formatTerm(a[1], b[1])}` }));
  }

  function formatTerm(x, y) {
    return `${x < 0 ? `(${x})` : x} × ${y < 0 ? `(${y})` : y}`;
  }

  function drawArrow({ line, head, letter, grip }, [x, y]) {
    const size = Math.hypot(x, y);
    const [toX, toY] = [x * UNIT, -y * UNIT];
    setEnds(line, [0, 0], size ? [x * (1 - 0.2 / Math.max(size, 0.2)), y * (1 - 0.2 / Math.max(size, 0.2))] : [0, 0]);
    head.setAttribute("transform", `translate(${toX} ${toY}) rotate(${(Math.atan2(-y, x) * 180) / Math.PI})`);
    letter.setAttribute("x", toX + (size ? (x / size) * 16 : 12) - 5);
    letter.setAttribute("y", toY - (size ? (y / size) * 16 : 12) + 6);
    grip.setAttribute("cx", toX);
    grip.setAttribute("cy", toY);
    grip.setAttribute("aria-valuenow", x);
    grip.setAttribute("aria-valuetext", getText("vectors.place", { x, y }));
  }

  function setEnds(line, [x1, y1], [x2, y2]) {
    for (const [name, value] of Object.entries({ x1, x2 })) line.setAttribute(name, value * UNIT);
    for (const [name, value] of Object.entries({ y1, y2 })) line.setAttribute(name, -value * UNIT);
  }

  root.append(createElement("div", { class: "pair" }, createElement("div", { class: "drawn" }, plane),
    createElement("div", {}, presets, readout.node, announcement.node, createElement("p", { class: "soft" }, getText("vectors.keys")))));
  show();
};
