// Elements, numbers and the facts of the page. All text goes in as text: nothing that is shown is ever parsed as HTML.
const report = JSON.parse(document.getElementById("report").textContent);
const programs = report.programs;
const DASH = "\u2013";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [property, text] of Object.entries(value)) node.style.setProperty(property, text);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null));
  return node;
}

const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const find = (selector) => document.querySelector(selector);

const whole = (value) => (value === null ? DASH : value.toLocaleString("en-US"));
const percent = (value) => (value === null ? DASH : `${(value * 100).toFixed(value === 1 ? 0 : 1)}%`);
const seconds = (value) => (value === null ? DASH : value.toFixed(2));
const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;

// Times come from notes, which nothing proves: one that is none is not known.
function moment(epoch) {
  const date = new Date(epoch * 1000);
  return Number.isNaN(date.getTime()) ? DASH : `${date.toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

function shortBytes(count, digits = 2) {
  for (const [unit, size] of [["MB", 1e6], ["kB", 1e3]]) {
    if (count >= size) return [(count / size).toFixed(digits), unit];
  }
  return [whole(count), "bytes"];
}

// Round steps of an axis from 0 to at least the greatest value.
function ticks(greatest, steps = 5) {
  const rough = (greatest || 1) / steps;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const count = Math.ceil((greatest || 1) / step - 1e-9);
  return Array.from({ length: count + 1 }, (_, index) => Number((index * step).toPrecision(12)));
}

const families = [...new Set(programs.map((program) => program.group))];
const archs = [...new Set(programs.map((program) => program.arch))];

// A hue for each family; neighbours also differ in lightness, so that many can be told apart.
function familyStyle(family) {
  const index = families.indexOf(family);
  return {
    "--hue": String(Math.round(255 + (index * 360) / Math.max(families.length, 5)) % 360),
    "--light": index % 2 ? "0.46" : "0.64",
    "--dark": index % 2 ? "0.66" : "0.8",
  };
}

const swatch = (family) => make("span", { class: "swatch of-family", style: familyStyle(family), "aria-hidden": "true" });

// Of the fields of a family's programs, those that tell them apart; all where there is one variant.
const telling = new Map(
  families.map((family) => {
    const variants = programs.filter((program) => program.group === family).map((program) => program.fields);
    const names = [...new Set(variants.flatMap(Object.keys))];
    const differing = names.filter((name) => new Set(variants.map((fields) => fields[name])).size > 1);
    return [family, differing.length ? differing : names];
  }),
);

function spell(fields, names = Object.keys(fields)) {
  return names.filter((name) => name in fields).map((name) => `${name}=${fields[name]}`).join(", ");
}

const variantOf = (program) => spell(program.fields, telling.get(program.group));
const sharedBytes = (program) => program.static_shared_bytes + program.dynamic_shared_bytes;

function spilledBytes(program) {
  const both = [program.spill_store_bytes, program.spill_load_bytes];
  return both.includes(null) ? null : sum(both);
}
