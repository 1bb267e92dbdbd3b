// The page as a whole: one filter for totals, charts and table; what a mark says; light and dark.
const filters = { text: find("#text"), family: find("#family"), arch: find("#arch") };
const searched = programs.map((program) =>
  [program.group, program.arch, spell(program.fields), program.key, program.blob, ...program.plans]
    .join("\n").toLowerCase(),
);
const table = makeTable();

function matching() {
  const words = filters.text.value.toLowerCase().split(/\s+/).filter(Boolean);
  return programs.map(
    (program, index) =>
      (!filters.family.value || program.group === filters.family.value) &&
      (!filters.arch.value || program.arch === filters.arch.value) &&
      words.every((word) => searched[index].includes(word)),
  );
}

function showTotals(shown) {
  const sizes = new Map(shown.map((program) => [program.blob, program.bytes]));
  const [size, unit] = shortBytes(sum([...sizes.values()]));
  const known = shown.filter((program) => spilledBytes(program) !== null);
  const spilled = known.filter(isSpilled).length;
  const compiled = shown.filter((program) => program.provenance.seconds !== null);
  const total = (name, value, note = "", isAlarm = false) =>
    make("div", {}, make("dt", {}, name), make("dd", { class: isAlarm && "alarm" }, value, note && make("small", {}, note)));
  find("#totals").replaceChildren(
    total("programs", whole(shown.length)),
    total("families", whole(new Set(shown.map((program) => program.group)).size)),
    total("cubins", size, unit),
    total("most registers", whole(shown.length ? Math.max(...shown.map((program) => program.registers)) : null)),
    total("spilling", known.length ? whole(spilled) : DASH, known.length < shown.length ? `of ${whole(known.length)} known` : "", spilled > 0),
    total("compile time", compiled.length ? sum(compiled.map((program) => program.provenance.seconds)).toFixed(1) : DASH, compiled.length ? "s" : ""),
  );
}

function update() {
  const isShown = matching();
  const shown = programs.filter((_, index) => isShown[index]);
  for (const node of document.querySelectorAll(".mark")) {
    node.classList.toggle("off", !node.dataset.programs.split(",").some((index) => isShown[index]));
  }
  for (const button of document.querySelectorAll("#strips button")) {
    button.setAttribute("aria-pressed", String(button.dataset.family === filters.family.value));
  }
  find("#count").textContent =
    shown.length === programs.length ? plural(shown.length, "program") : `${whole(shown.length)} of ${plural(programs.length, "program")}`;
  showTotals(shown);
  table.filter(isShown);
}

function describe(shown) {
  const [first, ...others] = shown.map((index) => programs[index]);
  const lines = [`${first.group}, ${first.arch}`, variantOf(first)];
  if (others.length) lines.push(`and ${plural(others.length, "more program")} here`);
  lines.push(
    `${plural(first.registers, "register")}, ${whole(first.resident_ctas)} CTAs of ${whole(first.threads)} threads per SM`,
    `${whole(first.bytes)} bytes` + (first.provenance.seconds === null ? "" : `, compiled in ${seconds(first.provenance.seconds)} s`),
  );
  return lines.join("\n");
}

function point(event) {
  const node = event.target.closest?.("[data-family]");
  const tip = find("#tip");
  document.body.classList.toggle("dimming", Boolean(node));
  for (const other of document.querySelectorAll(".mark")) {
    other.classList.toggle("lit", other === node || (node?.tagName === "BUTTON" && other.dataset.family === node.dataset.family));
  }
  tip.hidden = !node?.dataset.programs;
  if (tip.hidden) return;
  const shown = node.dataset.programs.split(",").map(Number);
  tip.textContent = describe(shown);
  for (const other of document.querySelectorAll(".mark")) {
    if (other.dataset.programs.split(",").some((index) => shown.includes(Number(index)))) other.classList.add("lit");
  }
  const box = node.getBoundingClientRect();
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(8, Math.min(room, box.left + box.width / 2 - tip.offsetWidth / 2))}px`;
  tip.style.top = `${box.top > tip.offsetHeight + 12 ? box.top - tip.offsetHeight - 8 : box.bottom + 8}px`;
}

// What the system prefers, until the button says otherwise.
const preferred = matchMedia("(prefers-color-scheme: dark)");
const otherTheme = () => {
  const theme = document.documentElement.dataset.theme ?? (preferred.matches ? "dark" : "light");
  return theme === "dark" ? "light" : "dark";
};

function nameTheme() {
  find("#theme").textContent = otherTheme() === "dark" ? "Dark" : "Light";
  find("#theme").setAttribute("aria-label", `${find("#theme").textContent} colours`);
}

for (const [name, values] of [["family", families], ["arch", archs]]) {
  filters[name].append(make("option", { value: "" }, "all"), ...values.map((value) => make("option", { value }, value)));
}
for (const field of Object.values(filters)) field.addEventListener("input", update);
find("#filters").addEventListener("submit", (event) => event.preventDefault());
find("h1").textContent = report.plans.length === 1 ? report.plans[0].name : `${whole(report.plans.length)} frozen plans`;
find("#plans").append(
  ...report.plans.flatMap((plan, index) => [
    index ? " \u00b7 " : "",
    make("span", {}, report.plans.length === 1 ? "" : `${plan.name}, `, plural(plan.programs, "program")),
  ]),
);
find("#origin").textContent = `Read from ${report.store} by planfreeze ${report.version}.`;
nameTheme();
preferred.addEventListener("change", nameTheme);
find("#theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = otherTheme();
  nameTheme();
});
showFamilies((family) => {
  filters.family.value = filters.family.value === family ? "" : family;
  update();
});
showResidence();
showBuilds();
showCoverage();
document.addEventListener("drawn", update);
document.addEventListener("pointerover", point);
document.addEventListener("click", (event) => {
  const shown = event.target.closest?.(".mark")?.dataset.programs;
  if (shown) table.open(Number(shown.split(",")[0]));
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") find("#tip").hidden = true;
});
update();
