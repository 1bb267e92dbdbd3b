// Charts: marks in SVG, placed in percent, so that they follow any width. A mark names its programs by their places.
const isSpilled = (program) => spilledBytes(program) > 0;

function mark(tag, shown, attributes) {
  const { group: family } = programs[shown[0]];
  const spilled = shown.some((index) => isSpilled(programs[index])) ? " spilled" : "";
  return draw(tag, {
    ...attributes,
    class: `mark of-family ${attributes.class ?? ""}${spilled}`,
    style: familyStyle(family),
    "data-programs": shown.join(","),
    "data-family": family,
  });
}

const chart = (height, label, ...children) => draw("svg", { height, role: "img", "aria-label": label }, ...children);
const label = (x, y, text, anchor = "middle") => draw("text", { x, y, "text-anchor": anchor }, text);

function showFamilies(choose) {
  const steps = ticks(Math.max(...programs.map((program) => program.bytes)), 3);
  const top = steps.at(-1);
  const place = (bytes) => `${(bytes / top) * 100}%`;
  const rows = families.map((family) => {
    const own = [...programs.keys()].filter((index) => programs[index].group === family);
    const counts = archs.map((arch) => own.filter((index) => programs[index].arch === arch).length);
    const sizes = own.map((index) => programs[index].bytes);
    return make(
      "div",
      { class: "row" },
      make(
        "button",
        { type: "button", "aria-pressed": "false", "data-family": family, onclick: () => choose(family) },
        swatch(family),
        family,
      ),
      make("div", { class: "counts" }, counts.map((count) => make("span", {}, count ? whole(count) : DASH))),
      chart(
        20,
        `${family}: ${plural(own.length, "program")} of ${whole(Math.min(...sizes))} to ${whole(Math.max(...sizes))} bytes`,
        draw("line", { x1: 0, x2: "100%", y1: 10, y2: 10 }),
        own.map((index) => mark("circle", [index], { cx: place(programs[index].bytes), cy: 10, r: 5 })),
      ),
    );
  });
  const head = make("div", { class: "counts", "aria-hidden": "true" }, archs.map((arch) => make("span", {}, arch)));
  const axis = chart(
    20,
    "Size of the cubin",
    // The last label ends at its step, where it would run into the one before.
    steps.filter((_, index) => index !== 2 || steps.length < 4).map((bytes, index, all) =>
      label(place(bytes), 14, bytes ? shortBytes(bytes, 0).join(" ") : 0, index === 0 ? "start" : index === all.length - 1 ? "end" : "middle"),
    ),
  );
  find("#strips").append(make("div", { class: "row head" }, make("span"), head, axis), ...rows);
}

// What registers alone allow, as steps: they are given out in eights.
function registerBound(target) {
  return target.register_warps.flatMap(([registers, warps]) => {
    const share = Math.min(1, warps / target.max_warps);
    return [[registers - 8, share], [registers, share]];
  });
}

function showResidence() {
  const figures = archs.map((arch) => {
    const height = 210;
    const groups = new Map();
    for (const [index, program] of programs.entries()) {
      if (program.arch !== arch || program.occupancy === null) continue;
      const spot = JSON.stringify([program.group, program.registers, program.occupancy]);
      groups.set(spot, [...(groups.get(spot) ?? []), index]);
    }
    const x = (registers) => `${(registers / 256) * 100}%`;
    const y = (share) => height - share * height;
    const bound = registerBound(report.targets[arch]);
    const marks = [...groups.values()]
      .sort((one, other) => other.length - one.length)
      .map((shown) => {
        const program = programs[shown[0]];
        const r = 4 + 1.5 * Math.sqrt(shown.length - 1);
        return mark("circle", shown, { cx: x(program.registers), cy: y(program.occupancy), r });
      });
    return make(
      "figure",
      {},
      make("figcaption", {}, arch),
      chart(
        height + 40,
        `${arch}: occupancy of ${plural(sum([...groups.values()].map((shown) => shown.length)), "program")} over registers`,
        [0, 0.25, 0.5, 0.75, 1].map((share) => [
          draw("line", { x1: 0, x2: "100%", y1: y(share), y2: y(share) }),
          label(-6, y(share) + 4, `${share * 100}%`, "end"),
        ]).flat(),
        [0, 64, 128, 192, 256].map((registers) => label(x(registers), height + 16, registers)),
        label("50%", height + 34, "registers of a thread"),
        bound.slice(1).map(([registers, share], index) =>
          draw("line", {
            class: "bound", x1: x(bound[index][0]), y1: y(bound[index][1]), x2: x(registers), y2: y(share),
          }),
        ),
        marks,
      ),
    );
  });
  find("#scatter").append(...figures);
}

function showBuild(build) {
  const lane = 26;
  const span = ticks(build.seconds);
  const end = span.at(-1);
  const height = build.slots * lane;
  const shown = [...programs.keys()].filter((index) => programs[index].provenance.build === build.build);
  const slots = [...new Set(shown.map((index) => programs[index].provenance.slot))].sort((one, other) => one - other);
  find("#build-facts").replaceChildren(
    make("b", {}, moment(build.started_s)),
    `: ${plural(build.programs, "program")} in `,
    make("b", {}, `${seconds(build.seconds)} s`),
    " with ",
    make("b", {}, whole(build.slots)),
    build.slots === 1 ? " compile process at a time, busy for " : " compile processes at a time, busy for ",
    make("b", {}, percent(build.busy)),
    " of it.",
  );
  const bars = shown.map((index) => {
    const { started_s, seconds: took, slot } = programs[index].provenance;
    const bar = mark("rect", [index], {
      class: "wide", x: `${((started_s - build.started_s) / end) * 100}%`, y: slots.indexOf(slot) * lane + 3, height: lane - 6, rx: 2,
      width: `${(took / end) * 100}%`,
    });
    bar.style.setProperty("width", `max(2px, calc(${(took / end) * 100}% - 1px))`);
    return bar;
  });
  const axis = span.map((time, index) => [
    draw("line", { x1: `${(time / end) * 100}%`, x2: `${(time / end) * 100}%`, y1: 0, y2: height }),
    label(`${(time / end) * 100}%`, height + 16, `${time} s`, index === span.length - 1 ? "end" : "middle"),
  ]);
  const lanes = Array.from({ length: build.slots }, (_, slot) =>
    label(-10, slot * lane + lane / 2 + 4, `process ${slot + 1}`, "end"),
  );
  find("#timeline").replaceChildren(
    chart(height + 22, `${plural(shown.length, "program")} over ${seconds(build.seconds)} s`, axis.flat(), lanes, bars),
  );
}

function showBuilds() {
  const { builds } = report;
  const select = find("#builds select");
  find("#builds").hidden = builds.length < 2;
  if (builds.length === 0) {
    const where = "Packs, and stores of earlier versions, keep no note of when programs were compiled.";
    find("#build-facts").replaceChildren(where);
    return;
  }
  select.append(
    ...builds.map((build, index) =>
      make("option", { value: index }, `${moment(build.started_s)}, ${plural(build.programs, "program")}`),
    ),
  );
  const largest = builds.reduce((best, build, index) => (build.programs >= builds[best].programs ? index : best), 0);
  select.value = String(largest);
  select.addEventListener("change", () => {
    showBuild(builds[select.value]);
    select.dispatchEvent(new Event("drawn", { bubbles: true }));
  });
  showBuild(builds[largest]);
}

function showCoverage() {
  const { coverage } = report;
  find("#coverage").hidden = coverage === null;
  if (coverage === null) return;
  find("#coverage-head").textContent = `Coverage of ${coverage.recording}`;
  const lists = (title, items) =>
    items.length ? make("details", { open: items.length <= 8 }, make("summary", {}, title), make("ul", {}, items)) : null;
  find("#coverage div").append(
    ...coverage.plans.map((found) =>
      make(
        "article",
        {},
        make("h3", {}, found.plan),
        make("div", { class: "bar" }, make("i", { style: { width: `${(found.used / found.planned) * 100}%` } })),
        make("p", {}, `The run used ${whole(found.used)} of ${plural(found.planned, "planned program")}.`),
        lists(`${whole(found.unused.length)} planned and not used`, found.unused.map((name) => make("li", { class: "mono" }, name))),
        lists(
          `${whole(found.unplanned.length)} used and not planned`,
          found.unplanned.map(({ program, nearest }) =>
            make("li", {}, make("span", { class: "mono alarm" }, program), nearest ? make("p", {}, nearest) : null),
          ),
        ),
      ),
    ),
  );
}
