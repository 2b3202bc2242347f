"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

/** Returns the text of a name in the language of the page, with its {placeholders} filled. */
function getText(name, values = {}) {
  if (!(name in data.texts)) throw new Error(`texts must hold ${name}`);
  return data.texts[name].replace(/\{(\w+)\}/g, (whole, key) => (key in values ? String(values[key]) : whole));
}

/** Returns a new element; children are nodes or texts, never HTML. */
function createElement(tag, attributes = {}, ...children) {
  return fillNode(document.createElement(tag), attributes, children);
}

/** Returns a new SVG element. */
function createSvg(tag, attributes = {}, ...children) {
  return fillNode(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fillNode(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function getById(id) {
  return document.getElementById(id);
}

/** Fills each element with the text of its data-text, and its aria-label with that of its data-label. */
function fillTexts(root = document) {
  for (const node of root.querySelectorAll("[data-text]")) node.textContent = getText(node.dataset.text);
  for (const node of root.querySelectorAll("[data-label]")) node.setAttribute("aria-label", getText(node.dataset.label));
}

/** Formats a number with three significant digits, without an exponent where that is short. */
function formatNumber(number) {
  if (number === 0) return "0";
  const size = Math.abs(number);
  return size >= 1e5 || size < 1e-4 ? number.toExponential(1) : String(Number(number.toPrecision(3)));
}

function formatPercent(share) {
  const value = 100 * share;
  const digits = value === 0 || value >= 99.95 ? 0 : value >= 0.995 ? 1 : 2;
  return getText("percent", { value: value > 0 && value < 0.005 ? "<0.01" : value.toFixed(digits) });
}

// 17 of the 256 colours of matplotlib's viridis; linear interpolation between them is exact to 2/255.
const VIRIDIS = [
  [68, 1, 84], [72, 24, 106], [71, 45, 123], [66, 64, 134], [59, 82, 139], [51, 99, 141], [44, 114, 142],
  [38, 130, 142], [33, 145, 140], [31, 160, 136], [40, 174, 128], [63, 188, 115], [94, 201, 98], [132, 212, 75],
  [173, 220, 48], [216, 226, 25], [253, 231, 37],
];

/** Returns the colour [red, green, blue] of a share from 0 to 1. */
function viridis(share) {
  const position = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(position), VIRIDIS.length - 2);
  return VIRIDIS[low].map((value, channel) => Math.round(value + (VIRIDIS[low + 1][channel] - value) * (position - low)));
}

function formatRgb(colour) {
  return `rgb(${colour.join(" ")})`;
}

/** Connects tabs as in the ARIA guide: arrows, Home and End move between them, and Tab reaches only the chosen one. */
function connectTabs(list, onChoose = () => {}) {
  const buttons = [...list.querySelectorAll('[role="tab"]')];
  const choose = (button, focus) => {
    for (const other of buttons) {
      const selected = other === button;
      other.setAttribute("aria-selected", selected);
      other.tabIndex = selected ? 0 : -1;
      getById(other.getAttribute("aria-controls")).hidden = !selected;
    }
    if (focus) button.focus();
    onChoose(button);
  };
  buttons.forEach((button, index) => {
    button.addEventListener("click", () => choose(button, false));
    button.addEventListener("keydown", (event) => {
      const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(buttons[(to + buttons.length) % buttons.length], true);
    });
  });
  choose(buttons[0], false);
}

/** Follows links within the page: in a notebook's frame the browser would look for # in the notebook. */
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (!link || location.protocol !== "about:") return;
  event.preventDefault();
  const target = getById(link.getAttribute("href").slice(1));
  target.tabIndex = -1;
  target.focus({ preventScroll: true });
  target.scrollIntoView();
});
