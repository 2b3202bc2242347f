/* Two arrows, and what their dot product says. */

lessons.vectors = (root) => {
  const LIMIT = 4;
  const UNIT = 50; // of the drawing, for 1
  const vectors = { a: [3, 1], b: [1, 2.5] };
  const plane = drawing("svg", { viewBox: "-220 -220 440 440", class: "plane", role: "group", "aria-label": say("vectors.plane") });
  const readings = readout("vectors.read", ["dot", "lengthA", "lengthB", "cosine", "angle", "projection"]);
  const spoken = announcement("vectors.says");
  const shadow = drawing("line", { class: "shadow" });
  const drop = drawing("line", { class: "drop" });
  const arrows = { a: arrow("a"), b: arrow("b") };
  plane.append(paper(), drop, shadow, ...Object.values(arrows).map(({ group }) => group));
  const presets = element("div", { class: "row" }, ...Object.entries({
    same: [[3, 1], [1.5, 0.5]], right: [[3, 1], [-1, 3]], opposite: [[3, 1], [-3, -1]], zero: [[3, 1], [0, 0]],
  }).map(([name, [a, b]]) => {
    const button = element("button", { type: "button", id: `vectors.${name}` }, say(`vectors.${name}`));
    button.addEventListener("click", () => {
      Object.assign(vectors, { a: [...a], b: [...b] });
      show();
    });
    return button;
  }));

  function paper() {
    const lines = [];
    for (let at = -LIMIT; at <= LIMIT; at += 1) {
      const kind = at === 0 ? "axis" : "rule";
      lines.push(drawing("line", { class: kind, x1: at * UNIT, x2: at * UNIT, y1: -LIMIT * UNIT, y2: LIMIT * UNIT }));
      lines.push(drawing("line", { class: kind, y1: at * UNIT, y2: at * UNIT, x1: -LIMIT * UNIT, x2: LIMIT * UNIT }));
    }
    return drawing("g", { "aria-hidden": "true" }, ...lines);
  }

  function arrow(name) {
    const line = drawing("line", { class: `shaft ${name}` });
    const head = drawing("polygon", { class: `head ${name}`, points: "0,0 -14,-7 -14,7" });
    const letter = drawing("text", { class: `letter ${name}`, "aria-hidden": "true" }, name);
    const grip = drawing("circle", {
      id: `vectors.${name}`, class: "grip", r: 26, tabindex: 0, role: "slider",
      "aria-label": say("vectors.grip", { name }), "aria-valuemin": -LIMIT, "aria-valuemax": LIMIT,
    });
    grip.addEventListener("keydown", (event) => byKey(event, name));
    grip.addEventListener("pointerdown", (event) => {
      grip.setPointerCapture(event.pointerId);
      event.preventDefault();
      grip.focus({ preventScroll: true });
    });
    grip.addEventListener("pointermove", (event) => grip.hasPointerCapture(event.pointerId) && byHand(event, name));
    return { group: drawing("g", {}, line, head, letter, grip), line, head, letter, grip };
  }

  function byKey(event, name) {
    const step = event.shiftKey ? 0.1 : 0.5;
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!way) return;
    event.preventDefault();
    place(name, vectors[name].map((value, axis) => value + step * way[axis]));
  }

  function byHand(event, name) {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(plane.getScreenCTM().inverse());
    place(name, [at.x / UNIT, -at.y / UNIT]);
  }

  function place(name, to) {
    vectors[name] = to.map((value) => Math.round(10 * Math.min(Math.max(value, -LIMIT), LIMIT)) / 10);
    show();
  }

  function show() {
    const { a, b } = vectors;
    for (const name of ["a", "b"]) draw(arrows[name], vectors[name]);
    const product = dot(a, b);
    const along = a.map((value) => (value * product) / dot(a, a));
    stretch(shadow, [0, 0], Number.isNaN(along[0]) ? [0, 0] : along);
    stretch(drop, b, Number.isNaN(along[0]) ? b : along);
    const found = {
      dot: product, lengthA: length(a), lengthB: length(b), cosine: cosine(a, b),
      angle: (Math.acos(Math.min(Math.max(cosine(a, b), -1), 1)) * 180) / Math.PI, projection: product / length(a),
    };
    readings.show(found);
    const meaning = Number.isNaN(found.cosine) ? "none" : product > 1e-9 ? "with" : product < -1e-9 ? "against" : "across";
    spoken.tell(say(`vectors.${meaning}`, { dot: short(product), sum: `${term(a[0], b[0])} + ${term(a[1], b[1])}` }));
  }

  function term(one, other) {
    return `${one < 0 ? `(${one})` : one} × ${other < 0 ? `(${other})` : other}`;
  }

  function draw({ line, head, letter, grip }, [x, y]) {
    const size = Math.hypot(x, y);
    const [toX, toY] = [x * UNIT, -y * UNIT];
    stretch(line, [0, 0], size ? [x * (1 - 0.2 / Math.max(size, 0.2)), y * (1 - 0.2 / Math.max(size, 0.2))] : [0, 0]);
    head.setAttribute("transform", `translate(${toX} ${toY}) rotate(${(Math.atan2(-y, x) * 180) / Math.PI})`);
    letter.setAttribute("x", toX + (size ? (x / size) * 16 : 12) - 5);
    letter.setAttribute("y", toY - (size ? (y / size) * 16 : 12) + 6);
    grip.setAttribute("cx", toX);
    grip.setAttribute("cy", toY);
    grip.setAttribute("aria-valuenow", x);
    grip.setAttribute("aria-valuetext", say("vectors.place", { x, y }));
  }

  function stretch(line, [x1, y1], [x2, y2]) {
    for (const [name, value] of Object.entries({ x1, x2 })) line.setAttribute(name, value * UNIT);
    for (const [name, value] of Object.entries({ y1, y2 })) line.setAttribute(name, -value * UNIT);
  }

  root.append(element("div", { class: "pair" }, element("div", { class: "drawn" }, plane),
    element("div", {}, presets, readings.whole, spoken.whole, element("p", { class: "soft" }, say("vectors.keys")))));
  show();
};
