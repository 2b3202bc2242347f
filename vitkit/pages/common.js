"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

/** The text of a name, with {places} filled. */
function say(name, values = {}) {
  if (!(name in data.texts)) throw new Error(`texts must hold ${name}`);
  return data.texts[name].replace(/\{(\w+)\}/g, (whole, key) => (key in values ? String(values[key]) : whole));
}

/** A new element; attributes are set as such, children are nodes or texts, never HTML. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** The same of SVG. */
function drawing(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

/** Fills each element that carries data-text, and each aria-label that data-label names. */
function fillTexts(root = document) {
  for (const one of root.querySelectorAll("[data-text]")) one.textContent = say(one.dataset.text);
  for (const one of root.querySelectorAll("[data-label]")) one.setAttribute("aria-label", say(one.dataset.label));
}

/** Three digits that count, and no exponent where a plain number is short. */
function short(number) {
  if (number === 0) return "0";
  const size = Math.abs(number);
  return size >= 1e5 || size < 1e-4 ? number.toExponential(1) : String(Number(number.toPrecision(3)));
}

function percent(share) {
  const value = 100 * share;
  if (value > 0 && value < 0.005) return "<0.01 %";
  return `${value.toFixed(value === 0 || value >= 99.95 ? 0 : value >= 0.995 ? 1 : 2)} %`;
}

// matplotlib's viridis, 17 of its 256 colours; between them it is linear to within 2/255.
const VIRIDIS = [
  [68, 1, 84], [72, 24, 106], [71, 45, 123], [66, 64, 134], [59, 82, 139], [51, 99, 141], [44, 114, 142],
  [38, 130, 142], [33, 145, 140], [31, 160, 136], [40, 174, 128], [63, 188, 115], [94, 201, 98], [132, 212, 75],
  [173, 220, 48], [216, 226, 25], [253, 231, 37],
];

/** The colour of a share from 0 to 1, as [red, green, blue]. */
function viridis(share) {
  const place = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(place), VIRIDIS.length - 2);
  return VIRIDIS[low].map((from, channel) => Math.round(from + (VIRIDIS[low + 1][channel] - from) * (place - low)));
}

function rgb(colour) {
  return `rgb(${colour.join(" ")})`;
}

/** Tabs by the pattern of the ARIA guide: arrows, Home and End move, one of them is in the order of Tab. */
function tabs(list, chosen = () => {}) {
  const buttons = [...list.querySelectorAll('[role="tab"]')];
  const choose = (button, focus) => {
    for (const one of buttons) {
      const own = one === button;
      one.setAttribute("aria-selected", own);
      one.tabIndex = own ? 0 : -1;
      byId(one.getAttribute("aria-controls")).hidden = !own;
    }
    if (focus) button.focus();
    chosen(button);
  };
  buttons.forEach((button, place) => {
    button.addEventListener("click", () => choose(button, false));
    button.addEventListener("keydown", (event) => {
      const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(buttons[(to + buttons.length) % buttons.length], true);
    });
  });
  choose(buttons[0], false);
}

/** In a notebook's frame # is a place of the notebook, so links within the page are followed here. */
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (!link || location.protocol !== "about:") return;
  event.preventDefault();
  const target = byId(link.getAttribute("href").slice(1));
  target.tabIndex = -1;
  target.focus({ preventScroll: true });
  target.scrollIntoView();
});
