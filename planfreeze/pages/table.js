// The table of all programs: sorted by its head, or on a narrow page by a list; a row opens to all that is known.
const COLUMNS = [
  { id: "family", head: "Program", value: (program) => program.group },
  { id: "arch", head: "Target", value: (program) => program.arch },
  { id: "registers", head: "Registers", value: (program) => program.registers, show: whole },
  { id: "spilled", head: "Spilled bytes", value: spilledBytes, show: whole },
  { id: "shared", head: "Shared bytes", value: sharedBytes, show: whole },
  { id: "threads", head: "Threads", value: (program) => program.threads, show: whole },
  { id: "ctas", head: "CTAs per SM", value: (program) => program.resident_ctas, show: whole },
  { id: "occupancy", head: "Occupancy", value: (program) => program.occupancy, show: percent },
  { id: "size", head: "Cubin bytes", value: (program) => program.bytes, show: whole },
  { id: "seconds", head: "Compile s", value: (program) => program.provenance.seconds, show: seconds },
  { id: "launches", head: "Launches", value: (program) => program.launches, show: whole },
].filter((column) => column.id !== "launches" || report.coverage !== null);

const NUMERIC = new Intl.Collator("en", { numeric: true });

// Values that are not known come last in either direction; equal ones stay in planned order.
function compare(column, isDescending, one, other) {
  const [first, second] = [column.value(programs[one]), column.value(programs[other])];
  if (first === null || second === null) return (first === null) - (second === null) || one - other;
  const order = typeof first === "string" ? NUMERIC.compare(first, second) : first - second;
  return (isDescending ? -order : order) || one - other;
}

function detail(program) {
  const { provenance } = program;
  const fact = (name, value) => (value === null || value === "" ? [] : [make("dt", {}, name), make("dd", { class: "mono" }, value)]);
  const compiler = (provenance.toolchain ?? "").split(" ").slice(0, 2).join(" ");
  const labels = Object.entries(program.labels).flatMap(([label, value]) => fact(label, value));
  return make(
    "dl",
    {},
    fact("payload", spell(program.fields)),
    fact("family", program.family),
    fact("plans", program.plans.join(", ")),
    fact("shared bytes", `${whole(program.static_shared_bytes)} static, ${whole(program.dynamic_shared_bytes)} dynamic`),
    fact("stack bytes", whole(program.stack_bytes)),
    fact("block", `${program.block.join(" \u00d7 ")}, cluster ${program.cluster.join(" \u00d7 ")}`),
    fact("compiler", [compiler, program.tools && `CUDA tools ${program.tools}`].filter(Boolean).join(", ")),
    fact("compiled", provenance.started_s && moment(provenance.started_s)),
    fact("entry", program.symbol),
    fact("cubin", program.blob),
    fact("key", program.key),
    labels.length ? [make("dt"), make("dd", {}, make("details", {}, make("summary", {}, "parts of the key"), make("dl", {}, labels)))] : [],
  );
}

function rowOf(program, index) {
  const facts = `facts-${index}`;
  const more = make("tr", { class: "more", id: facts, hidden: true, role: "row" });
  const open = make(
    "button",
    { type: "button", class: "name", "aria-expanded": "false", "aria-controls": facts },
    swatch(program.group),
    program.group,
  );
  const toggle = (isOpen) => {
    if (isOpen && !more.firstChild) {
      more.append(make("td", { colspan: COLUMNS.length, role: "cell" }, detail(program)));
    }
    open.setAttribute("aria-expanded", String(isOpen));
    more.hidden = !isOpen;
  };
  open.addEventListener("click", () => toggle(open.getAttribute("aria-expanded") === "false"));
  const cells = COLUMNS.slice(1).map((column) => {
    const value = column.value(program);
    const alarm = column.id === "spilled" && value > 0 ? "alarm" : value === null ? "unknown" : null;
    return make("td", { "data-label": column.head, role: "cell", class: alarm }, (column.show ?? String)(value));
  });
  const variant = make("span", { class: "variant mono" }, variantOf(program));
  const row = make("tr", { role: "row", "data-index": index }, make("td", { role: "cell" }, open, variant), cells);
  return { row, more, toggle, open };
}

function makeTable() {
  const rows = programs.map(rowOf);
  const body = find("tbody");
  const order = { column: null, isDescending: false };
  find("table").setAttribute("role", "table");

  const sort = (column, isDescending) => {
    Object.assign(order, { column, isDescending });
    const sorted = [...programs.keys()].sort((one, other) => (column ? compare(column, isDescending, one, other) : one - other));
    body.append(...sorted.flatMap((index) => [rows[index].row, rows[index].more]));
    for (const [place, head] of heads.entries()) {
      const isSorted = COLUMNS[place] === column;
      head.setAttribute("aria-sort", isSorted ? (isDescending ? "descending" : "ascending") : "none");
    }
    select.value = column ? `${column.id} ${isDescending ? "down" : "up"}` : "";
  };
  // Numbers begin with the greatest, names with the first; a third press gives the planned order back.
  const press = (column) => {
    const begins = column.show !== undefined;
    if (order.column !== column) sort(column, begins);
    else if (order.isDescending === begins) sort(column, !begins);
    else sort(null, false);
  };
  const heads = COLUMNS.map((column) =>
    make("th", { scope: "col", role: "columnheader", "aria-sort": "none" },
      make("button", { type: "button", onclick: () => press(column) }, column.head)),
  );
  find("thead").append(make("tr", { role: "row" }, heads));
  const select = find("#order select");
  select.append(
    make("option", { value: "" }, "planned order"),
    ...COLUMNS.flatMap((column) => [
      make("option", { value: `${column.id} up` }, `${column.head}, ${column.show ? "least first" : "A to Z"}`),
      make("option", { value: `${column.id} down` }, `${column.head}, ${column.show ? "greatest first" : "Z to A"}`),
    ]),
  );
  select.addEventListener("change", () => {
    const [id, direction] = select.value.split(" ");
    sort(COLUMNS.find((column) => column.id === id) ?? null, direction === "down");
  });
  sort(null, false);

  return {
    filter(isShown) {
      for (const [index, { row, more, open }] of rows.entries()) {
        row.hidden = !isShown[index];
        more.hidden = !isShown[index] || open.getAttribute("aria-expanded") === "false";
      }
      find("#nothing").hidden = isShown.includes(true);
    },
    open(index) {
      rows[index].toggle(true);
      rows[index].row.scrollIntoView({ block: "center", behavior: "smooth" });
      rows[index].open.focus({ preventScroll: true });
    },
  };
}
