/* How many numbers a Vision Transformer learns, by the rule of thumb and to the last one. */

lessons.counter = (root) => {
  const sizes = { tiny: [192, 12, 3], small: [384, 12, 6], base: [768, 12, 12], large: [1024, 24, 16] };
  const whole = (number) => number.toLocaleString(document.documentElement.lang);
  const options = { step: 1, show: whole };
  const depth = slider("counter.depth", { ...options, min: 1, max: 48, value: 12 }, show);
  const dim = slider("counter.dim", { ...options, min: 12, max: 1536, step: 4, value: 192 }, show);
  const heads = slider("counter.heads", { ...options, min: 1, max: 24, value: 3 }, show);
  const patch = slider("counter.patch", { ...options, min: 2, max: 32, value: 16 }, snap);
  const image = slider("counter.image", { ...options, min: 16, max: 512, step: 16, value: 224 }, show);
  const classes = slider("counter.classes", { ...options, min: 1, max: 2000, value: 1000 }, show);
  const exact = element("output", { id: "counter.exact", class: "large number" });
  const estimate = element("output", { id: "counter.estimate", class: "large number", "aria-live": "off" });
  const part = element("p", { id: "counter.part" });
  const headed = element("p", { id: "counter.headed", "aria-live": "polite" });
  const table = element("div", {});

  const presets = element("div", { class: "row" }, ...Object.entries(sizes).map(([name, [width, layers, count]]) => {
    const button = element("button", { type: "button", id: `counter.${name}` }, say(`counter.${name}`));
    button.addEventListener("click", () => {
      Object.assign(image.input, { min: 16, max: 512, step: 16 });
      for (const [one, value] of [[dim, width], [depth, layers], [heads, count], [patch, 16], [image, 224], [classes, 1000]]) move(one, value);
      show();
    });
    return button;
  }));

  /** An image is cut into whole patches, so its side moves in steps of them. */
  function snap() {
    const side = Math.max(1, Math.round(image.value / patch.value)) * patch.value;
    Object.assign(image.input, { min: patch.value, step: patch.value, max: Math.floor(512 / patch.value) * patch.value });
    move(image, side);
    show();
  }

  function show() {
    const sizesNow = { depth: depth.value, dim: dim.value, patch: patch.value, image: image.value, classes: classes.value };
    const { parts, exact: all, rows, estimate: about } = counted(sizesNow);
    for (const [output, number] of [[exact, all], [estimate, about]]) {
      output.textContent = whole(number);
      output.dataset.value = number;
    }
    const off = percent(Math.abs(about - all) / all);
    part.textContent = say("counter.off", { off, rows: whole(rows), patch: 3 * sizesNow.patch ** 2, tokens: whole((sizesNow.image / sizesNow.patch) ** 2 + 1), classes: whole(sizesNow.classes) });
    const each = dim.value / heads.value;
    const told = Number.isInteger(each)
      ? say("counter.even", { heads: heads.value, each, dim: whole(dim.value) })
      : say("counter.uneven", { heads: heads.value, dim: whole(dim.value) });
    if (headed.textContent !== told) headed.textContent = told;
    table.replaceChildren(tableOf([say("counter.what"), say("counter.formula"), say("counter.number"), say("counter.share")],
      Object.entries(parts).map(([name, number]) => [say(`counter.${name}`), say(`counter.${name}.formula`), whole(number), percent(number / all)]),
      say("counter.table")));
  }

  root.append(presets,
    element("div", { class: "pair" },
      element("div", {}, depth.whole, dim.whole, heads.whole, patch.whole, image.whole, classes.whole),
      element("div", {},
        element("div", { class: "totals" },
          element("div", {}, element("label", { for: "counter.exact" }, say("counter.exact.title")), exact),
          element("div", {}, element("label", { for: "counter.estimate" }, say("counter.estimate.title")), estimate)),
        part, headed, element("div", { class: "scroll whole", tabindex: 0, role: "region", "aria-label": say("counter.table") }, table))));
  show();
};
